package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"holdfast/internal/saferead"
)

// checkUploads reads every picture that its row says is whole, and looks whether
// the file of every other holds what was received. A picture may be deleted at
// any time, so one that is gone is no damage; one that is not what it was is.
func (c *Core) checkUploads(report func(path string, ok bool, detail string)) error {
	var rows []uploadRow
	if err := c.db.View(func(tx *bbolt.Tx) error {
		rows = nil
		return eachJSON(tx, bucketUploads, func(_ string, u uploadRow) error {
			rows = append(rows, u)
			return nil
		})
	}); err != nil || len(rows) == 0 {
		return err
	}
	d, err := saferead.OpenDir(filepath.Join(c.home, uploadFolder))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	whole, begun, bad := 0, 0, 0
	for _, u := range rows {
		path := filepath.Join(uploadFolder, u.file())
		switch ok, err := uploadHolds(d, &u); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			bad++
			report(path, false, err.Error())
		case !ok:
			bad++
			report(path, false, "its bytes are not what its digest names; delete it, and the device must send it again")
		case u.CompleteAt != 0:
			whole++
		default:
			begun++
		}
	}
	if bad == 0 {
		report(uploadFolder, true, fmt.Sprintf("%d pictures hold, %d are begun", whole, begun))
	}
	return nil
}

// uploadHolds reports whether the file is as its row says. ErrNotExist: there is
// none, or it is shorter, and the picture begins again.
func uploadHolds(d *saferead.Dir, u *uploadRow) (ok bool, err error) {
	f, err := openUpload(d, u)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if u.CompleteAt == 0 {
		return true, nil
	}
	return u.whole(f)
}
