package owner

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"holdfast/internal/saferead"
)

// OwnerArg is argv[1] of the hidden verb that owns one turn.
const OwnerArg = "owner-of-turn"

const (
	diagnosticName = "owner.diag"
	maxDiagnostic  = 1 << 20 // at a start a longer one is emptied
	ownerPath      = "PATH=/usr/bin:/bin"
)

// Launched is a detached owner process that was started. A start is not an admission: the task's log says whether it
// was admitted.
type Launched struct {
	PID        int
	Diagnostic string          // path of its diagnostics, kept over turns, 0600
	Done       <-chan struct{} // closed when this process has reaped it

	busy bool // written before Done is closed
}

// Busy reports whether the owner found its task or its workspace taken, and so
// wrote nothing: another start may find it free. It is known once Done is closed.
func (l *Launched) Busy() bool { return l.busy }

// Launch re-executes this binary as the owner of one turn: in a session of its own, so that neither a closed terminal
// nor the end of this process reaches it; with a cleared environment, standard input null, and no other descriptor of
// this process. grant is the digest of a blob, or "" to
// run the checks of the turn that ended. The owner outlives its caller; who lives, owner.lock says, not the pid.
func Launch(s *Store, id TaskID, grant Digest) (*Launched, error) {
	exe, err := selfExecutable()
	if err != nil {
		return nil, fmt.Errorf("launch owner: %w", err)
	}
	diag, err := openDiagnostic(s.TaskDir(id))
	if err != nil {
		return nil, fmt.Errorf("launch owner: %w", err)
	}
	defer diag.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("launch owner: %w", err)
	}
	defer null.Close()
	sealDescriptors()
	what := []string{"--grant", string(grant)}
	if grant == "" {
		what = []string{"--checks"}
	}
	cmd := &exec.Cmd{
		Path: exe,
		Args: append([]string{os.Args[0], OwnerArg, "--home", s.Home(), "--task", string(id)}, what...),
		Env:  []string{ownerPath}, Dir: "/",
		Stdin: null, Stdout: diag, Stderr: diag,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("launch owner: %w", err)
	}
	done := make(chan struct{})
	l := &Launched{PID: cmd.Process.Pid, Diagnostic: filepath.Join(s.TaskDir(id), diagnosticName), Done: done}
	go func() {
		cmd.Wait() // to reap it: how the turn ended is in the log, and only that it never began is not
		l.busy = cmd.ProcessState.ExitCode() == exitBusy
		close(done)
	}()
	return l, nil
}

// openDiagnostic opens the file that takes an owner's last words.
func openDiagnostic(dir string) (*os.File, error) {
	d, err := saferead.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	f, err := d.Open(diagnosticName, os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.Size() > maxDiagnostic {
		if err := f.Truncate(0); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}
