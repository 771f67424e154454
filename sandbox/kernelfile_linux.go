package sandbox

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Files that the kernel makes up, as those of /proc, never keep a reader
// waiting. Package os would tell its poller of each, and forget it again, by
// more calls than the reading takes.

// readKernel reads a file of the kernel. Its errors are those of os.ReadFile.
func readKernel(path string) ([]byte, error) {
	f, err := openKernel(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(int(f))
	b := make([]byte, 0, 4096)
	for {
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// writeKernel writes a value to a file that the kernel made: none is created.
func writeKernel(path, value string) error {
	f, err := openKernel(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(value))
	if err = errors.Join(err, unix.Close(int(f))); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func openKernel(path string, flags int) (rawFile, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return rawFile(fd), nil
		}
		if err != unix.EINTR {
			return 0, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}
