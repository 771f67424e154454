package commit

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Memory is a store's file without a disk, for tests and measurements: the same
// bbolt pages, the same committer, and no sync. What was committed is there
// when it is opened again, and gone with Close. Methods may be called from any
// goroutine.
type Memory struct {
	options Options
	once    sync.Once
	file    *os.File
}

// NewMemory makes an empty file. o is as for Open; ReadOnly is not served.
func NewMemory(o Options) (*Memory, error) {
	if o.Kind == "" {
		panic("commit: Options.Kind is empty")
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	o.ReadOnly, o.noSync = false, true
	f, err := memoryFile()
	if err != nil {
		return nil, fmt.Errorf("store in memory: %w", err)
	}
	m := &Memory{options: o, file: f}
	bolt, err := m.bolt()
	if err == nil {
		err = errors.Join(bolt.Update(func(tx *bbolt.Tx) error { return writeHeader(tx, o) }), bolt.Close())
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("store in memory: %w", err)
	}
	return m, nil
}

// Open opens the store as Open does a file, pages and header checked. One DB
// at a time: a second Open waits for the first one's Close, up to the timeout,
// and returns ErrLocked then.
func (m *Memory) Open() (*DB, error) {
	info, err := m.file.Stat()
	if err == nil {
		err = checkPages(m.file, info.Size())
	}
	if err != nil {
		return nil, fmt.Errorf("open store in memory: %w", err)
	}
	bolt, err := m.bolt()
	if err != nil {
		return nil, fmt.Errorf("open store in memory: %w", err)
	}
	if err := viewHeader(bolt, m.options); err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open store in memory: %w", err)
	}
	return start(bolt, "in memory")
}

// bolt opens the file over a description of its own, so that bbolt's lock
// keeps two of them apart.
func (m *Memory) bolt() (*bbolt.DB, error) {
	bo := boltOptions(m.options, 0)
	bo.NoGrowSync = true
	bo.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return reopen(m.file) }
	bolt, _, err := openGuarded("in memory", bo)
	return bolt, err
}

// Close gives the memory back. A DB that is still open keeps its own.
func (m *Memory) Close() (err error) {
	m.once.Do(func() { err = m.file.Close() })
	return err
}

// reopen is a second description of an open file, found by its number.
func reopen(f *os.File) (*os.File, error) {
	name := fmt.Sprintf("/dev/fd/%d", f.Fd())
	return os.OpenFile(name, os.O_RDWR|unix.O_CLOEXEC, 0)
}
