package embedded

import (
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Header is a store's header of that version.
func Header(v uint32) []byte { return encodeHeader(v) }

// SetRoom changes the bytes of a recipient and the events of all strangers,
// before anything is published.
func SetRoom(r *Relay, member int64, strangers int) { r.store.room, r.store.pool = member, strangers }

// WriteTimeout is how long one write to a client may take.
const WriteTimeout = writeTimeout

// Connections is how many websockets are open.
func Connections(r *Relay) int {
	r.reg.mu.Lock()
	defer r.reg.mu.Unlock()
	return len(r.reg.conns)
}

// CountFile opens a closed store and counts its events, and fails unless every
// index agrees with them.
func CountFile(t testing.TB, path string) (n int) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		for err := range tx.Check() {
			t.Error(err)
		}
		count := func(name []byte) int { return tx.Bucket(name).Stats().KeyN }
		n = count(bEvents)
		if count(bRecipient) != n || count(bAuthor) != n || count(bEnds) != n || count(bRoom)+count(bStrangers) != n {
			t.Errorf("%d events, but %d, %d, %d, %d and %d entries", n, count(bRecipient), count(bAuthor), count(bEnds), count(bRoom), count(bStrangers))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Spoil makes the next commit for a recipient fail, as a damaged index would;
// Heal takes that back. Neither may run beside a publish.
func Spoil(r *Relay, recipient nip.PubKey) {
	b, _ := raw(string(recipient))
	r.store.used[b] = r.store.room * 2
}

func Heal(r *Relay, recipient nip.PubKey) {
	b, _ := raw(string(recipient))
	delete(r.store.used, b)
}

// Break makes every later transaction fail.
func Break(r *Relay) { r.store.db.Close() }
