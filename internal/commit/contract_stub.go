package commit

import (
	"context"
	"time"

	"go.etcd.io/bbolt"
)

// DB is one open store.
type DB struct{}

// Options of Open. Kind is the magic word of the file ("holdfast-host"), Version its format.
type Options struct {
	Kind     string
	Version  uint32
	Timeout  time.Duration // 0 is 1 s
	ReadOnly bool
}

func Open(path string, o Options) (*DB, error)                              { panic("stub") }
func (d *DB) Update(ctx context.Context, fn func(tx *bbolt.Tx) error) error { panic("stub") }
func (d *DB) View(fn func(tx *bbolt.Tx) error) error                        { panic("stub") }
func (d *DB) Poisoned() <-chan struct{}                                     { panic("stub") } // closed at the first failed commit
func (d *DB) Close() error                                                  { panic("stub") }
