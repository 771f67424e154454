package nip

import (
	"crypto/rand"
	"testing"
)

// The least used peer leaves first, and what leaves is overwritten.
func TestKeyringForgets(t *testing.T) {
	key := func() SecretKey {
		k, err := GenerateSecretKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	r := NewKeyring(key(), 2)
	a, b, c := key().Public(), key().Public(), key().Public()
	for _, peer := range []PubKey{a, b, a} {
		if _, err := r.conversation(peer); err != nil {
			t.Fatal(err)
		}
	}
	kept := map[PubKey]*acquaintance{}
	for p, e := range r.met {
		kept[p] = e.Value.(*acquaintance)
	}
	if _, err := r.conversation(c); err != nil {
		t.Fatal(err)
	}
	if len(r.met) != 2 || r.met[a] == nil || r.met[c] == nil || r.order.Len() != 2 {
		t.Fatalf("%d peers, or not the last two", len(r.met))
	}
	if kept[b].conversation != [32]byte{} || kept[a].conversation == [32]byte{} {
		t.Fatal("the key that left was not overwritten, or another was")
	}
	r.Close()
	if len(r.met) != 0 || r.order.Len() != 0 || kept[a].conversation != [32]byte{} {
		t.Fatal("a key is left after Close")
	}
}
