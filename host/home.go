package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

const (
	keyFileLimit = 128
	dbKind       = "holdfast-host"
	dbVersion    = 1
)

// homeLock is the flock on host.lock, the authority over a home.
type homeLock struct{ f *flock.Flock }

// lockHome waits at most wait for host.lock. ErrBusy when another host has it.
func lockHome(home string, wait time.Duration) (*homeLock, error) {
	path := filepath.Join(home, "host.lock")
	f := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW), flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	ok, err := f.TryLockContext(ctx, 20*time.Millisecond)
	if errors.Is(err, context.DeadlineExceeded) || (err == nil && !ok) {
		return nil, fmt.Errorf("%w: another holdfast holds %s", ErrBusy, path)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// While this waited, a restored backup may have taken the home's place: the
	// lock is then of the home that was put aside.
	held, err := f.Stat()
	named, nerr := os.Lstat(path)
	if err := errors.Join(err, nerr); err != nil || !os.SameFile(held, named) {
		_ = f.Unlock()
		return nil, fmt.Errorf("%w: %s was replaced meanwhile; try again", ErrBusy, path)
	}
	return &homeLock{f: f}, nil
}

func (l *homeLock) release() { _ = l.f.Unlock() }

// checkHome refuses a home that is a link, belongs to someone else or that
// others can enter. It repairs nothing.
func checkHome(home string) error {
	st, err := os.Lstat(home)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist; run holdfast init or holdfast up", ErrNoHome, home)
	}
	if err != nil {
		return fmt.Errorf("look at home: %w", err)
	}
	sys, _ := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return fmt.Errorf("%w: %s is not a folder of its own", ErrUnsafeHome, home)
	case sys != nil && int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d; use --home with a folder of your own", ErrUnsafeHome, home, sys.Uid)
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: others can open %s; run chmod 700 on it", ErrUnsafeHome, home)
	}
	return nil
}

// Initialised reports whether home holds a store, or what is left of one: a
// home whose host.db was lost must never pass for a new one.
func Initialised(home string) bool {
	_, err := os.Lstat(filepath.Join(home, "host.db"))
	return err == nil || lostStore(home) != ""
}

// lostStore names what a home without host.db holds that only a home with one
// can have made, "" for a home whose first start was cut off.
func lostStore(home string) string {
	for _, name := range []string{"policy.json", "workspaces.json", "secrets.json", filepath.Join("relay", "relay.db")} {
		if _, err := os.Lstat(filepath.Join(home, name)); err == nil {
			return name
		}
	}
	list, err := os.ReadDir(filepath.Join(home, "tasks"))
	if err != nil {
		return ""
	}
	for _, e := range list {
		if e.IsDir() {
			return "tasks"
		}
	}
	return ""
}

// refuseLost stops a home that lost its host.db: a new one would forget every
// device and every command that already ran.
func refuseLost(home string) error {
	if left := lostStore(home); left != "" {
		return fmt.Errorf("%w: host.db is missing, but %s holds %s; put host.db back from a backup, or start over in another home", commit.ErrCorrupt, home, left)
	}
	return nil
}

