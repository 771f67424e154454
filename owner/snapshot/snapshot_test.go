package snapshot

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func folder(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func take(t testing.TB, dir string, o Options) *Tree {
	t.Helper()
	o.At = time.Now()
	tree, err := Take(context.Background(), dir, o)
	must(t, err)
	return tree
}

// whole takes a snapshot that must be complete.
func whole(t testing.TB, dir string, o Options) *Tree {
	t.Helper()
	tree := take(t, dir, o)
	if !tree.Complete() {
		t.Fatalf("faults: %v", tree.Faults)
	}
	return tree
}

// wantFault fails unless the tree is incomplete for this reason, and so has no digest.
func wantFault(t *testing.T, tree *Tree, path, why string) {
	t.Helper()
	if tree.Complete() || tree.Digest() != "" {
		t.Fatal("a tree with a fault counts as complete")
	}
	if !slices.ContainsFunc(tree.Faults, func(f Fault) bool { return f.Path == path && strings.Contains(f.Why, why) }) {
		t.Fatalf("faults %v; want %q: %s", tree.Faults, path, why)
	}
}

// sample has every kind, and names whose order differs between bytes and components.
func sample(t *testing.T) string {
	dir := folder(t)
	write(t, dir+"/a/b", "inner")
	write(t, dir+"/a.txt", "outer")
	write(t, dir+"/a/c/deep", "deep")
	write(t, dir+"/run", "#!/bin/sh\n")
	must(t, os.Chmod(dir+"/run", 0o755))
	write(t, dir+"/empty", "")
	write(t, dir+"/new\nline", "x")
	write(t, dir+"/not\xffutf8", "x")
	must(t, os.Mkdir(dir+"/hollow", 0o700))
	must(t, os.Symlink("a/b", dir+"/link"))
	must(t, os.Symlink("/nowhere", dir+"/dangling"))
	must(t, syscall.Mkfifo(dir+"/pipe", 0o600))
	return dir
}

func TestTreeIsInTheOrderOfBytes(t *testing.T) {
	tree := whole(t, sample(t), Options{})
	var got []string
	for _, e := range tree.Entries {
		got = append(got, e.Path)
	}
	want := []string{"a", "a.txt", "a/b", "a/c", "a/c/deep", "dangling", "empty", "hollow", "link", "new\nline", "not\xffutf8", "pipe", "run"}
	if !slices.Equal(got, want) {
		t.Fatalf("paths %q, want %q", got, want)
	}
	if !slices.IsSorted(got) {
		t.Fatal("not sorted by bytes")
	}
}

func TestDigestIsOfContentAlone(t *testing.T) {
	a, b := sample(t), sample(t)
	old := time.Unix(1_000_000_000, 0)
	must(t, os.Chtimes(b+"/a/b", old, old))
	must(t, os.Chmod(b+"/a/b", 0o600))
	if one, two := whole(t, a, Options{}).Digest(), whole(t, b, Options{}).Digest(); one != two || len(one) != 64 {
		t.Fatalf("equal trees are %s and %s", one, two)
	}
}

// TestDigestIsFixed holds the encoding: a digest in a log must mean the same for ever.
func TestDigestIsFixed(t *testing.T) {
	const want = "830e652d95980666258a83bbace043f17c5a3618d060f63c4a7c9a74a89ae2a1"
	if got := whole(t, sample(t), Options{Exclude: []string{".git"}}).Digest(); got != want {
		t.Fatalf("digest %s, want %s", got, want)
	}
}

func TestEveryChangeShows(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(t *testing.T, dir string)
	}{
		{"content of the same length", func(t *testing.T, d string) { write(t, d+"/a/b", "INNER") }},
		{"a file more", func(t *testing.T, d string) { write(t, d+"/z", "") }},
		{"a file less", func(t *testing.T, d string) { must(t, os.Remove(d+"/empty")) }},
		{"an empty folder more", func(t *testing.T, d string) { must(t, os.Mkdir(d+"/z", 0o755)) }},
		{"executable", func(t *testing.T, d string) { must(t, os.Chmod(d+"/a.txt", 0o755)) }},
		{"renamed", func(t *testing.T, d string) { must(t, os.Rename(d+"/a.txt", d+"/b.txt")) }},
		{"a link elsewhere", func(t *testing.T, d string) {
			must(t, os.Remove(d+"/link"))
			must(t, os.Symlink("a/c", d+"/link"))
		}},
		{"a file in place of a link, with the link's text", func(t *testing.T, d string) {
			must(t, os.Remove(d+"/link"))
			write(t, d+"/link", "a/b")
		}},
		{"a folder in place of a file", func(t *testing.T, d string) {
			must(t, os.Remove(d+"/empty"))
			must(t, os.Mkdir(d+"/empty", 0o755))
		}},
		{"another special file", func(t *testing.T, d string) {
			must(t, os.Remove(d+"/pipe"))
			must(t, syscall.Mknod(d+"/pipe", syscall.S_IFSOCK|0o600, 0))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := sample(t)
			first := whole(t, dir, Options{})
			row.change(t, dir)
			if second := whole(t, dir, Options{Cache: first.Cache()}); second.Digest() == first.Digest() {
				t.Fatal("the digest stayed")
			}
		})
	}
}

