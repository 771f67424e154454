package host

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// How many replies are retained for exact retries. The wire's 1,024 is each
// signer's share: a device that asks without end fills its own and no other's,
// and 1,024 in a request's minute are more than a device has a use for. The
// whole store's number protects the file and the start, which reads every row.
// A request whose reply is there is always answered from it; new ones that find
// no room are refused as bounds. Nothing gives way to make room: a reply whose
// request lives may still be asked for, and only it says what was done.
//
// A reply may take 60 KiB, so bytes have caps of their own, in the same shares.
// What is asked below a cap is kept whatever its size: the store passes one by at
// most the replies that are on their way at once.
const (
	maxReplies          = 65_536
	maxSignerReplies    = 1024
	maxReplyBytes       = 512 << 20
	maxSignerReplyBytes = 8 << 20
)

// prunedByEach is how many ended replies each new one takes along: more than
// one, so that the store empties faster than it fills, and few, so that no
// commit waits for a great many deletions.
const prunedByEach = 2

// bucketReplyIndex has two entries a retained reply, so that what leaves costs
// what leaves. It is younger than homes that may have replies: see replyIndex.
//
//	'e', end as 8-byte big-endian, request ID -> signer
//	's', signer, '/', request ID -> end as 8-byte big-endian
var bucketReplyIndex = []byte("replies.index")

const (
	replyByEnd    = 'e'
	replyBySigner = 's'
	replyEndAt    = 1 + 8 // where the request ID begins in an entry by end
)

func replyEndKey(end []byte, id []byte) []byte {
	return append(append([]byte{replyByEnd}, end...), id...)
}

func replySignerPrefix(signer nip.PubKey) []byte {
	return append(append([]byte{replyBySigner}, signer...), '/')
}

// replyEnd is a time as the index has it: ordered, and none before 0.
func replyEnd(at int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(max(at, 0))) }

// keepReply writes the row, its entries and the counts, and lets a few replies
// go that have ended. A row under the same ID has ended too: it is replaced.
func keepReply(tx *bbolt.Tx, id nip.RequestID, r retainedReply, now int64) error {
	index, err := replyIndex(tx)
	if err != nil {
		return err
	}
	var old retainedReply
	if found, err := getJSON(tx, bucketReplies, string(id), &old); err != nil {
		return err
	} else if found {
		if err := dropReply(tx, index, []byte(id), replyEnd(old.ExpiresAt), old.Signer); err != nil {
			return err
		}
	}
	if err := pruneReplies(tx, now, prunedByEach); err != nil {
		return err
	}
	if err := enterReply(index, string(id), r.Signer, r.ExpiresAt); err != nil {
		return err
	}
	if err := putJSON(tx, bucketReplies, string(id), r); err != nil {
		return err
	}
	return countReply(tx, r.Signer, 1, len(tx.Bucket(bucketReplies).Get([]byte(id))))
}

func enterReply(index *bbolt.Bucket, id string, signer nip.PubKey, expires int64) error {
	end := replyEnd(expires)
	if err := index.Put(replyEndKey(end, []byte(id)), []byte(signer)); err != nil {
		return err
	}
	return index.Put(append(replySignerPrefix(signer), id...), end)
}

// dropReply removes a row, if it is there, with its entries. The slices are the
// caller's own, not the transaction's.
func dropReply(tx *bbolt.Tx, index *bbolt.Bucket, id, end []byte, signer nip.PubKey) error {
	if err := index.Delete(replyEndKey(end, id)); err != nil {
		return err
	}
	if err := index.Delete(append(replySignerPrefix(signer), id...)); err != nil {
		return err
	}
	rows := tx.Bucket(bucketReplies)
	row := rows.Get(id)
	if row == nil {
		return nil
	}
	bytes := len(row)
	if err := rows.Delete(id); err != nil {
		return err
	}
	return countReply(tx, signer, -1, -bytes)
}

// pruneReplies removes at most most replies whose request has ended.
func pruneReplies(tx *bbolt.Tx, now int64, most int) error {
	index, err := replyIndex(tx)
	if err != nil {
		return err
	}
	last := replyEnd(now)
	type entry struct {
		key    []byte
		signer nip.PubKey
	}
	var gone []entry
	c := index.Cursor()
	for k, signer := c.Seek([]byte{replyByEnd}); len(gone) < most; k, signer = c.Next() {
		if len(k) <= replyEndAt || k[0] != replyByEnd || bytes.Compare(k[1:replyEndAt], last) > 0 {
			break
		}
		gone = append(gone, entry{bytes.Clone(k), nip.PubKey(signer)})
	}
	for _, e := range gone {
		if err := dropReply(tx, index, e.key[replyEndAt:], e.key[1:replyEndAt], e.signer); err != nil {
			return err
		}
	}
	return nil
}

// dropRepliesOf removes every reply to a device, in the commit that revokes it.
func dropRepliesOf(tx *bbolt.Tx, device nip.PubKey) error {
	index, err := replyIndex(tx)
	if err != nil {
		return err
	}
	prefix := replySignerPrefix(device)
	type entry struct{ id, end []byte }
	var gone []entry
	c := index.Cursor()
	for k, end := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, end = c.Next() {
		gone = append(gone, entry{bytes.Clone(k[len(prefix):]), bytes.Clone(end)})
	}
	for _, e := range gone {
		if err := dropReply(tx, index, e.id, e.end, device); err != nil {
			return err
		}
	}
	return nil
}

