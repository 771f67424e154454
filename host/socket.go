package host

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	socketName     = "operator.sock"
	socketPathMax  = 100     // sun_path holds 108; longer ones go through /proc/self/fd
	operatorLine   = 8 << 20 // one request or one answer
	operatorIdle   = 10 * time.Second
	operatorsAtOne = 16
	acceptAgain    = 200 * time.Millisecond
)

// operatorRequest is the one line that a verb sends.
type operatorRequest struct {
	Verb string          `json:"verb"`
	Args json.RawMessage `json:"args"`
}

// operatorAnswer is one line back: data any number of times, then an end or an
// error.
type operatorAnswer struct {
	Data  json.RawMessage `json:"data,omitempty"`
	End   bool            `json:"end,omitempty"`
	Error *OperatorError  `json:"error,omitempty"`
}

// OperatorError is a verb's failure as it crossed the socket.
type OperatorError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *OperatorError) Error() string { return e.Message }

// socketAddress returns a path that fits a socket address, and a release for
// the descriptor behind it.
func socketAddress(home string) (string, func(), error) {
	path := filepath.Join(home, socketName)
	if len(path) <= socketPathMax {
		return path, func() {}, nil
	}
	dir, err := os.Open(home)
	if err != nil {
		return "", nil, fmt.Errorf("open home: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName), func() { dir.Close() }, nil
}

// ServeOperator answers verbs on HOME's operator socket until ctx ends. The
// caller holds host.lock, so a socket file that is already there is a leftover
// and is replaced.
func (c *Core) ServeOperator(ctx context.Context) error {
	addr, release, err := socketAddress(c.home)
	if err != nil {
		return err
	}
	defer release()
	if err := os.Remove(filepath.Join(c.home, socketName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old operator socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on the operator socket: %w", err)
	}
	ln.SetUnlinkOnClose(false)
	if err := os.Chmod(addr, 0o600); err != nil {
		ln.Close()
		return fmt.Errorf("close the operator socket to others: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	defer os.Remove(filepath.Join(c.home, socketName))
	slots := make(chan struct{}, operatorsAtOne)
	var busy sync.WaitGroup
	defer busy.Wait()
	for {
		conn, err := ln.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept an operator: %w", err)
			}
			// Out of descriptors, most likely. The verbs wait, the host does not end.
			c.log.Error().Err(err).Msg("an operator cannot be accepted")
			select {
			case <-ctx.Done():
			case <-time.After(acceptAgain):
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		busy.Add(1)
		go func() {
			defer func() { <-slots; busy.Done() }()
			c.serveOperator(ctx, conn)
		}()
	}
}

// serveOperator answers one verb of one peer of the same user.
func (c *Core) serveOperator(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := samePeer(conn); err != nil {
		c.log.Warn().Err(err).Msg("operator refused")
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(operatorIdle))
	in := bufio.NewReader(io.LimitReader(conn, operatorLine))
	line, err := in.ReadBytes('\n')
	if err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	go func() { // a peer that hangs up ends its stream
		_, _ = in.ReadByte()
		cancel()
	}()
	out := json.NewEncoder(conn)
	var req operatorRequest
	if err = json.Unmarshal(line, &req); err == nil {
		err = c.Operate(ctx, req.Verb, req.Args, func(v any) error {
			raw, err := json.Marshal(v)
			if err != nil {
				return err
			}
			_ = conn.SetWriteDeadline(time.Now().Add(operatorIdle))
			return out.Encode(operatorAnswer{Data: raw})
		})
	}
	last := operatorAnswer{End: true}
	if err != nil {
		last = operatorAnswer{Error: &OperatorError{Code: ErrorCode(err), Message: err.Error()}}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(operatorIdle))
	_ = out.Encode(last)
}

// samePeer admits only processes of this user (and root, who owns the machine).
func samePeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var uid int
	var uidErr error
	if err := raw.Control(func(fd uintptr) { uid, uidErr = peerUID(int(fd)) }); err != nil {
		return err
	}
	if uidErr != nil {
		return uidErr
	}
	if uid != os.Geteuid() && uid != 0 {
		return fmt.Errorf("user %d is not the user of this host", uid)
	}
	return nil
}

// DialOperator sends one verb to the resident host of home. found is false
// when no host answers there, and then nothing was asked.
func DialOperator(ctx context.Context, home, verb string, args any, emit func(json.RawMessage) error) (found bool, err error) {
	addr, release, err := socketAddress(home)
	if err != nil {
		return false, nil
	}
	defer release()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", addr)
	if err != nil {
		return false, nil
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	raw, err := json.Marshal(args)
	if err != nil {
		return true, fmt.Errorf("encode arguments: %w", err)
	}
	if err := json.NewEncoder(conn).Encode(operatorRequest{Verb: verb, Args: raw}); err != nil {
		return false, nil
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		line, err := readLine(in, operatorLine)
		if err != nil {
			if ctx.Err() != nil {
				return true, nil
			}
			return true, fmt.Errorf("the host ended before it answered: %w", err)
		}
		var a operatorAnswer
		if err := json.Unmarshal(line, &a); err != nil {
			return true, fmt.Errorf("the host's answer cannot be read: %w", err)
		}
		switch {
		case a.Error != nil:
			return true, a.Error
		case a.End:
			return true, nil
		}
		if err := emit(a.Data); err != nil {
			return true, err
		}
	}
}

// readLine reads one line of at most limit bytes.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(line) > limit {
			return nil, errors.New("line is too long")
		}
	}
}