func TestExclusionIsPinned(t *testing.T) {
	dir := sample(t)
	plain := whole(t, dir, Options{}).Digest()
	without := whole(t, dir, Options{Exclude: []string{".git"}})
	if without.Digest() == plain {
		t.Fatal("a tree seen without something has the digest of one seen whole")
	}
	write(t, dir+"/.git/HEAD", "x")
	write(t, dir+"/a/.git", "nested")
	again := whole(t, dir, Options{Exclude: []string{".git"}})
	if len(again.Entries) != len(without.Entries)+1 {
		t.Fatal("what is not to be seen is the .git of the root, and no other")
	}
}

// TestChangeWhileReading has something happen between a listing and the opening of what it named.
func TestChangeWhileReading(t *testing.T) {
	for _, row := range []struct {
		name, at, path string
		do             func(t *testing.T, dir string)
	}{
		{"a file grows", "d/f", "d/f", func(t *testing.T, dir string) { write(t, dir+"/d/f", "much more") }},
		{"a file is replaced by a link", "d/f", "d/f", func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/d/f"))
			must(t, os.Symlink("/etc/passwd", dir+"/d/f"))
		}},
		{"a file is replaced by a pipe", "d/f", "d/f", func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/d/f"))
			must(t, syscall.Mkfifo(dir+"/d/f", 0o600))
		}},
		{"a file goes", "d/f", "d/f", func(t *testing.T, dir string) { must(t, os.Remove(dir+"/d/f")) }},
		{"its folder becomes a link to the same content", "d/f", "d/f", func(t *testing.T, dir string) {
			must(t, os.Rename(dir+"/d", dir+"/e"))
			must(t, os.Symlink("e", dir+"/d"))
		}},
		{"a folder becomes a link", "d", "d", func(t *testing.T, dir string) {
			must(t, os.Rename(dir+"/d", dir+"/e"))
			must(t, os.Symlink("/etc", dir+"/d"))
		}},
		{"a folder becomes another", "d", "d", func(t *testing.T, dir string) {
			must(t, os.Rename(dir+"/d", dir+"/e"))
			must(t, os.Mkdir(dir+"/d", 0o755))
		}},
		{"a name is added to a listed folder", "d/f", "d", func(t *testing.T, dir string) { write(t, dir+"/d/g", "late") }},
	} {
		for _, by := range []string{"openat2", "chain"} {
			if by == "chain" && runtime.GOOS != "linux" {
				continue // the other one is not there
			}
			t.Run(row.name+" by "+by, func(t *testing.T) {
				defer useChain(by == "chain")()
				dir := folder(t)
				write(t, dir+"/d/f", "text")
				done := false
				tree := take(t, dir, Options{seen: func(path string) {
					if path == row.at && !done {
						done = true
						row.do(t, dir)
					}
				}})
				wantFault(t, tree, row.path, changed)
			})
		}
	}
}

