package commit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/bbolt"
)

// TestMemory: a store in memory keeps what was committed from one Open to the
// next, takes one DB at a time, and answers damage as a file does.
func TestMemory(t *testing.T) {
	o := options
	o.Timeout = 100 * time.Millisecond
	m, err := NewMemory(o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 { // it grows, and is mapped anew
		if err := d.Update(bg, func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			return b.Put(fmt.Append(nil, i), make([]byte, 1<<14))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if second, err := m.Open(); !errors.Is(err, ErrLocked) {
		t.Errorf("two at a time: %v", err)
		second.Close()
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if !has(t, again, fmt.Sprint(i)) {
			t.Errorf("%d is gone", i)
		}
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.file.Truncate(8192); err != nil {
		t.Fatal(err)
	}
	if d, err := m.Open(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("cut short: %v", err)
		d.Close()
	}
}
