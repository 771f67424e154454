package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What is used, of a /proc as it might be. MiB, and a limit of 100.
func TestMemoryUsed(t *testing.T) {
	type process struct {
		anon, shared, tables int64
		share, shmem         int64 // of smaps_rollup; -1: it cannot be read
		maps                 string
		led                  bool // its first thread has ended
	}
	memfd := fmt.Sprintf("7f00-7f01 rw-s 0000 %02x:%02x 1029 ", unix.Major(77), unix.Minor(77))
	tmpfs := "7f02-7f03 rw-s 0000 00:99 12 /tmp/file\n"
	for _, r := range []struct {
		name    string
		of      map[string]process
		shm     int64 // held by segments
		msg     int64
		sems    int64 // thousands of semaphores
		atLimit int64 // what is used where that is over the limit; 0: it is not
	}{
		{name: "nothing"},
		{name: "below", of: map[string]process{"2": {anon: 99, share: 99}}},
		{name: "at the limit", of: map[string]process{"2": {anon: 100, share: 100}}},
		{name: "one process", of: map[string]process{"2": {anon: 101, share: 101}}, atLimit: 101},
		{name: "many processes", of: map[string]process{"2": {anon: 40, share: 40}, "3": {anon: 40, share: 40}, "4": {anon: 40, share: 40}}, atLimit: 120},
		{name: "pages shared since a fork count once",
			of: map[string]process{"2": {anon: 80, share: 27}, "3": {anon: 80, share: 27}, "4": {anon: 80, share: 27}}},
		{name: "who hides its shares counts in full", of: map[string]process{"2": {anon: 80, share: 27}, "3": {anon: 80, share: -1}}, atLimit: 107},
		{name: "init does not count", of: map[string]process{"1": {anon: 500, share: 500}, "2": {anon: 10, share: 10}}},
		{name: "no process", of: map[string]process{"self": {anon: 500, share: 500}, "sys": {anon: 500}}},
		{name: "page tables", of: map[string]process{"2": {anon: 10, share: 10, tables: 120}}, atLimit: 130},
		{name: "shared memory", of: map[string]process{"2": {shared: 120, shmem: 120, maps: memfd + "/dev/zero (deleted)\nPss: 122880 kB\n"}}, atLimit: 120},
		{name: "shared memory of several counts once", of: map[string]process{
			"2": {shared: 90, shmem: 45, maps: memfd + "/memfd:x (deleted)\nPss: 46080 kB\n"},
			"3": {shared: 90, shmem: 45, maps: memfd + "/memfd:x (deleted)\nPss: 46080 kB\n"}}},
		{name: "a mapped file of the view counts where it is held", of: map[string]process{"2": {anon: 60, share: 60, shared: 60, shmem: 60,
			maps: tmpfs + "Pss: 61440 kB\n"}}},
		{name: "an attached segment counts where it is held", shm: 60,
			of: map[string]process{"2": {shared: 60, shmem: 60, maps: memfd + "/SYSV00000000 (deleted)\nPss: 61440 kB\n"}}},
		{name: "a detached segment", shm: 101, atLimit: 101},
		{name: "messages", msg: 101, atLimit: 101},
		{name: "semaphores", sems: 2048, atLimit: 125},
		{name: "the first thread has left", of: map[string]process{"2": {anon: 120, share: -1, led: true}}, atLimit: 120},
	} {
		t.Run(r.name, func(t *testing.T) {
			proc := t.TempDir()
			put := func(path, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for name, p := range r.of {
				dir := filepath.Join(proc, name)
				status := fmt.Sprintf("Name:\tx\nPid:\t1999999999\nVmSize:\t %d kB\nRssAnon:\t %d kB\nRssFile:\t 99999999 kB\nRssShmem:\t %d kB\n"+
					"VmPTE:\t %d kB\nThreads:\t2\n", 1<<20, p.anon<<10, p.shared<<10, p.tables<<10)
				if p.led {
					put(dir+"/task/7/status", status)
					put(dir+"/task/3/status", "Pid:\t3\nThreads:\t2\n")
					status = "State:\tZ (zombie)\nPid:\t2\nThreads:\t2\n"
				}
				put(dir+"/status", status)
				rollup := fmt.Sprintf("0-1 ---p 0 00:00 0 [rollup]\nRss: 1 kB\nPss: 999999999 kB\nPss_Anon: %10d kB\nPss_File: 5 kB\nPss_Shmem: %d kB\n",
					p.share<<10, p.shmem<<10)
				if p.share >= 0 {
					put(dir+"/smaps_rollup", rollup)
					put(dir+"/smaps", "0-1 rw-p 0000 00:00 0 \nPss: 99999999 kB\n"+p.maps+"ffff-ffff r-xp 0000 00:00 0 [vdso]\nPss: 9999999 kB\n")
				}
			}
			put(proc+"/sysvipc/shm", fmt.Sprintf(" key shmid size rss swap\n 0 1 999999999 %d %d\n", (r.shm<<20)/2, (r.shm<<20)-(r.shm<<20)/2))
			put(proc+"/sysvipc/msg", fmt.Sprintf(" key msqid cbytes qnum\n 0 1 %d 0\n", r.msg<<20))
			put(proc+"/sysvipc/sem", fmt.Sprintf(" key semid nsems\n 0 1 %d\n", r.sems*1000))
			got := meter{proc: proc, limit: 100 << 20, shared: 77}.used()
			if over := got > 100<<20; over != (r.atLimit > 0) || over && got>>20 != r.atLimit {
				t.Fatalf("used %d MiB", got>>20)
			}
		})
	}
}

// The real one agrees about this process.
func TestShareOfThisProcess(t *testing.T) {
	u := usageOf("/proc/self")
	share := meter{}.shareOf("/proc/self", u)
	if u.total() < 1<<20 || share < u.total()/4 || share > 4*u.total() || u.task != os.Getpid() {
		t.Fatalf("%+v, share %d", u, share)
	}
	if !sameSpace(os.Getpid(), []int{os.Getppid(), unix.Gettid()}) {
		t.Log("kcmp does not tell address spaces here: what vfork shares counts twice")
	}
}
