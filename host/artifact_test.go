package host

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

func picture(t *testing.T, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// part is the piece of a picture from one byte to another.
func part(whole []byte, from, to int) nip.ArtifactPut {
	return nip.ArtifactPut{Digest: nip.DigestOf(whole), MediaType: "image/png", Size: int64(len(whole)), Offset: int64(from), Data: whole[from:to]}
}

func (r *rig) put(d device, op nip.ArtifactPut) nip.ArtifactProgress {
	r.t.Helper()
	p := r.ask(d, op)
	out, ok := p.Outcome.(nip.ArtifactProgress)
	if !ok || !nip.Answers(op, out) {
		r.t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	return out
}

// bring uploads a whole picture.
func (r *rig) bring(d device, whole []byte) {
	r.t.Helper()
	for at := 0; at < len(whole); at += nip.PutChunk {
		end := min(at+nip.PutChunk, len(whole))
		if got := r.put(d, part(whole, at, end)); got.Received != int64(end) || got.Complete != (end == len(whole)) {
			r.t.Fatalf("%+v after %d", got, end)
		}
	}
}

func (r *rig) withImages(d device, images ...nip.Image) nip.Reply {
	r.t.Helper()
	return r.ask(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo", Images: images})
}

func imageOf(whole []byte) nip.Image {
	return nip.Image{Digest: nip.DigestOf(whole), MediaType: "image/png", Size: int64(len(whole)), Name: "a.png"}
}

func (r *rig) files() (names []string) {
	r.t.Helper()
	list, err := os.ReadDir(filepath.Join(r.home, uploadFolder))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil || info.Mode() != 0o600 {
			r.t.Fatalf("%s has mode %v", e.Name(), info.Mode())
		}
		names = append(names, e.Name())
	}
	return names
}

// The codes of artifact.put, and how far each answer says that the picture is.
func TestArtifactPut(t *testing.T) {
	r := newRig(t)
	d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	whole := picture(t, 3000)
	if got := r.put(d, part(whole, 0, 1000)); got.Received != 1000 || got.Complete {
		t.Fatalf("%+v", got)
	}
	wrong, jpeg, longer := part(whole, 0, 1000), part(whole, 1000, 2000), part(whole, 1000, 2000)
	wrong.Data = bytes.Repeat([]byte{7}, 1000)
	jpeg.MediaType = "image/jpeg"
	longer.Size++
	for _, row := range []struct {
		name     string
		from     device
		op       nip.ArtifactPut
		code     nip.Code
		received int64
	}{
		{"the same piece again", d, part(whole, 0, 1000), "", 1000},
		{"a part of it", d, part(whole, 10, 20), "", 1000},
		{"other bytes in its place", d, wrong, nip.Conflict, 0},
		{"beyond what is there", d, part(whole, 2000, 3000), nip.Conflict, 0},
		{"across the end", d, part(whole, 500, 1500), nip.Conflict, 0},
		{"another media type", d, jpeg, nip.Conflict, 0},
		{"another size", d, longer, nip.Conflict, 0},
		{"another device begins at the end", other, part(whole, 1000, 2000), nip.Conflict, 0},
		{"a device without the right", r.pair(nip.Rights{nip.Observe}), part(whole, 0, 1000), nip.MissingRight, 0},
		{"a stranger", device{key: newKey(t)}, part(whole, 0, 1000), nip.Forbidden, 0},
		{"the next", d, part(whole, 1000, 2000), "", 2000},
		{"the first again", d, part(whole, 0, 1000), "", 2000},
		{"the last", d, part(whole, 2000, 3000), "", 3000},
		{"the last again", d, part(whole, 2000, 3000), "", 3000},
		{"other bytes in a whole picture", d, wrong, nip.Conflict, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			in := r.sealed(row.from, r.req(row.from, row.op))
			p := r.one(row.from, in)
			r.wantCode(p, row.code)
			if row.code == "" {
				if got := p.Outcome.(nip.ArtifactProgress); got.Received != row.received || got.Complete != (row.received == 3000) {
					t.Fatalf("%+v", got)
				}
			}
			r.clock.add(5)
			if again := r.give(in); len(again) != 1 || row.name != "a stranger" && r.read(row.from, again[0]).IssuedAt != p.IssuedAt {
				t.Fatal("an exact retry got another answer")
			}
		})
	}
	r.t = t
	raw, err := os.ReadFile(filepath.Join(r.home, uploadFolder, r.files()[0]))
	if err != nil || !bytes.Equal(raw, whole) {
		t.Fatal("the file is not the picture")
	}
	if v := r.journalled("artifact.put"); v != 1 {
		t.Fatalf("%d entries for one picture", v)
	}
}

func (r *rig) journalled(kind string) (n int) {
	r.t.Helper()
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		ts, err := r.c.journal.Transitions(tx, 0, 1<<16)
		for _, x := range ts {
			if x.Key.Kind == kind {
				n++
			}
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// What is whole and not what its digest names is dropped, with a conflict, and
// can be begun again.
func TestArtifactOtherBytes(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	whole, bad := picture(t, 3000), picture(t, 3000)
	r.put(d, part(whole, 0, 2000))
	last := part(whole, 2000, 3000)
	last.Data = bad[2000:]
	r.wantCode(r.ask(d, last), nip.Conflict)
	if len(r.files()) != 0 || r.rows(bucketUploads) != 0 {
		t.Fatal("something of it stays")
	}
	single := part(bad, 0, 3000)
	single.Digest = nip.DigestOf(whole)
	r.wantCode(r.ask(d, single), nip.Conflict)
	r.wantCode(r.withImages(d, imageOf(whole)), nip.Conflict)
	r.wantCode(r.ask(d, part(whole, 2000, 3000)), nip.Conflict)
	r.bring(d, whole)
	r.wantCode(r.withImages(d, imageOf(whole)), nip.Unsupported)
	if n := r.journalled("artifact.put"); n != 3 {
		t.Fatalf("%d entries", n)
	}
}

// task.create: a picture that this device did not bring whole is a conflict,
// before anything else is looked at; one that it did is what no adapter takes.
func TestCreateWithImages(t *testing.T) {
	r := newRig(t)
	d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	first, second := picture(t, 60_000), picture(t, 10)
	r.bring(d, first)
	r.put(d, part(second, 0, 5))
	jpeg, longer := imageOf(first), imageOf(first)
	jpeg.MediaType = "image/jpeg"
	longer.Size++
	for _, row := range []struct {
		name   string
		from   device
		images []nip.Image
		code   nip.Code
	}{
		{"whole", d, []nip.Image{imageOf(first)}, nip.Unsupported},
		{"half", d, []nip.Image{imageOf(second)}, nip.Conflict},
		{"whole and half", d, []nip.Image{imageOf(first), imageOf(second)}, nip.Conflict},
		{"of another device", other, []nip.Image{imageOf(first)}, nip.Conflict},
		{"as another type", d, []nip.Image{jpeg}, nip.Conflict},
		{"as another size", d, []nip.Image{longer}, nip.Conflict},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			r.wantCode(r.withImages(row.from, row.images...), row.code)
		})
	}
	r.t = t
	r.wantCode(r.ask(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "elsewhere", Images: []nip.Image{imageOf(second)}}), nip.Conflict)
	r.restart()
	r.wantCode(r.withImages(d, imageOf(first)), nip.Unsupported)
	if err := os.Remove(filepath.Join(r.home, uploadFolder, (&uploadRow{Device: d.pub(), Digest: nip.DigestOf(first)}).file())); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.withImages(d, imageOf(first)), nip.Conflict) // somebody took the file
	r.wantCode(r.ask(d, part(first, nip.PutChunk, nip.PutChunk+1)), nip.Conflict)
	r.bring(d, first)
	r.wantCode(r.withImages(d, imageOf(first)), nip.Unsupported)
}

