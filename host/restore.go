package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/atomicfile"
	"holdfast/internal/commit"
	"holdfast/internal/saferead"
	"holdfast/nip"
	"holdfast/owner"
)

// Restored says what putting a backup back did.
type Restored struct {
	Home       string         `json:"home"`
	Kept       string         `json:"kept"` // where the home is that was there before; "" without one
	Files      int            `json:"files"`
	Bytes      int64          `json:"bytes"`
	MadeAt     int64          `json:"made_at"`
	RestoredAt int64          `json:"restored_at"`
	Devices    []DeviceEpoch  `json:"devices"`
	Ended      []owner.TaskID `json:"ended"` // tasks whose turn waited in the backup and will not start
}

// DeviceEpoch is a device with its epoch after a restore.
type DeviceEpoch struct {
	Device nip.PubKey `json:"device"`
	Epoch  int64      `json:"epoch"`
}

// restoredCause is what a turn says that waited in a backup.
const restoredCause = "it waited in a backup that was put back; ask again"

// restoredStarts is what a restore adds to the count of starts: more than a host
// has between a backup and its restore, so that presence never goes backwards.
const restoredStarts = 1_000_000

// Restore puts a backup back as home. It is made whole and fenced beside home
// first and takes its name in one step: a crash before that leaves home as it
// was, with a folder .NAME.restore-* beside it that may go; one after it leaves
// the restored home, and the old one under that name or its last. Where a home
// is already, replace must be said; no host may hold it and no turn of it run.
//
// The fence is what keeps a command from running twice, since nobody knows what
// the host did after the backup: no device has standing, what is not decided
// expires, what waited to run ends, no code that is out can be redeemed.
func Restore(ctx context.Context, home, backup string, replace bool, o Options) (out Restored, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	out.Home = home
	f, err := os.Open(backup)
	if err != nil {
		return out, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	defer f.Close()
	there, last, release, err := vacate(home, replace, &o)
	if err != nil {
		return out, err
	}
	defer release()
	if err := atomicfile.MakeAll(filepath.Dir(home), 0o755); err != nil {
		return out, fmt.Errorf("make the folder above the home: %w", err)
	}
	var r [8]byte
	rand.Read(r[:])
	beside := filepath.Join(filepath.Dir(home), "."+filepath.Base(home)+".restore-"+hex.EncodeToString(r[:]))
	if err := os.Mkdir(beside, 0o700); err != nil {
		return out, fmt.Errorf("make room for the backup: %w", err)
	}
	placed := false
	defer func() {
		if !placed {
			err = errors.Join(err, os.RemoveAll(beside))
		}
	}()
	d, err := saferead.OpenDir(beside)
	if err != nil {
		return out, err
	}
	head, end, err := unpack(f, d)
	if err = errors.Join(err, d.Close()); err != nil {
		return out, err
	}
	out.Files, out.Bytes, out.MadeAt = end.Files, end.Bytes, head.MadeAt
	if err := fenceHome(ctx, beside, &head, last, o, &out); err != nil {
		return out, err
	}
	if !there {
		if err := renameNew(beside, home); err != nil {
			return out, fmt.Errorf("put the backup in its place: %w", err)
		}
		placed = true
		return out, syncFolder(filepath.Dir(home))
	}
	if err := exchange(beside, home); err != nil {
		return out, fmt.Errorf("put the backup in the place of %s: %w", home, err)
	}
	placed = true
	if err := syncFolder(filepath.Dir(home)); err != nil {
		return out, err
	}
	out.Kept = beside
	kept := home + ".before-" + o.Now().UTC().Format("20060102T150405Z")
	if err := renameNew(beside, kept); err != nil {
		return out, fmt.Errorf("the backup is in its place, the home before it is %s: %w", beside, err)
	}
	out.Kept = kept
	return out, syncFolder(filepath.Dir(home))
}

// vacate looks at what stands where the backup is to go, and holds it: no host
// and no turn may use it until release. last is the time of its journal's last
// record, 0 where that cannot be read.
func vacate(home string, replace bool, o *Options) (there bool, last int64, release func(), err error) {
	none := func() {}
	names, err := os.ReadDir(home)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, 0, none, nil
	case err != nil:
		return false, 0, none, fmt.Errorf("look at home: %w", err)
	case len(names) == 0:
		return false, 0, none, os.Remove(home)
	case !replace:
		return false, 0, none, fmt.Errorf("%w: there is a home at %s already; --replace puts the backup in its place and keeps it beside", ErrUsage, home)
	}
	if err := checkHome(home); err != nil {
		return false, 0, none, err
	}
	lock, err := lockHome(home, o.lockWait())
	if err != nil {
		return false, 0, none, err
	}
	release = lock.release
	owners, err := filepath.Glob(filepath.Join(home, "tasks", "*", "owner.lock"))
	for i := 0; err == nil && i < len(owners); i++ {
		f := flock.New(owners[i], flock.SetFlag(os.O_RDWR))
		free, lerr := f.TryLock()
		switch {
		case lerr != nil:
			err = fmt.Errorf("look whether a turn runs: %w", lerr)
		case !free:
			err = fmt.Errorf("%w: a turn of this home still runs (%s); end it first: holdfast task stop", ErrBusy, filepath.Base(filepath.Dir(owners[i])))
		default:
			_ = f.Unlock()
		}
	}
	if err != nil {
		release()
		return false, 0, none, err
	}
	return true, lastJournalled(home), release, nil
}

// lastJournalled reads how far a home got that is being replaced. It may be
// damaged: that is what backups are for.
func lastJournalled(home string) (at int64) {
	db, err := commit.Open(filepath.Join(home, "host.db"), commit.Options{Kind: dbKind, Version: dbVersion, Timeout: 100 * time.Millisecond, ReadOnly: true})
	if err != nil {
		return 0
	}
	defer db.Close()
	_ = db.View(func(tx *bbolt.Tx) error {
		at = (commands.Journal{}).Last(tx)
		return nil
	})
	return at
}