// replyIndex is the index, made from the rows where a home has none yet.
func replyIndex(tx *bbolt.Tx) (*bbolt.Bucket, error) {
	if b := tx.Bucket(bucketReplyIndex); b != nil {
		return b, nil
	}
	if err := indexReplies(tx); err != nil {
		return nil, err
	}
	return tx.Bucket(bucketReplyIndex), nil
}

// indexReplies makes index and rows agree, once at each start: an older version
// of this program keeps and drops rows without looking at the index. It decodes
// only the rows that have no entry.
func indexReplies(tx *bbolt.Tx) error {
	index, err := tx.CreateBucketIfNotExists(bucketReplyIndex)
	if err != nil {
		return fmt.Errorf("host.db %s: %w", bucketReplyIndex, err)
	}
	type entry struct {
		end    []byte
		signer nip.PubKey
	}
	entered := map[string]entry{}
	c := index.Cursor()
	for k, signer := c.Seek([]byte{replyByEnd}); len(k) > replyEndAt && k[0] == replyByEnd; k, signer = c.Next() {
		entered[string(k[replyEndAt:])] = entry{bytes.Clone(k[1:replyEndAt]), nip.PubKey(signer)}
	}
	var missing []string
	if err := tx.Bucket(bucketReplies).ForEach(func(k, _ []byte) error {
		if _, ok := entered[string(k)]; !ok {
			missing = append(missing, string(k))
		}
		delete(entered, string(k))
		return nil
	}); err != nil {
		return err
	}
	for _, id := range missing {
		var r retainedReply
		if _, err := getJSON(tx, bucketReplies, id, &r); err != nil {
			return err
		}
		if err := enterReply(index, id, r.Signer, r.ExpiresAt); err != nil {
			return err
		}
	}
	for id, e := range entered { // of rows that are gone
		if err := dropReply(tx, index, []byte(id), e.end, e.signer); err != nil {
			return err
		}
	}
	return weighReplies(tx, index)
}

// weighReplies counts the bytes of the rows anew: an older version keeps and
// drops rows without counting them.
func weighReplies(tx *bbolt.Tx, index *bbolt.Bucket) error {
	meta, rows := tx.Bucket(bucketMeta), tx.Bucket(bucketReplies)
	var old [][]byte
	c := meta.Cursor()
	for k, _ := c.Seek([]byte(replyBytes)); bytes.HasPrefix(k, []byte(replyBytes)); k, _ = c.Next() {
		old = append(old, bytes.Clone(k))
	}
	for _, k := range old {
		if err := meta.Delete(k); err != nil {
			return err
		}
	}
	weights := map[string]int64{}
	c = index.Cursor()
	for k, signer := c.Seek([]byte{replyByEnd}); len(k) > replyEndAt && k[0] == replyByEnd; k, signer = c.Next() {
		n := int64(len(rows.Get(k[replyEndAt:])))
		weights[replyBytes] += n
		weights[replyBytesOf(nip.PubKey(signer))] += n
	}
	for key, n := range weights {
		if err := putCount(tx, bucketMeta, key, n); err != nil {
			return err
		}
	}
	return nil
}

// countReply keeps the counts that repliesFull reads: of all replies and their
// bytes, and of each signer's.
func countReply(tx *bbolt.Tx, signer nip.PubKey, step int64, bytes int) error {
	for _, c := range []struct {
		key string
		by  int64
	}{{"replies", step}, {replyBytes, int64(bytes)}, {repliesOf(signer), step}, {replyBytesOf(signer), int64(bytes)}} {
		n := getCount(tx, bucketMeta, c.key) + c.by
		if n <= 0 && c.key != "replies" {
			if err := tx.Bucket(bucketMeta).Delete([]byte(c.key)); err != nil {
				return err
			}
			continue
		}
		if err := putCount(tx, bucketMeta, c.key, n); err != nil {
			return err
		}
	}
	return nil
}

const replyBytes = "reply.bytes"

func repliesOf(signer nip.PubKey) string    { return "replies/" + string(signer) }
func replyBytesOf(signer nip.PubKey) string { return replyBytes + "/" + string(signer) }

// repliesFull reports whether a new reply to the signer would not fit, after
// the ended ones left.
func repliesFull(tx *bbolt.Tx, signer nip.PubKey, now int64) (bool, error) {
	full := func() bool {
		return getCount(tx, bucketMeta, "replies") >= maxReplies || getCount(tx, bucketMeta, repliesOf(signer)) >= maxSignerReplies ||
			getCount(tx, bucketMeta, replyBytes) >= maxReplyBytes || getCount(tx, bucketMeta, replyBytesOf(signer)) >= maxSignerReplyBytes
	}
	if !full() {
		return false, nil
	}
	err := pruneReplies(tx, now, maxReplies)
	return full(), err
}