// Init makes the home, the keys and the stores. owner "" makes an owner key on
// this machine. On a home that has them already it changes nothing and
// succeeds only for the same owner.
//
// The commit point is the first transaction of host.db: before it a repeat of
// Init starts over with the key files that are there, after it the home is
// whole.
func Init(home string, ownerKey nip.PubKey, o Options) error {
	if err := makeHome(home); err != nil {
		return err
	}
	if err := checkHome(home); err != nil {
		return err
	}
	lock, err := lockHome(home, o.lockWait())
	if err != nil {
		return err
	}
	defer lock.release()
	if whole, err := wholeStore(home); err != nil {
		return err
	} else if whole {
		return sameOwner(home, ownerKey, o)
	}
	// Who made the folder may have died before its name was durable.
	if err := atomicfile.SyncName(home); err != nil {
		return fmt.Errorf("make home: %w", err)
	}
	hostKey, err := loadOrMakeKey(filepath.Join(home, "host.key"))
	if err != nil {
		return err
	}
	if ownerKey == "" {
		k, err := loadOrMakeKey(filepath.Join(home, "owner.key"))
		if err != nil {
			return err
		}
		ownerKey = k.Public()
	}
	if ownerKey == hostKey.Public() {
		return errors.New("the owner key must not be the host key")
	}
	store, err := owner.Open(home, owner.Options{Now: o.Now, Create: true})
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	db, err := openDB(home)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Update(context.Background(), func(tx *bbolt.Tx) error {
		for _, b := range hostBuckets {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		if err := (commands.Journal{}).Setup(tx); err != nil {
			return err
		}
		m := tx.Bucket(bucketMeta)
		if err := m.Put([]byte("owner"), []byte(ownerKey)); err != nil {
			return err
		}
		return m.Put([]byte("host"), []byte(hostKey.Public()))
	})
}

// wholeStore reports whether host.db exists and its first transaction was
// committed.
func wholeStore(home string) (bool, error) {
	if !Initialised(home) {
		return false, nil
	}
	db, err := openDB(home)
	if err != nil {
		return false, err
	}
	whole := false
	err = db.View(func(tx *bbolt.Tx) error {
		whole = tx.Bucket(bucketMeta) != nil
		return nil
	})
	return whole, errors.Join(err, db.Close())
}

func openDB(home string) (*commit.DB, error) {
	if _, err := os.Lstat(filepath.Join(home, "host.db")); errors.Is(err, os.ErrNotExist) {
		if err := refuseLost(home); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(home, "host.db")
	db, err := commit.Open(path, commit.Options{Kind: dbKind, Version: dbVersion, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	// Who made the file may have died before its name was durable, and with the
	// name a power cut would take every commit.
	if err := atomicfile.SyncName(path); err != nil {
		return nil, errors.Join(fmt.Errorf("open host.db: %w", err), db.Close())
	}
	return db, nil
}

// makeHome creates home and its parents, home itself for this user alone.
func makeHome(home string) error {
	if _, err := os.Lstat(home); err == nil {
		return nil
	}
	// A power cut after the first receipt must not lose the folder it is in.
	err := atomicfile.MakeAll(filepath.Dir(home), 0o755)
	if err == nil {
		err = atomicfile.MakeAll(home, 0o700)
	}
	if err != nil {
		return fmt.Errorf("make home: %w", err)
	}
	return nil
}

func sameOwner(home string, want nip.PubKey, o Options) error {
	c, err := openLocked(home, o)
	if err != nil {
		return err
	}
	defer c.closeStores()
	if want != "" && want != c.owner {
		return fmt.Errorf("%w: this home belongs to owner %s", ErrOtherOwner, c.owner)
	}
	return nil
}

func loadOrMakeKey(path string) (nip.SecretKey, error) {
	k, err := loadKey(path)
	if !errors.Is(err, os.ErrNotExist) {
		return k, err
	}
	k, err = nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		return k, err
	}
	return k, atomicfile.Write(path, []byte(k.Hex()+"\n"))
}

func loadKey(path string) (nip.SecretKey, error) {
	raw, err := saferead.Read(path, keyFileLimit)
	if err != nil {
		return nip.SecretKey{}, err
	}
	k, err := nip.ParseSecretKey(strings.TrimSpace(string(raw)))
	if err != nil {
		return k, fmt.Errorf("%w: %s does not hold a key", commit.ErrCorrupt, path)
	}
	return k, nil
}

func (o *Options) lockWait() time.Duration {
	if o.LockWait == 0 {
		return 5 * time.Second
	}
	return o.LockWait
}

// OpenCore opens an initialised home under its lock. ErrBusy, ErrNoHome,
// ErrUnsafeHome, and the sentinels of the stores.
func OpenCore(home string, o Options) (*Core, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if err := checkHome(home); err != nil {
		return nil, err
	}
	if !Initialised(home) {
		return nil, fmt.Errorf("%w: %s holds no store; run holdfast init or holdfast up", ErrNoHome, home)
	}
	lock, err := lockHome(home, o.lockWait())
	if err != nil {
		return nil, err
	}
	c, err := openLocked(home, o)
	if err != nil {
		lock.release()
		return nil, err
	}
	c.lock = lock
	if err := c.settleActs(context.Background()); err != nil {
		if fatal(err) {
			return nil, errors.Join(err, c.Close())
		}
		c.log.Error().Err(err).Msg("what a stop had cut off cannot be read; holdfast check names the damage")
	}
	return c, nil
}

// openLocked opens the stores; the caller holds host.lock.
func openLocked(home string, o Options) (*Core, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Launch == nil {
		o.Launch = owner.Launch
	}
	if o.Probe == nil {
		o.Probe = func() (string, []string) { return "", []string{"nothing was probed"} }
	}
	c := &Core{home: home, opts: o, log: o.Log}
	var err error
	if c.key, err = loadKey(filepath.Join(home, "host.key")); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%w: host.key is missing; put it back from a backup, a new key would orphan every device", commit.ErrCorrupt)
		}
		return nil, err
	}
	c.ring, c.passing = nip.NewKeyring(c.key, maxGrants+1), nip.NewKeyring(c.key, 0)
	c.self = c.ring.Public()
	if c.db, err = openDB(home); err != nil {
		return nil, err
	}
	err = c.db.View(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketMeta) == nil {
			return fmt.Errorf("%w: the first start of %s was cut off; run holdfast init or holdfast up", ErrNoHome, home)
		}
		for _, b := range hostBuckets {
			if tx.Bucket(b) == nil {
				return fmt.Errorf("%w: host.db lacks %s", commit.ErrCorrupt, b)
			}
		}
		m := tx.Bucket(bucketMeta)
		c.owner = nip.PubKey(m.Get([]byte("owner")))
		if stored := nip.PubKey(m.Get([]byte("host"))); stored != c.self {
			return fmt.Errorf("%w: host.key is not the key of this host.db; put the right one back", commit.ErrCorrupt)
		}
		return nil
	})
	if err != nil {
		_ = c.db.Close()
		return nil, err
	}
	if c.store, err = owner.Open(home, owner.Options{Now: o.Now}); err != nil {
		_ = c.db.Close()
		return nil, err
	}
	c.eval = &commands.Evaluator{
		DB: tellingDB{c.db, c}, Tasks: taskPort{c}, Now: o.Now,
		Standing: func(tx *bbolt.Tx, s commands.Sender, now int64) bool {
			code, err := c.standing(tx, s, nip.Operate, now)
			return err == nil && code == ""
		},
		Elapsed: o.Elapsed,
		Decided: c.entryDecided,
		Changed: c.entryChanged,
	}
	return c, nil
}

func (c *Core) closeStores() error {
	c.ring.Close()
	return errors.Join(c.store.Close(), c.db.Close())
}

// Close closes the stores and gives up the home.
func (c *Core) Close() error {
	err := c.closeStores()
	if c.lock != nil {
		c.lock.release()
	}
	return err
}
