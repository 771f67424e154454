package main

import (
	"crypto/rand"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"holdfast/nip"
)

// modulesOf reads back what writeQR drew: the modules of the code without its
// white margin, true where dark, and the margin's width.
func modulesOf(t *testing.T, drawn string) (grid [][]bool, quiet int) {
	t.Helper()
	var all [][]bool
	for _, line := range strings.Split(strings.TrimRight(drawn, "\n"), "\n") {
		var top, bottom []bool
		for _, c := range line {
			switch string(c) {
			case "█":
				top, bottom = append(top, false), append(bottom, false)
			case " ":
				top, bottom = append(top, true), append(bottom, true)
			case "▄":
				top, bottom = append(top, true), append(bottom, false)
			case "▀":
				top, bottom = append(top, false), append(bottom, true)
			default:
				t.Fatalf("drew %q", c)
			}
		}
		all = append(all, top, bottom)
	}
	light := func(row []bool) bool { return !slices.Contains(row, true) }
	// The terminal itself is the half line beyond an uneven margin.
	for len(all) > 0 && (light(all[0]) || all[0][0]) {
		all = all[1:]
	}
	if len(all) == 0 {
		t.Fatal("nothing was drawn")
	}
	quiet = slices.Index(all[0], true)
	size := len(all[0]) - 2*quiet
	for _, row := range all[:size] {
		grid = append(grid, row[quiet:quiet+size])
	}
	return grid, quiet
}

// TestPairingCodeScans measures what up prints: how many modules the code has
// for each length of a relay's name, that the drawing is whole, with its margin,
// and that no line is longer than a terminal's.
func TestPairingCodeScans(t *testing.T) {
	key := testKey(t)
	for _, row := range []struct {
		name    string
		relay   string
		modules int
		quiet   int
	}{
		{"this computer", "ws://127.0.0.1:7447/", 49, 4},
		{"a usual name", "wss://relay.example.com/", 53, 4},
		{"the longest name", "wss://" + strings.Repeat("a", longestRelay-7) + "/", 77, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			id, err := nip.NewID(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			code, err := nip.EncodeInvitation(nip.Invitation{
				Host: key.Public(), ID: nip.InvitationID(id), Capability: id, IssuedAt: 1_800_000_000, ExpiresAt: 1_800_000_300, Relay: nip.RelayURL(row.relay),
			}, nip.Profile{Loopback: true})
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			writeQR(&b, code)
			for _, line := range strings.Split(b.String(), "\n") {
				if n := utf8.RuneCountInString(line); n > terminalWide {
					t.Fatalf("a line of %d columns", n)
				}
			}
			grid, quiet := modulesOf(t, b.String())
			if len(grid) != row.modules || quiet != row.quiet {
				t.Errorf("%d characters: %d modules with a margin of %d, want %d and %d", len(code), len(grid), quiet, row.modules, row.quiet)
			}
			// The three finders: seven modules dark, light, three dark.
			for _, at := range [][2]int{{0, 0}, {0, len(grid) - 7}, {len(grid) - 7, 0}} {
				for i, want := range []string{"1111111", "1000001", "1011101", "1011101", "1011101", "1000001", "1111111"} {
					var got strings.Builder
					for _, dark := range grid[at[0]+i][at[1] : at[1]+7] {
						got.WriteString(map[bool]string{true: "1", false: "0"}[dark])
					}
					if got.String() != want {
						t.Fatalf("finder at %v, row %d: %s", at, i, got.String())
					}
				}
			}
		})
	}
}
