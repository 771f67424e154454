package sandbox

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// stageEnv is the whole environment of the stages; the program's own comes
// from the plan. They are short programs: few threads, no collector.
var stageEnv = []string{"GOMAXPROCS=2", "GOGC=off"}

// selfImage is the path by which a stage is executed. It is /proc/self/exe,
// which works also after the file was deleted or replaced. As root the stages
// run as a user who may not be allowed to execute that file: then it is a
// sealed copy in memory, made once and kept for the life of the process.
var selfImage = sync.OnceValues(func() (string, error) {
	const exe = "/proc/self/exe"
	if os.Geteuid() != 0 {
		return exe, nil
	}
	st, err := os.Stat(exe)
	if err != nil {
		return "", fmt.Errorf("look at own binary: %w", err)
	}
	if st.Mode()&0o005 == 0o005 {
		return exe, nil
	}
	src, err := os.Open(exe)
	if err != nil {
		return "", fmt.Errorf("read own binary: %w", err)
	}
	defer src.Close()
	low, err := unix.MemfdCreate("holdfast", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", fmt.Errorf("copy own binary: %w", err)
	}
	defer unix.Close(low)
	// The child lays its inherited descriptors out from 0 on before it executes
	// this one, so it must lie above them. It is never closed.
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, imageFD)
	if err != nil {
		return "", fmt.Errorf("copy own binary: %w", err)
	}
	if _, err := io.Copy(rawFile(fd), src); err != nil {
		return "", fmt.Errorf("copy own binary: %w", err)
	}
	if err := unix.Fchmod(fd, 0o555); err != nil {
		return "", fmt.Errorf("copy own binary: %w", err)
	}
	if err := seal(fd); err != nil {
		return "", err
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
})

// imageFD is above every descriptor that a stage inherits.
const imageFD = initFreeFD

// seal makes a memfd unchangeable for ever.
func seal(fd int) error {
	const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, all); err != nil {
		return fmt.Errorf("seal memory file: %w", err)
	}
	return nil
}

// sealedInput is standard input as a file in memory that nobody can change.
func sealedInput(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make standard input: %w", err)
	}
	w := os.NewFile(uintptr(fd), "stdin")
	defer w.Close()
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("make standard input: %w", err)
	}
	if err := seal(fd); err != nil {
		return nil, err
	}
	// Opened again for reading only, with an offset of its own.
	return os.Open("/proc/self/fd/" + strconv.Itoa(fd))
}
