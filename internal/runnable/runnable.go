// Package runnable writes the programs that tests run.
//
// The kernel refuses to run a file that any process has open for writing
// ("text file busy"), and refuses to open for writing one that runs. A test that
// writes a script with os.WriteFile meets the first when another test of its
// process forks at that moment: the child holds a copy of the descriptor until
// it executes something else. It meets the second when it writes over a program
// that a run has just begun to execute. Both are rare, and both fail a test that
// has nothing wrong with it.
//
// Write avoids the first by the lock that the standard library takes for each
// fork, and the second by a new file that is renamed over the old one. Whoever
// wants the old inode to change writes it by other means, while nothing runs it.
//
// Only tests import it. It may be called from any goroutine. Nothing here is
// durable.
package runnable

import (
	"os"
	"syscall"
)

// Write makes the file at path hold content, with exactly this mode whatever the umask is. What stood there is
// replaced, never written to. It leaves a file beside it, ending in ".new", when it fails.
func Write(path string, content []byte, mode os.FileMode) error {
	next := path + ".new"
	if err := write(next, content, mode); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// write holds the lock that keeps this process from forking as long as the file is open. A reader's hold is enough:
// forks take it for writing.
func write(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
