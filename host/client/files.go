package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// The files of a profile.
const (
	keyFile     = "device.key"
	hostsFolder = "hosts" // KEY.json: the access record of the host with that key; KEY.owner: the word that this key owns it
	storeFile   = "outbox.db"
	// oldAccessFile is the access record of a profile that knew one host only.
	oldAccessFile = "access.json"
)

// checkFolder refuses a profile that somebody else may read or swap.
func checkFolder(dir string) error {
	d, err := saferead.OpenDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoKey
	}
	if err != nil {
		return fmt.Errorf("open profile: %w", err)
	}
	return d.Close()
}

// readFile reads one private file of the profile, at most limit bytes of it.
func readFile(dir, name string, limit int64) ([]byte, error) {
	b, err := saferead.Read(filepath.Join(dir, name), limit)
	if errors.Is(err, saferead.ErrTooLarge) || errors.Is(err, saferead.ErrUnsafe) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return b, err
}

// writeFile puts a private file in place whole: a crash leaves the old one or
// the new one. It returns after the new name is on disk.
func writeFile(dir, name string, b []byte) error {
	if err := atomicfile.Write(filepath.Join(dir, name), b); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// makeProfile makes the profile's folder, and its name durable before a key is
// kept in it; an earlier run may have died in between.
func makeProfile(dir string) error {
	err := atomicfile.MakeAll(dir, 0o700)
	if has, kerr := hasKey(dir); err == nil && kerr == nil && !has {
		err = atomicfile.SyncName(dir)
	}
	if err != nil {
		return fmt.Errorf("make profile: %w", err)
	}
	return nil
}