func TestLimitsAreFaults(t *testing.T) {
	for _, row := range []struct {
		name string
		l    func(*Limits)
		path string
		why  string
	}{
		{"entries", func(l *Limits) { l.Entries = 3 }, "", "more than 3 entries"},
		{"bytes", func(l *Limits) { l.Bytes = 10 }, "", "more than 10 bytes"},
		{"depth", func(l *Limits) { l.Depth = 1 }, "a/c", "more than 1 folders"},
		{"path", func(l *Limits) { l.Path = 7 }, "a/c/dee", "a path of more than 7 bytes"},
		{"link", func(l *Limits) { l.Target = 3 }, "dangling", "a link of more than 3 bytes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := Bounds
			row.l(&l)
			wantFault(t, take(t, sample(t), Options{Limits: l}), row.path, row.why)
		})
	}
	t.Run("nothing is a fault at the bound itself", func(t *testing.T) {
		dir := folder(t)
		write(t, dir+"/d/f", "12345")
		whole(t, dir, Options{Limits: Limits{Entries: 2, Bytes: 5, Depth: 1, Path: 3, Target: 1, Faults: 1}})
	})
	t.Run("faults", func(t *testing.T) {
		l := Bounds
		l.Path, l.Faults = 1, 2
		if tree := take(t, sample(t), Options{Limits: l}); len(tree.Faults) != 2 {
			t.Fatalf("%d faults", len(tree.Faults))
		}
	})
	t.Run("time", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		tree, err := Take(ctx, sample(t), Options{At: time.Now()})
		must(t, err)
		wantFault(t, tree, "", "called off")
	})
}

func TestUnreadableIsAFault(t *testing.T) {
	dir := folder(t)
	write(t, dir+"/secret", "x")
	must(t, os.Chmod(dir+"/secret", 0))
	if os.Geteuid() == 0 {
		whole(t, dir, Options{}) // root may read everything
		return
	}
	wantFault(t, take(t, dir, Options{}), "secret", "may not be read")
}

func TestRootOverALinkIsRefused(t *testing.T) {
	dir := folder(t)
	write(t, dir+"/real/in/f", "x")
	must(t, os.Symlink("real", dir+"/link"))
	for _, by := range []string{"openat2", "chain"} {
		restore := useChain(by == "chain")
		for _, path := range []string{dir + "/link", dir + "/link/in", dir + "/none", dir + "/real/in/f", "relative", dir + "/real/../real"} {
			if tree, err := Take(context.Background(), path, Options{}); err == nil {
				t.Errorf("%s: %s gave %v", by, path, tree.Entries)
			}
		}
		restore()
	}
}

// planted is the cache of a tree in which the file's digest is a lie, so that a test sees whether it is believed.
func planted(t *testing.T, tree *Tree, at int64) *Cache {
	t.Helper()
	c := tree.Cache()
	c.at = at
	for i := range 32 {
		c.records[40+i] = 0xEE
	}
	return c
}

func TestCacheRacyEntriesAreRead(t *testing.T) {
	dir := folder(t)
	write(t, dir+"/f", "text")
	honest := whole(t, dir, Options{})
	born := honest.Entries[0].stamp.ctime
	slack := int64(fineSlack)
	if born%1e9 == 0 {
		slack = coarseSlack
	}
	for _, row := range []struct {
		name   string
		at     int64
		reread int
	}{
		{"written in the cache's own moment", born, 1},
		{"written within the clock's tick before it", born + slack, 1},
		{"written before", born + slack + 1, 0},
		{"written after", born - 1, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			tree := whole(t, dir, Options{Cache: planted(t, honest, row.at)})
			if tree.Reread != row.reread {
				t.Fatalf("read %d files, want %d", tree.Reread, row.reread)
			}
			if believed := tree.Digest() != honest.Digest(); believed != (row.reread == 0) {
				t.Fatalf("believed: %v", believed)
			}
		})
	}
}

