package nip_test

import (
	"strings"
	"sync"
	"testing"

	"holdfast/nip"
)

// What a keyring seals is what Seal would seal: the recipient verifies and opens
// it, and so does the keyring, for peers that it remembers and that it forgot.
func TestKeyring(t *testing.T) {
	for _, most := range []int{0, 1, 2, 8} {
		host := keeperKey(t)
		ring := nip.NewKeyring(host, most)
		if ring.Public() != host.Public() {
			t.Fatal("another public key")
		}
		box := nip.Mailbox(strings.Repeat("ab", 32))
		a := keeperRequest(t, host.Public())
		var all sync.WaitGroup
		for range 4 {
			peer := keeperKey(t)
			all.Go(func() {
				for range 3 {
					v, err := ring.Seal(peer.Public(), box, a)
					if err != nil {
						t.Error(err)
						return
					}
					again, err := nip.VerifyEvent(v.Event())
					if err != nil {
						t.Error(err)
						return
					}
					for _, k := range []nip.Keeper{nip.Keep(peer), ring} {
						o, err := nip.OpenBy(t.Context(), again, k)
						if err != nil || string(o.Inline) != string(a.Inline) || o.Signer != host.Public() || o.Recipient != peer.Public() {
							t.Errorf("%v", err)
						}
					}
					want, _ := nip.DeriveMailbox(peer, host.Public(), nip.StreamSummaries)
					if got, err := ring.Mailbox(peer.Public(), nip.StreamSummaries); err != nil || got != want {
						t.Errorf("mailbox %s, want %s: %v", got, want, err)
					}
				}
			})
		}
		all.Wait()
		ring.Close()
		if _, err := ring.Seal(keeperKey(t).Public(), box, a); err != nil {
			t.Error(err)
		}
	}
}

// A keyring refuses what Seal refuses, and makes nothing Verified then.
func TestKeyringRefuses(t *testing.T) {
	host := keeperKey(t)
	a := keeperRequest(t, host.Public())
	box := nip.Mailbox(strings.Repeat("ab", 32))
	other := a
	other.RetainUntil++
	for _, row := range []struct {
		name string
		key  nip.SecretKey
		to   nip.PubKey
		box  nip.Mailbox
		a    nip.Artifact
	}{
		{"no key", nip.SecretKey{}, keeperKey(t).Public(), box, a},
		{"a recipient that is no key", host, nip.PubKey(strings.Repeat("ff", 32)), box, a},
		{"a recipient that is no hex", host, "nobody", box, a},
		{"another mailbox", host, keeperKey(t).Public(), "x", a},
		{"other times", host, keeperKey(t).Public(), box, other},
	} {
		if v, err := nip.NewKeyring(row.key, 4).Seal(row.to, row.box, row.a); err == nil || v.Event() != nil {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}
