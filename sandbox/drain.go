//go:build linux || darwin

package sandbox

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drain reads one stream to its end, or until it is told to stop waiting.
func drain(c *capture, which Stream, f *os.File, full chan<- struct{}) {
	buf := make([]byte, chunkBytes)
	add := func(n int) {
		if n > 0 && c.add(which, buf[:n]) {
			select {
			case full <- struct{}{}:
			default:
			}
		}
	}
	for {
		n, err := f.Read(buf)
		add(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return
		}
	}
	// What the dead left in the pipe is taken without waiting, and no more
	// than a pipe can hold: a copy outside might write for ever.
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	f.SetReadDeadline(time.Time{})
	raw.Read(func(fd uintptr) bool {
		for left := maxPipe; left > 0; {
			n, err := (rawFile(fd)).Read(buf)
			if err != nil {
				break
			}
			add(n)
			left -= n
		}
		return true
	})
}

// maxPipe is the most that an ordinary user can make a pipe hold.
const maxPipe = 1 << 20

// rawFile reads and writes a descriptor without the runtime's poller, so that
// a stage opens no descriptors of its own.
type rawFile int

func (f rawFile) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (f rawFile) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := unix.Write(int(f), b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}