// fenceHome opens what was unpacked, proves that it is a home and one of the
// backup's host, and fences it.
func fenceHome(ctx context.Context, home string, head *backupHeader, last int64, o Options, out *Restored) error {
	c, err := OpenCore(home, o)
	if err != nil {
		return err
	}
	if c.self != head.Host || c.owner != head.Owner {
		err = backupFault("its keys are not those that it names")
	}
	if err == nil {
		err = c.db.View(func(tx *bbolt.Tx) error {
			_, err := c.journal.Check(tx)
			return err
		})
	}
	if err == nil {
		err = c.fence(ctx, last, out)
	}
	return errors.Join(err, c.Close())
}

// fence makes a home of the past safe to serve. What was cut off in it is
// carried out first, as at any start: its exact bytes were journalled.
func (c *Core) fence(ctx context.Context, last int64, out *Restored) error {
	if err := c.finishAdmitted(ctx); err != nil {
		return err
	}
	err := c.db.Update(ctx, func(tx *bbolt.Tx) error {
		at := max(c.journal.Time(tx, c.now()), last)
		out.RestoredAt, out.Devices = at, []DeviceEpoch{}
		devices, err := c.everyDevice(tx)
		if err != nil {
			return err
		}
		for _, d := range devices {
			epoch, err := c.fenceDevice(tx, d, at)
			if err != nil {
				return err
			}
			if d != c.owner {
				out.Devices = append(out.Devices, DeviceEpoch{d, epoch})
			}
		}
		// A code of the backup's day may have been redeemed since.
		for _, b := range [][]byte{bucketInvitations, bucketEnrollments, bucketUploads} {
			if err := emptyBucket(tx, b); err != nil {
				return err
			}
		}
		if err := putCount(tx, bucketMeta, "generation", getCount(tx, bucketMeta, "generation")+restoredStarts); err != nil {
			return err
		}
		if err := c.journal.SetRestored(tx, at); err != nil {
			return err
		}
		id, err := nip.NewID(rand.Reader)
		if err != nil {
			return err
		}
		return c.journal.Note(tx, c.actKey("backup.restore", id), c.localSender(), "",
			fmt.Sprintf("backup of %s, %d devices fenced", time.Unix(out.MadeAt, 0).UTC().Format(time.RFC3339), len(out.Devices)),
			commands.OutcomeApplied, "", 0, c.now())
	})
	if err != nil {
		return err
	}
	if err := c.evaluateAll(ctx); err != nil {
		return err
	}
	out.Ended, err = c.endWaiting(ctx)
	return err
}

// everyDevice is the owner and every device that the book knows.
func (c *Core) everyDevice(tx *bbolt.Tx) ([]nip.PubKey, error) {
	set := map[nip.PubKey]bool{c.owner: true}
	if err := eachJSON(tx, bucketGrants, func(_ string, rec grantRecord) error {
		set[rec.Grant.Device] = true
		return nil
	}); err != nil {
		return nil, err
	}
	if err := tx.Bucket(bucketEpochs).ForEach(func(k, _ []byte) error {
		set[nip.PubKey(k)] = true
		return nil
	}); err != nil {
		return nil, err
	}
	out := make([]nip.PubKey, 0, len(set))
	for d := range set {
		out = append(out, d)
	}
	slices.Sort(out)
	return out, nil
}

// fenceDevice takes a principal's standing, and what only the past could tell
// it: from then on the host does not claim that a request of it never was. The
// owner has no epoch; its leases, replies and results go all the same.
func (c *Core) fenceDevice(tx *bbolt.Tx, d nip.PubKey, at int64) (epoch int64, err error) {
	if d != c.owner {
		epoch = epochOf(tx, d) + 1
		if err := putCount(tx, bucketEpochs, string(d), epoch); err != nil {
			return 0, err
		}
	}
	for _, drop := range []func(*bbolt.Tx, nip.PubKey) error{dropRepliesOf, dropRecovery, dropOutbox, c.journal.DropLeases} {
		if err := drop(tx, d); err != nil {
			return 0, err
		}
	}
	until := at + clockSkew + recoverySeconds
	if getCount(tx, bucketMeta, forgottenOf(d)) < until {
		err = putCount(tx, bucketMeta, forgottenOf(d), until)
	}
	return epoch, err
}

func emptyBucket(tx *bbolt.Tx, name []byte) error {
	if tx.Bucket(name) == nil {
		return nil
	}
	if err := tx.DeleteBucket(name); err != nil {
		return err
	}
	_, err := tx.CreateBucket(name)
	return err
}

// endWaiting ends every turn that waits for the policy: after the backup it may
// have run. Turns that only a person can start stay.
func (c *Core) endWaiting(ctx context.Context) ([]owner.TaskID, error) {
	ended := []owner.TaskID{}
	ids, err := c.openTasks()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		t, err := c.store.Get(id)
		if err != nil {
			return nil, err
		}
		if t.Status != owner.Queued {
			continue
		}
		var origins []turnOrigin
		if err := c.db.View(func(tx *bbolt.Tx) (err error) {
			origins, err = turnOrigins(tx, id, t.TurnStart())
			return err
		}); err != nil {
			return nil, err
		}
		if len(origins) == 0 {
			continue
		}
		cause := restoredCause
		if _, err := c.store.Append(ctx, id, epochOfTask(&t), owner.Event{NotStarted: &cause}); err != nil {
			return nil, err
		}
		ended = append(ended, id)
	}
	return ended, nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
