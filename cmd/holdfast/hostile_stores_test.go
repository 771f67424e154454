package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// told runs a verb as a person does and returns its exit code and what it said
// on standard error, without log lines.
func told(t *testing.T, s *tour, args ...string) (int, string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), s.exe, args...)
	c.Env = append(s.environment(), "HOLDFAST_LOG=error")
	var errs bytes.Buffer
	c.Stderr = &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), errs.String()
}

// TestHostileStores: a store that is cut short, foreign or of a later version
// ends every verb that needs it with exit 4 and one line, and nothing in it is
// changed; a home or a port that is in use, with exit 3.
func hostileStores(t *testing.T) {
	s, ctx := stage(t)
	listen := freePort(t)
	p, _ := up(t, s, ctx, "--listen", listen)

	t.Run("in use", func(t *testing.T) {
		var all sync.WaitGroup
		defer all.Wait() // a second host waits some seconds for the first to leave
		other := filepath.Join(s.dir, "other")
		if err := s.verb(ctx, nil, "init", "--home", other); err != nil {
			t.Fatal(err)
		}
		for _, row := range []struct {
			name, says string
			args       []string
		}{
			{"a second up", "host.lock", []string{"up", "--home", s.home, "--listen", freePort(t)}},
			{"a second serve", "host.lock", []string{"serve", "--home", s.home, "--listen", freePort(t)}},
			{"the port", listen, []string{"up", "--home", other, "--listen", listen}},
			{"the port, for a relay alone", listen, []string{"relay", "serve", "--home", other, "--listen", listen}},
			{"the relay's store", "in use", []string{"relay", "serve", "--home", s.home, "--listen", freePort(t)}},
		} {
			all.Go(func() {
				t.Run(row.name, func(t *testing.T) {
					code, msg := told(t, s, row.args...)
					if code != exitBusy || strings.Count(msg, "\n") != 1 || !strings.Contains(msg, row.says) {
						t.Errorf("exit %d, %q", code, msg)
					}
				})
			})
		}
	})
	p.end()

	port, err := net.Listen("tcp", "127.0.0.1:0") // nobody's relay
	if err != nil {
		t.Fatal(err)
	}
	port.Close()
	serve := []string{"serve", "--home", s.home, "--no-relay", "--relay", "ws://" + port.Addr().String() + "/"}
	hostVerbs := [][]string{{"up", "--home", s.home, "--listen", "127.0.0.1:0"}, serve, {"status", "--home", s.home}, {"journal", "list", "--home", s.home}, {"invite", "--home", s.home}}
	relayVerbs := [][]string{{"up", "--home", s.home, "--listen", "127.0.0.1:0"}, {"relay", "serve", "--home", s.home, "--listen", "127.0.0.1:0"}}
	first := func(n int) func([]byte) []byte {
		return func(b []byte) []byte { return b[:min(n, len(b))] }
	}
	newer := func(change func(tx *bbolt.Tx) error) func([]byte) []byte {
		return func(b []byte) []byte {
			path := filepath.Join(t.TempDir(), "db")
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Update(change), db.Close()); err != nil {
				t.Fatal(err)
			}
			out, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
	}
	for _, row := range []struct {
		name, file, says string
		spoil            func([]byte) []byte
		verbs            [][]string
	}{
		{"the host's, empty", "host.db", "", first(0), hostVerbs},
		{"the host's, its first bytes", "host.db", "", first(100), hostVerbs},
		{"the host's, its two first pages", "host.db", "", first(8192), hostVerbs},
		{"the host's, a page short of half", "host.db", "", first(12288), hostVerbs},
		{"the host's, another file", "host.db", "", func([]byte) []byte { return bytes.Repeat([]byte("text "), 20_000) }, hostVerbs},
		{"the host's, of a later version", "host.db", "newer", newer(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("header"))
			kind, v := b.Get([]byte("magic")), binary.BigEndian.AppendUint32(nil, 99)
			sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%d:%s", len(kind), kind, len(v), v))
			return errors.Join(b.Put([]byte("version"), v), b.Put([]byte("checksum"), sum[:]))
		}), hostVerbs},
		{"the relay's, its first bytes", "relay/relay.db", "relay store", first(100), relayVerbs},
		{"the relay's, its two first pages", "relay/relay.db", "relay store", first(8192), relayVerbs},
		{"the relay's, a page short of half", "relay/relay.db", "relay store", first(12288), relayVerbs},
		{"the relay's, another file", "relay/relay.db", "relay store", func([]byte) []byte { return bytes.Repeat([]byte("text "), 20_000) }, relayVerbs},
		{"the relay's, of a later version", "relay/relay.db", "newer", newer(func(tx *bbolt.Tx) error {
			h := binary.BigEndian.AppendUint32([]byte("holdfast-relay"), 2)
			h = binary.BigEndian.AppendUint32(h, crc32.ChecksumIEEE(h))
			return tx.Bucket([]byte("header")).Put([]byte("header"), h)
		}), relayVerbs},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(s.home, row.file)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bad := row.spoil(good)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := os.WriteFile(path, good, 0o600); err != nil {
					t.Fatal(err)
				}
			}()
			for _, args := range row.verbs {
				code, msg := told(t, s, args...)
				if code != exitCorrupt || strings.Count(msg, "\n") != 1 || !strings.Contains(msg, row.says) {
					t.Errorf("%s: exit %d, %q", args[0], code, msg)
				}
				if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
					t.Fatalf("%s changed the damaged file: %v", args[0], err)
				}
			}
		})
	}
	if code, msg := told(t, s, "check", "--home", s.home); code != exitOK {
		t.Errorf("put back, all is as it was: exit %d, %s", code, msg)
	}
}