// A stop after a piece was synced and before its row counts it: the piece never
// came, and the device's next try, cut another way, writes the same place.
func TestArtifactCutOff(t *testing.T) {
	whole := picture(t, 5000)
	for _, row := range []struct {
		name       string
		held, lost int // bytes that a row counts, and the end of the lost piece
	}{
		{"the first piece", 0, 3000},
		{"a later piece", 2000, 4000},
		{"the last piece", 2000, 5000},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights())
			if row.held > 0 {
				r.put(d, part(whole, 0, row.held))
			}
			folder, err := openUploads(r.home)
			if err != nil {
				t.Fatal(err)
			}
			lost := part(whole, row.held, row.lost)
			if row.lost < len(whole) {
				lost.Data = picture(t, row.lost-row.held)
			}
			k := r.call(r.sealed(d, r.req(d, lost)))
			if _, code, err := r.h.takePiece(folder, k, lost); code != "" || err != nil {
				t.Fatal(code, err)
			}
			folder.Close()
			r.restart()
			r.wantCode(r.withImages(d, imageOf(whole)), nip.Conflict)
			if got := r.put(d, part(whole, row.held, row.held+100)); got.Received != int64(row.held+100) {
				t.Fatalf("%+v", got)
			}
			if got := r.put(d, part(whole, row.held+100, 5000)); !got.Complete {
				t.Fatalf("%+v", got)
			}
		})
	}
}