func TestCacheFollowsEveryPartOfTheStamp(t *testing.T) {
	dir := folder(t)
	write(t, dir+"/f", "text")
	old := time.Unix(1_000_000_000, 5)
	first := whole(t, dir, Options{})
	later := first.at + int64(time.Hour)
	for _, row := range []struct {
		name   string
		change func()
	}{
		{"size", func() { write(t, dir+"/f", "longer text") }},
		{"change time, the modification time put back", func() {
			write(t, dir+"/f", "TEXT")
			must(t, os.Chtimes(dir+"/f", old, old))
		}},
		{"inode, everything else the same length", func() {
			write(t, dir+"/g", "text")
			must(t, os.Rename(dir+"/g", dir+"/f"))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			write(t, dir+"/f", "text")
			must(t, os.Chtimes(dir+"/f", old, old))
			c := planted(t, whole(t, dir, Options{}), later)
			row.change()
			if tree := whole(t, dir, Options{Cache: c}); tree.Reread != 1 {
				t.Fatal("a changed file was not read")
			}
		})
	}
}

func TestCacheRoundTrip(t *testing.T) {
	dir := sample(t)
	must(t, os.Link(dir+"/a/b", dir+"/second"))
	tree := whole(t, dir, Options{})
	c := tree.Cache()
	c.at += int64(time.Hour) // as if nothing was written lately
	again := whole(t, dir, Options{Cache: ParseCache(c.Encode())})
	if again.Reread != 0 || again.Digest() != tree.Digest() {
		t.Fatalf("read %d files, digest %s", again.Reread, again.Digest())
	}
}

func TestCacheBadFileIsIgnored(t *testing.T) {
	dir := sample(t)
	tree := whole(t, dir, Options{})
	c := tree.Cache()
	c.at += int64(time.Hour)
	good := c.Encode()
	reseal := func(b []byte) []byte {
		binary.BigEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		return b
	}
	rows := map[string][]byte{
		"nothing": nil, "another magic": append([]byte("X"), good[1:]...), "one byte more": append(slices.Clone(good), 0),
	}
	newer := slices.Clone(good)
	newer[11] = 2
	rows["a newer version"] = reseal(newer)
	unsorted := slices.Clone(good)
	copy(unsorted[cacheHeader+cacheRecord:], unsorted[cacheHeader:cacheHeader+cacheRecord])
	rows["a record twice"] = reseal(unsorted)
	counted := slices.Clone(good)
	counted[15]++
	rows["another count"] = reseal(counted)
	for i := range good {
		flipped := slices.Clone(good)
		flipped[i] ^= 1
		if len(ParseCache(flipped).records) != 0 || len(ParseCache(good[:i]).records) != 0 {
			t.Fatalf("a cache damaged or cut at byte %d counts", i)
		}
	}
	for name, b := range rows {
		t.Run(name, func(t *testing.T) {
			again := whole(t, dir, Options{Cache: ParseCache(b)})
			if again.Digest() != tree.Digest() || again.Reread == 0 {
				t.Fatal("a bad cache was used")
			}
		})
	}
}

func FuzzParseCache(f *testing.F) {
	dir := folder(f)
	write(f, dir+"/a", "a")
	write(f, dir+"/b", "b")
	tree, err := Take(context.Background(), dir, Options{At: time.Now()})
	must(f, err)
	f.Add(tree.Cache().Encode())
	f.Add([]byte(cacheMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := ParseCache(b)
		if len(c.records) > 0 && string(c.Encode()) != string(b) {
			t.Fatal("a cache that counts is not encoded as it was")
		}
		for _, e := range tree.Entries {
			c.find(e.stamp)
		}
	})
}
