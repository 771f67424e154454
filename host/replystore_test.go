package host

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// agree holds rows, index and counts of the retained replies against each other.
func (r *rig) agree() (rows int) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		want, counts := map[string]string{}, map[string]int64{}
		if err := eachJSON(tx, bucketReplies, func(id string, row retainedReply) error {
			rows++
			counts["replies"]++
			counts[repliesOf(row.Signer)]++
			n := int64(len(tx.Bucket(bucketReplies).Get([]byte(id))))
			counts[replyBytes] += n
			counts[replyBytesOf(row.Signer)] += n
			end := replyEnd(row.ExpiresAt)
			want[string(replyEndKey(end, []byte(id)))] = string(row.Signer)
			want[string(replySignerPrefix(row.Signer))+id] = string(end)
			return nil
		}); err != nil {
			return err
		}
		have := map[string]string{}
		if b := tx.Bucket(bucketReplyIndex); b != nil {
			_ = b.ForEach(func(k, v []byte) error { have[string(k)] = string(v); return nil })
		}
		if !maps.Equal(want, have) {
			return fmt.Errorf("the index has %d entries for %d rows, or others", len(have), rows)
		}
		for key, n := range counts {
			if got := getCount(tx, bucketMeta, key); got != n {
				return fmt.Errorf("%s counts %d of %d", key, got, n)
			}
		}
		c := tx.Bucket(bucketMeta).Cursor()
		for k, _ := c.Seek([]byte(replyBytes)); strings.HasPrefix(string(k), replyBytes); k, _ = c.Next() {
			if counts[string(k)] == 0 {
				return fmt.Errorf("%s counts what is not there", k)
			}
		}
		return nil
	})
	return rows
}

// No room for bytes is no room: a signer's own share, and everybody's; what is
// there is answered from all the same, and with its end the room is back.
func TestReplyBytes(t *testing.T) {
	for _, row := range []struct {
		name  string
		key   func(d device) string
		cap   int64
		other nip.Code
	}{
		{"a signer's", func(d device) string { return replyBytesOf(d.pub()) }, maxSignerReplyBytes, ""},
		{"everybody's", func(device) string { return replyBytes }, maxReplyBytes, nip.Bounds},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
			in := r.sealed(d, r.req(d, nip.WorkspaceList{}))
			first := r.give(in)
			r.update(func(tx *bbolt.Tx) error { return putCount(tx, bucketMeta, row.key(d), row.cap-1) })
			r.wantCode(r.ask(d, nip.WorkspaceList{}), "") // begun below the cap
			r.update(func(tx *bbolt.Tx) error { return putCount(tx, bucketMeta, row.key(d), row.cap) })
			r.wantCode(r.ask(d, nip.WorkspaceList{}), nip.Bounds)
			r.wantCode(r.ask(other, nip.WorkspaceList{}), row.other)
			r.clock.add(repeatWindow) // sooner it is not answered twice
			if again := r.give(in); len(again) != 1 || again[0].ID != first[0].ID {
				t.Error("a known request was not answered from its reply")
			}
			r.restart() // counts them anew
			if _, err := r.c.startGeneration(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.agree()
			r.wantCode(r.ask(d, nip.WorkspaceList{}), "")
			r.agree()
		})
	}
}

func (r *rig) keep(id string, signer nip.PubKey, ends int64) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		return keepReply(tx, nip.RequestID(id), retainedReply{Signer: signer, ExpiresAt: ends}, r.clock.now())
	})
}

// What leaves is what ended, or what was the device's, and nothing else; rows,
// index and counts stay in step.
func TestReplyIndex(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	r.give(r.sealed(d, r.req(d, nip.WorkspaceList{})))
	base := r.agree()
	now := r.clock.now()
	a, b := nip.PubKey(fmt.Sprintf("%064x", 1)), nip.PubKey(fmt.Sprintf("%064x", 2))
	for i := range 10 {
		r.keep(fmt.Sprint("a", i), a, now+10+int64(i))
		r.keep(fmt.Sprint("b", i), b, now+10+int64(i))
	}
	r.keep("a3", b, now+30) // its first row is replaced, whoever had it
	if n := r.agree(); n != base+20 {
		t.Fatalf("%d rows", n)
	}
	r.clock.add(14) // five ended of each, but for a3
	r.keep("c", a, now+40)
	if n := r.agree(); n != base+20+1-prunedByEach {
		t.Fatalf("%d rows", n)
	}
	r.update(func(tx *bbolt.Tx) error { return pruneReplies(tx, r.clock.now(), maxReplies) })
	if n := r.agree(); n != base+12 {
		t.Fatalf("%d rows", n)
	}
	r.update(func(tx *bbolt.Tx) error { return dropRepliesOf(tx, a) })
	if n := r.agree(); n != base+6 {
		t.Fatalf("%d rows", n)
	}
	r.update(func(tx *bbolt.Tx) error { return dropRepliesOf(tx, a) })
	if n := r.agree(); n != base+6 {
		t.Fatalf("%d rows", n)
	}
}

// A home of a version without the index keeps its replies: they answer retries,
// leave at their end and with their device. So does one that such a version used
// in between.
func TestReplyIndexYoung(t *testing.T) {
	for _, row := range []struct {
		name string
		edit func(tx *bbolt.Tx) error
	}{
		{"no index", func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketReplyIndex) }},
		{"an index of other rows", func(tx *bbolt.Tx) error {
			index := tx.Bucket(bucketReplyIndex)
			var keys [][]byte
			_ = index.ForEach(func(k, _ []byte) error { keys = append(keys, append([]byte(nil), k...)); return nil })
			for _, k := range keys {
				if err := index.Delete(k); err != nil {
					return err
				}
			}
			return enterReply(index, "gone", nip.PubKey(fmt.Sprintf("%064x", 1)), 5)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
			in := r.sealed(d, r.req(d, nip.WorkspaceList{}))
			first := r.give(in)
			r.give(r.sealed(other, r.req(other, nip.WorkspaceList{})))
			r.update(row.edit)
			r.restart()
			if _, err := r.c.startGeneration(t.Context()); err != nil {
				t.Fatal(err)
			}
			rows := r.agree()
			if again := r.give(in); len(again) != 1 || again[0].ID != first[0].ID {
				t.Fatal("a known request was not answered from its reply")
			}
			if _, err := r.c.Revoke(t.Context(), d.pub(), false); err != nil {
				t.Fatal(err)
			}
			if n := r.agree(); n >= rows || n == 0 {
				t.Fatalf("%d of %d replies after the revocation", n, rows)
			}
			r.clock.add(120)
			r.update(func(tx *bbolt.Tx) error { return pruneReplies(tx, r.clock.now(), maxReplies) })
			if n := r.agree(); n != 0 {
				t.Fatalf("%d replies that ended", n)
			}
		})
	}
}
