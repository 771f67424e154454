package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"go.etcd.io/bbolt"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
)

// bucketUploads is made by its first row, and empty until then.
var bucketUploads = []byte("uploads") // device, digest -> uploadRow

// How much pictures may take. A picture counts with its declared size from its
// first piece on, so that what was begun can be finished.
const (
	uploadFolder      = "uploads"
	maxUploads        = 128
	maxDeviceUploads  = 16
	maxUploadBytes    = 256 << 20
	maxDeviceBytes    = 64 << 20
	unfinishedSeconds = 86_400  // after the first piece
	finishedSeconds   = 172_800 // after the last; no task takes pictures, so none is kept for one
)

// uploadRow is one picture of one device. Received counts the bytes that are
// synced in its file; what lies behind them there is of a piece that was cut off
// and is written over.
type uploadRow struct {
	Device     nip.PubKey `json:"device"`
	Digest     nip.Digest `json:"digest"`
	MediaType  string     `json:"media_type"`
	Size       int64      `json:"size"`
	Received   int64      `json:"received"`
	BegunAt    int64      `json:"begun_at"`
	CompleteAt int64      `json:"complete_at,omitempty"` // the whole had its digest; 0 before
}

func (u *uploadRow) key() string { return string(u.Device) + "/" + string(u.Digest) }

// file is the name in the folder: device and digest, each 64 hex.
func (u *uploadRow) file() string {
	return string(u.Device) + "." + strings.TrimPrefix(string(u.Digest), "sha256:")
}

var uploadName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{64}\.[0-9a-f]{64}$`)
})

// over reports that the row's time has ended, and with it what it says.
func (u *uploadRow) over(now int64) bool {
	if u.CompleteAt != 0 {
		return now >= u.CompleteAt+finishedSeconds
	}
	return now >= u.BegunAt+unfinishedSeconds
}

func (u *uploadRow) progress() nip.ArtifactProgress {
	return nip.ArtifactProgress{Digest: u.Digest, Received: u.Received, Complete: u.CompleteAt != 0}
}

// uploadRoom reports whether a new picture fits beside those that still count.
func uploadRoom(tx *bbolt.Tx, u *uploadRow, now int64) (bool, error) {
	n, mine := 1, 1
	all, own := u.Size, u.Size
	err := eachJSON(tx, bucketUploads, func(key string, other uploadRow) error {
		if key == u.key() || other.over(now) {
			return nil
		}
		n, all = n+1, all+other.Size
		if other.Device == u.Device {
			mine, own = mine+1, own+other.Size
		}
		return nil
	})
	return n <= maxUploads && mine <= maxDeviceUploads && all <= maxUploadBytes && own <= maxDeviceBytes, err
}

// openUploads opens the folder and makes it where it is absent.
func openUploads(home string) (*saferead.Dir, error) {
	d, err := saferead.OpenDir(home)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	up, err := d.OpenDir(uploadFolder)
	if !errors.Is(err, os.ErrNotExist) {
		return up, err
	}
	if err := d.Mkdir(uploadFolder); err != nil {
		return nil, err
	}
	if err := d.Sync(); err != nil {
		return nil, err
	}
	return d.OpenDir(uploadFolder)
}

// openUpload opens the picture's file, which must hold all that its row counts.
// ErrNotExist says that it does not: somebody took it away.
func openUpload(d *saferead.Dir, u *uploadRow) (atomicfile.File, error) {
	f, err := atomicfile.OS.Open(d, u.file(), os.O_RDWR)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < u.Received {
		err = fmt.Errorf("%s is shorter than what was received: %w", u.file(), os.ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// beginUpload makes the picture's file, empty: what an earlier upload left under
// the name is nothing any more. Its name is synced before a row counts on it.
func beginUpload(d *saferead.Dir, u *uploadRow) (atomicfile.File, error) {
	f, err := atomicfile.OS.Open(d, u.file(), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(0), d.Sync()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// holdsPiece reports whether the file has exactly these bytes at the place.
func holdsPiece(f atomicfile.File, offset int64, data []byte) (bool, error) {
	have := make([]byte, len(data))
	if _, err := f.ReadAt(have, offset); err != nil {
		return false, err
	}
	return bytes.Equal(have, data), nil
}

// whole reports whether the file is, byte for byte, what its digest names.
func (u *uploadRow) whole(f atomicfile.File) (bool, error) {
	sum := sha256.New()
	n, err := io.Copy(sum, io.NewSectionReader(f, 0, u.Size))
	if err != nil {
		return false, err
	}
	return n == u.Size && fmt.Sprintf("sha256:%x", sum.Sum(nil)) == string(u.Digest), nil
}

// uploaded reports whether the device brought every one of these pictures whole,
// as it names them now, and they are still there.
func (c *Core) uploaded(device nip.PubKey, images []nip.Image) (bool, error) {
	for _, img := range images {
		row, known := uploadRow{Device: device, Digest: img.Digest}, false
		if err := c.db.View(func(tx *bbolt.Tx) (err error) {
			known, err = getJSON(tx, bucketUploads, row.key(), &row)
			return err
		}); err != nil {
			return false, err
		}
		if !known || row.CompleteAt == 0 || row.over(c.now()) || row.Size != img.Size || row.MediaType != img.MediaType {
			return false, nil
		}
		d, err := openUploads(c.home)
		if err != nil {
			return false, err
		}
		f, err := openUpload(d, &row)
		d.Close()
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if err := f.Close(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// dropUploads removes a device's rows, in the commit that revokes it. Their
// files go with the next round of tidyUploads.
func dropUploads(tx *bbolt.Tx, device nip.PubKey) error {
	return dropUploadRows(tx, func(u *uploadRow) bool { return u.Device == device })
}

func dropUploadRows(tx *bbolt.Tx, gone func(*uploadRow) bool) error {
	var keys []string
	if err := eachJSON(tx, bucketUploads, func(key string, u uploadRow) error {
		if gone(&u) {
			keys = append(keys, key)
		}
		return nil
	}); err != nil {
		return err
	}
	for _, key := range keys {
		if err := tx.Bucket(bucketUploads).Delete([]byte(key)); err != nil {
			return err
		}
	}
	return nil
}

// tidyUploads removes the rows whose time is over and then every file that no
// row counts on: of those rows, of a revoked device, and of a first piece that a
// stop cut off. Rows go first, so that a crash in between leaves a file without
// a row, which the next round removes, and never a row without a file.
func (h *Host) tidyUploads(ctx context.Context) error {
	h.uploading.Lock()
	defer h.uploading.Unlock()
	if _, err := os.Lstat(filepath.Join(h.home, uploadFolder)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	keep := map[string]bool{}
	now, over := h.now(), false
	if err := h.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketUploads, func(_ string, u uploadRow) error {
			if u.over(now) {
				over = true
			} else {
				keep[u.file()] = true
			}
			return nil
		})
	}); err != nil {
		return err
	}
	if over {
		if err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
			return dropUploadRows(tx, func(u *uploadRow) bool { return u.over(now) })
		}); err != nil {
			return err
		}
	}
	d, err := openUploads(h.home)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Names()
	for _, name := range names {
		if uploadName().MatchString(name) && !keep[name] {
			err = errors.Join(err, d.Remove(name))
		}
	}
	return err
}
