package sandbox

import (
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sizes of the private tmpfs mounts, in bytes. They are memory, and count as
// such; each is at most a part of the turn's limit, so that a program that fills
// one is told that there is no room, and can go on.
const (
	sizeTmp   = 512 << 20
	sizeHome  = 512 << 20
	sizeShm   = 64 << 20
	sizeReply = 1 << 20
	minFiles  = 4096
	maxFiles  = 65_536
)

// room is the size of a tmpfs of a turn with this memory limit: a part of it.
func room(size, memory, part int64) int64 {
	if memory == 0 || !on(layerShared) {
		return size
	}
	return min(size, memory/part)
}

type itemKind uint8

const (
	itemTree  itemKind = iota + 1 // a bind of something of the host
	itemTmpfs                     // a directory of memory
	itemFile                      // a small file with given content
	itemLink                      // a symbolic link
	itemProc                      // the PID namespace's own /proc
)

// item is one thing of the view. The list of items is the whole view: what no
// item names does not exist inside.
type item struct {
	kind   itemKind
	target string // absolute, in the view

	source source // itemTree
	attr   uint64 // itemTree and itemTmpfs: MOUNT_ATTR_*, besides nosuid
	fd     int    // itemTree: the detached mount, once opened

	options []string // itemTmpfs: key=value
	late    bool     // itemTmpfs: made read-only after everything is placed

	data string // itemFile: content; itemLink: where it leads
}

// deviceFiles are the only devices of the view.
var deviceFiles = []string{"null", "zero", "full", "random", "urandom"}

// etcNames are taken from the host's /etc where they exist. Nothing in them is
// about this machine's users or keys; passwd, group and hosts are made up.
var etcNames = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives",
	"ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates", "ca-certificates.conf",
	"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted",
	"localtime", "nsswitch.conf", "protocols", "services", "mime.types", "gai.conf", "os-release",
}

// common lists what every view on this ground shows, parents before children.
func (g ground) common() []item {
	var items []item
	for _, root := range systemRoots {
		items = append(items, hostItem(root, 0)...)
	}
	names := etcNames
	if g.hostNet {
		// Without these, the network that was granted cannot be used by name.
		names = append(names[:len(names):len(names)], "resolv.conf", "hosts")
	}
	for _, name := range names {
		items = append(items, hostItem("/etc/"+name, unix.MOUNT_ATTR_NOEXEC)...)
	}
	items = append(items,
		item{kind: itemFile, target: "/etc/passwd", data: "root:x:0:0:root:/:/usr/sbin/nologin\n" +
			"agent:x:1000:1000:agent:" + homeDir + ":/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"},
		item{kind: itemFile, target: "/etc/group", data: "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"})
	if !g.hostNet {
		items = append(items, item{kind: itemFile, target: "/etc/hosts",
			data: "127.0.0.1 localhost " + hostName + "\n::1 localhost\n"})
	}
	items = append(items,
		tmpfs("/dev", 64<<10, "0755", true),
		tmpfs("/dev/shm", room(sizeShm, g.memory, 4), "1777", false),
		tmpfs(homeDir, room(sizeHome, g.memory, 2), "0700", false),
		item{kind: itemProc, target: "/proc"},
		item{kind: itemLink, target: "/dev/fd", data: "/proc/self/fd"},
		item{kind: itemLink, target: "/dev/stdin", data: "/proc/self/fd/0"},
		item{kind: itemLink, target: "/dev/stdout", data: "/proc/self/fd/1"},
		item{kind: itemLink, target: "/dev/stderr", data: "/proc/self/fd/2"})
	if on(layerView) {
		items = append(items, tmpfs(tmpDir, room(sizeTmp, g.memory, 2), "1777", false))
	} else {
		for _, dir := range []string{tmpDir, "/home", "/root", "/var"} {
			items = append(items, hostItem(dir, 0)...)
		}
	}
	for _, name := range deviceFiles {
		items = append(items, item{kind: itemTree, target: "/dev/" + name,
			source: source{Path: exact("/dev/" + name)}, attr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC})
	}
	return ordered(items)
}

// own lists what the view of a plan shows besides. None of it contains anything
// common, apart from names of /etc, which then stand where the host has them.
func (p plan) own(history []byte) []item {
	var items []item
	if p.History {
		items = append(items, item{kind: itemFile, target: historyPath, data: string(history)})
	}
	if p.Reply > 0 {
		items = append(items, tmpfs(replyDir, sizeReply, "0700", false))
	}
	for _, s := range p.Sources {
		attr := uint64(unix.MOUNT_ATTR_NODEV)
		if !s.Write && on(layerReadOnly) {
			attr |= unix.MOUNT_ATTR_RDONLY
		}
		items = append(items, item{kind: itemTree, target: string(s.Path), source: s, attr: attr, fd: s.FD})
	}
	for _, dir := range p.Cover {
		items = append(items, tmpfs(string(dir), 4<<10, "0755", true))
	}
	return ordered(items)
}

// ordered puts parents before children.
func ordered(items []item) []item {
	sort.SliceStable(items, func(i, j int) bool { return items[i].target < items[j].target })
	return items
}

// tmpfs has one file for 8 KiB: many small files are bounded as a large one is.
func tmpfs(target string, size int64, mode string, late bool) item {
	files := min(max(size/(8<<10), minFiles), maxFiles)
	return item{kind: itemTmpfs, target: target, late: late, attr: unix.MOUNT_ATTR_NODEV,
		options: []string{"size", strconv.FormatInt(size, 10), "mode", mode, "nr_inodes", strconv.FormatInt(files, 10)}}
}

// hostItem takes one path of the host as it is: nothing, a bind, or a link that
// leads to the same place. A link out of /usr is followed once, here, and its
// content copied, so that nothing else of its directory comes along.
func hostItem(path string, attr uint64) []item {
	st, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	if st.Mode()&os.ModeSymlink == 0 {
		if !st.IsDir() && !st.Mode().IsRegular() {
			return nil
		}
		return []item{{kind: itemTree, target: path, source: source{Path: exact(path), Dir: st.IsDir()},
			attr: attr | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV}}
	}
	link, err := os.Readlink(path)
	if err != nil {
		return nil
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if !strings.HasPrefix(path, "/etc/") || within(resolved, "/usr") {
		if strings.HasPrefix(path, "/etc/") {
			link = resolved
		}
		return []item{{kind: itemLink, target: path, data: link}}
	}
	st, err = os.Stat(resolved)
	if err != nil || !st.Mode().IsRegular() || st.Size() > 1<<20 {
		return nil
	}
	content, err := os.ReadFile(resolved)
	if err != nil {
		return nil
	}
	return []item{{kind: itemFile, target: path, data: string(content)}}
}
