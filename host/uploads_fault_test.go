package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/diskfault"
	"holdfast/internal/diskfault/faulttest"
	"holdfast/nip"
)

// TestEveryFaultOfAnUpload fails every call on the way of two pictures, one of
// which is not what its digest names, and of the tidying after a revocation:
// what was answered as received is there, a whole picture is the device's bytes,
// one that does not hold leaves no row, and in the end no file without a row.
func TestEveryFaultOfAnUpload(t *testing.T) {
	faulttest.Loop{Least: 40, Sample: 30}.Run(t, func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (string, int) {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		r := newRigIn(t, dir)
		phone, tablet := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
		r.h.crew.Wait()
		u := &faultUpload{rig: r, disk: disk}
		disk.Begin(dir, plan)
		whole := picture(t, 3000)
		held := int64(0)
		for _, end := range []int{1000, 2000, 3000} {
			held = u.bring(phone, part(whole, int(held), end), held)
		}
		bad := part(whole, 0, 500)
		bad.Size, bad.Digest = 500, nip.DigestOf([]byte("another"))
		u.spoil(phone, bad)
		u.bring(tablet, part(whole, 0, 1000), 0)
		u.try("revoke", func() error { _, err := r.c.Revoke(t.Context(), tablet.pub(), false); return err })
		u.try("tidy", func() error { return r.h.tidyUploads(t.Context()) })
		calls, _ := disk.End()
		u.reopen()
		if n, m := len(r.files()), r.rows(bucketUploads); n != 1 || m != 1 {
			t.Errorf("%d files and %d rows are left", n, m)
		}
		raw, err := os.ReadFile(filepath.Join(r.home, uploadFolder, r.files()[0]))
		if err != nil || !bytes.Equal(raw, whole) {
			t.Errorf("the file is not the picture: %v", err)
		}
		r.wantCode(r.withImages(phone, imageOf(whole)), nip.Unsupported) // whole, and no task takes one
		var told string
		if err := r.c.db.View(func(tx *bbolt.Tx) error {
			list, _, err := r.c.journal.Page(tx, commands.Filter{Limit: 1000, Outcome: commands.OutcomeApplied})
			for _, e := range list {
				if e.Key.Kind == "artifact.put" {
					told += fmt.Sprintln(e.Key.Kind, e.Outcome)
				}
			}
			_, cerr := r.c.journal.Check(tx)
			return errors.Join(err, cerr)
		}); err != nil {
			t.Error(err)
		}
		r.close()
		return told, calls
	})
}

// faultUpload is a rig whose disk fails.
type faultUpload struct {
	*rig
	disk *diskfault.Disk
}

func (u *faultUpload) reopen() {
	u.t.Helper()
	u.h.Wait(0)
	u.c.Close() // of a store that may be poisoned
	if err := u.disk.Revive(); err != nil {
		u.t.Fatal(err)
	}
	u.open()
}

// try carries a step out, and again by a new process where the disk failed.
func (u *faultUpload) try(what string, fn func() error) {
	u.t.Helper()
	err := fn()
	if call, _ := u.disk.Struck(); err != nil && call != "" {
		u.reopen()
		err = fn()
	}
	if err != nil {
		u.t.Fatalf("%s: %v", what, err)
	}
}

// send is one request with its answer; an error is what ends a host, or silence.
func (u *faultUpload) send(d device, op nip.ArtifactPut) (p nip.Reply, err error) {
	u.t.Helper()
	if err := u.h.receive(u.t.Context(), u.sealed(d, u.req(d, op))); err != nil {
		return p, err
	}
	if out := u.queued(); len(out) == 1 {
		p = u.read(d, out[0])
	}
	if c := code(p); p.Outcome == nil && (c == "" || c == nip.Unavailable) {
		return p, fmt.Errorf("answered %q", c)
	}
	return p, nil
}

// bring sends a piece until it is answered, and returns how far the picture is:
// never less than what an earlier answer said.
func (u *faultUpload) bring(d device, op nip.ArtifactPut, held int64) (received int64) {
	u.t.Helper()
	u.try(fmt.Sprint("piece at ", op.Offset), func() error {
		p, err := u.send(d, op)
		if err != nil {
			return err
		}
		got, ok := p.Outcome.(nip.ArtifactProgress)
		if !ok || got.Received < held || got.Received < op.Offset+int64(len(op.Data)) {
			return fmt.Errorf("%+v %v, and %d bytes were there", p.Outcome, p.Refusal, held)
		}
		received = got.Received
		return nil
	})
	return received
}

// spoil sends a picture that is not what its digest names.
func (u *faultUpload) spoil(d device, op nip.ArtifactPut) {
	u.t.Helper()
	u.try("a picture that does not hold", func() error {
		p, err := u.send(d, op)
		if err == nil && code(p) != nip.Conflict {
			err = fmt.Errorf("%+v %v", p.Outcome, p.Refusal)
		}
		return err
	})
}
