package commit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// TestFlippedBits changes one bit of the structure at a time. Without the check
// of the pages bbolt kills the process for some of them.
func TestFlippedBits(t *testing.T) {
	path := newPath(t)
	d := open(t, path)
	for i := range 100 {
		if err := d.Update(bg, put(fmt.Sprintf("%d-%s", i, strings.Repeat("k", 100)))); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	refused, page := 0, os.Getpagesize()
	for range 250 {
		b := append([]byte(nil), whole...)
		at := rng.IntN(len(b)/page)*page + rng.IntN(128) // headers and elements
		b[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(path, options)
		switch {
		case err == nil: // a page in no use, or the inside of a key or value
			d.Close()
		case errors.Is(err, ErrCorrupt):
			refused++
		default:
			t.Errorf("bit at %d: %v", at, err)
		}
	}
	if refused < 30 {
		t.Errorf("only %d of 250 were refused", refused)
	}
}

// TestPagesOfHealthyStores: whatever the tree went through, its pages pass.
func TestPagesOfHealthyStores(t *testing.T) {
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 7))
		path := newPath(t)
		o := options
		o.noSync = true
		for range 4 {
			d, err := Open(path, o)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for range 25 {
				if err := d.Update(bg, func(tx *bbolt.Tx) error { return churn(tx, rng) }); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// churn puts and deletes keys of many sizes in buckets within buckets.
func churn(tx *bbolt.Tx, rng *rand.Rand) error {
	top, err := tx.CreateBucketIfNotExists(bucket)
	if err != nil {
		return err
	}
	for range 60 {
		b, name := top, fmt.Appendf(nil, "nested-%d", rng.IntN(12))
		if rng.IntN(3) > 0 {
			if rng.IntN(25) == 0 && top.Bucket(name) != nil {
				if err := top.DeleteBucket(name); err != nil {
					return err
				}
			}
			if b, err = top.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		key := fmt.Appendf(nil, "%0*d", 1+rng.IntN(200), rng.IntN(500))
		if rng.IntN(3) == 0 {
			err = b.Delete(key)
		} else {
			err = b.Put(key, make([]byte, rng.IntN(12)*rng.IntN(900)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