// Rooms: of a device in pictures and bytes, of all; what ended leaves room.
func TestArtifactBounds(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	begin := func(d device, size int64) nip.Reply {
		return r.ask(d, nip.ArtifactPut{Digest: nip.DigestOf(picture(t, 16)), MediaType: "image/png", Size: size, Data: []byte{1}})
	}
	for range 8 {
		r.wantCode(begin(a, 8<<20), "")
	}
	r.wantCode(begin(a, 2), nip.Bounds) // 64 MiB are spoken for
	for range maxDeviceUploads {
		r.wantCode(begin(b, 2), "")
	}
	r.wantCode(begin(b, 2), nip.Bounds)
	r.clock.add(unfinishedSeconds)
	r.wantCode(begin(a, 8<<20), "")
	plant := func(n int, size int64) {
		r.update(func(tx *bbolt.Tx) error {
			for range n {
				u := uploadRow{Device: nip.PubKey(newID(t)), Digest: nip.DigestOf([]byte(newID(t))), Size: size, BegunAt: r.clock.now()}
				if err := putJSON(tx, bucketUploads, u.key(), u); err != nil {
					return err
				}
			}
			return nil
		})
	}
	plant(30, 8<<20) // with a's one: 248 MiB
	r.wantCode(begin(b, 8<<20), "")
	r.wantCode(begin(b, 2), nip.Bounds)
	r.clock.add(unfinishedSeconds)
	plant(maxUploads-1, 1)
	r.wantCode(begin(b, 2), "")
	r.wantCode(begin(a, 2), nip.Bounds)
}

// Unfinished pictures leave after 24 hours, finished ones after 48, a revoked
// device's with it; a file that no row counts goes too, and nobody else's file.
func TestTidyUploads(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	whole, half, theirs := picture(t, 100), picture(t, 100), picture(t, 100)
	tidy := func(files, rows int) {
		t.Helper()
		if err := r.h.tidyUploads(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, m := len(r.files()), r.rows(bucketUploads); n != files || m != rows {
			t.Fatalf("%d files and %d rows, want %d and %d", n, m, files, rows)
		}
	}
	if err := r.h.tidyUploads(t.Context()); err != nil { // before anything was uploaded
		t.Fatal(err)
	}
	r.put(a, part(half, 0, 50))
	r.clock.add(10)
	r.bring(a, whole)
	r.bring(b, theirs)
	orphan := (&uploadRow{Device: a.pub(), Digest: nip.DigestOf(nil)}).file()
	for _, name := range []string{orphan, "note.txt"} {
		if err := os.WriteFile(filepath.Join(r.home, uploadFolder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tidy(4, 3)
	r.clock.add(unfinishedSeconds - 10)
	tidy(3, 2)
	r.wantCode(r.ask(a, part(half, 50, 100)), nip.Conflict) // it begins again
	if _, err := r.c.Revoke(t.Context(), b.pub(), false); err != nil {
		t.Fatal(err)
	}
	if n := r.rows(bucketUploads); n != 1 {
		t.Fatalf("%d rows after the revocation", n)
	}
	tidy(2, 1)
	r.wantCode(r.withImages(a, imageOf(whole)), nip.Unsupported)
	r.clock.add(finishedSeconds - unfinishedSeconds + 10)
	r.wantCode(r.withImages(a, imageOf(whole)), nip.Conflict)
	tidy(1, 0)
}

// A folder or a file that is not the host's own is not written to.
func TestUnsafeUploads(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	whole := picture(t, 100)
	path := filepath.Join(r.home, uploadFolder)
	if err := os.Symlink(r.repo, path); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(d, part(whole, 0, 50)), nip.Unavailable)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r.put(d, part(whole, 0, 50))
	file := filepath.Join(path, r.files()[0])
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(d, part(whole, 50, 100)), nip.Unavailable)
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(file, filepath.Join(r.repo, "second")); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(d, part(whole, 50, 100)), nip.Unavailable)
	left, err := os.ReadDir(r.repo)
	if err != nil || len(left) != 1 {
		t.Fatal(left, err)
	}
}

// check reads what was uploaded: a changed picture is damage, one that is gone
// or begun is not.
func TestCheckReadsUploads(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	check := func() (out string) {
		t.Helper()
		if err := r.c.checkUploads(func(path string, ok bool, detail string) { out += fmt.Sprintf("%s %v %s\n", path, ok, detail) }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := check(); got != "" {
		t.Errorf("of none it says %q", got)
	}
	whole := bytes.Repeat([]byte("p"), 5000)
	r.bring(d, whole)
	half := bytes.Repeat([]byte("h"), 5000)
	r.put(d, nip.ArtifactPut{Digest: nip.DigestOf(half), MediaType: "image/png", Size: 5000, Data: half[:100]})
	if got := check(); got != "uploads true 1 pictures hold, 1 are begun\n" {
		t.Errorf("it says %q", got)
	}
	u := uploadRow{Device: d.pub(), Digest: nip.DigestOf(whole)}
	path := filepath.Join(r.home, uploadFolder, u.file())
	changed := bytes.Clone(whole)
	changed[4000] ^= 1
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := check(); !strings.Contains(got, u.file()+" false its bytes") {
		t.Errorf("of a changed one it says %q", got)
	}
	found := false
	for _, doc := range r.docs("check", nil) {
		found = found || strings.Contains(fmt.Sprint(doc), u.file())
	}
	if !found {
		t.Error("the verb check does not name it")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := check(); got != "uploads true 0 pictures hold, 1 are begun\n" {
		t.Errorf("of one that is gone it says %q", got)
	}
}
