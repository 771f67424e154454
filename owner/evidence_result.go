package owner

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode"

	"holdfast/internal/saferead"
	"holdfast/sandbox"
)

// maxReplyFile is how much of HOLDFAST_REPLY is collected; the reply in it has at most maxReply bytes.
const maxReplyFile = 48 << 10

// observed is what was seen of a turn that ran, never an opinion about it.
type observed struct {
	sandbox    sandbox.Result
	asked      bool  // this owner asked for the end
	incomplete bool  // output was dropped, and the transcript says how much
	broken     error // the transcript could not be written to its end
}

// resultFrom says how the turn ended. The output limit counts as a requested stop: the program did not end by itself.
func resultFrom(ev observed) Result {
	s := &ev.sandbox
	r := Result{
		ExitCode: s.ExitCode, GroupClear: s.Cleanup.Confirmed, ElapsedMS: s.Elapsed.Milliseconds(),
		StopRequested: ev.asked, OutputIncomplete: ev.incomplete,
		Confinement: logged(jsonOf(s.Report)), Cleanup: logged(jsonOf(s.Cleanup)),
		Egress: egressOf(s),
	}
	switch {
	case s.Fault != "":
		r.Ending, r.ExitCode = failed(s.Fault), nil
	case s.Ending == sandbox.EndingExit && s.ExitCode != nil:
		r.Ending = fmt.Sprintf("exit %d", *s.ExitCode)
	case s.Ending == sandbox.EndingSignal:
		r.Ending = "stopped by a signal"
	case s.Ending == sandbox.EndingTimeout:
		r.Ending = EndingTimedOut
	case s.Ending == sandbox.EndingOutput:
		r.Ending, r.StopRequested = EndingOutputLimit, true
	case s.Ending == sandbox.EndingMemory:
		r.Ending = EndingMemoryLimit
	case s.Ending == sandbox.EndingDisk:
		r.Ending = EndingDiskLimit
	case s.Ending == sandbox.EndingStop:
		r.Ending, r.StopRequested = EndingStopped, true
	default:
		r.Ending, r.ExitCode = failed("how the program ended is not known"), nil
	}
	if ev.broken != nil && s.Ending == sandbox.EndingStop && !ev.asked {
		r.Ending, r.StopRequested = failed("the transcript could not be written"), false
	}
	return r
}

// failed is an ending on one line. A reason that may name a path stays in the transcript.
func failed(why string) string {
	if strings.Contains(why, "/") || strings.ContainsFunc(why, unicode.IsControl) || len(why) > 200 {
		why = "the program could not be run"
	}
	return "failed: " + why
}

// jsonOf is what the sandbox observed, in the JSON form that it defines.
func jsonOf(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("owner: evidence always encodes: " + err.Error())
	}
	return b
}

// logged is b for the log, or nothing where that is longer than an event may hold; the transcript has it.
func logged(b json.RawMessage) json.RawMessage {
	if len(b) > maxDocument {
		return nil
	}
	return b
}

// replyOf reads the reply file. note is for the transcript: what was there, and why it counts as nothing where it
// does. A reply that cannot be used never fails a turn; a question counts only from a program that ended well.
func replyOf(s sandbox.Result) (reply, ask, note string) {
	switch {
	case s.ReplyErr != "":
		return "", "", "refused: " + s.ReplyErr
	case s.Reply == nil:
		return "", "", "absent"
	}
	reply, ask, err := parseReply(s.Reply)
	if err != nil {
		return "", "", "refused: " + err.Error()
	}
	if ask != "" && (s.ExitCode == nil || *s.ExitCode != 0) {
		return reply, "", "read; its ask does not count without exit 0"
	}
	return reply, ask, "read"
}

// parseReply decodes {"reply":TEXT,"ask":null|"question"|"approval"}: strict, closed, both bounded. ask may be left
// out; an ask needs something that is asked. The bytes come from the program that ran.
func parseReply(b []byte) (reply, ask string, err error) {
	var d struct {
		Reply *string `json:"reply"`
		Ask   *string `json:"ask"`
	}
	switch {
	case len(b) > maxReplyFile:
		return "", "", fmt.Errorf("longer than %d bytes", maxReplyFile)
	case closed(b, &d) != nil:
		return "", "", errors.New(`not one JSON object of "reply" and "ask"`)
	case d.Reply == nil:
		return "", "", errors.New(`no "reply"`)
	case !replyText(*d.Reply):
		return "", "", fmt.Errorf("a reply of more than %d bytes", maxReply)
	case d.Ask == nil:
		return *d.Reply, "", nil
	case *d.Ask != "question" && *d.Ask != "approval":
		return "", "", errors.New(`"ask" is neither null, "question" nor "approval"`)
	case strings.TrimSpace(*d.Reply) == "":
		return "", "", errors.New(`an "ask" without anything in "reply"`)
	}
	return *d.Reply, *d.Ask, nil
}

// traceDigest is the digest of a transcript as it was left; that of no bytes where there is none, or one that is not
// the store's own file.
func traceDigest(dir, name string) (Digest, error) {
	h := sha256.New()
	d, err := saferead.OpenDir(dir)
	if err != nil {
		return "", fmt.Errorf("read transcript: %w", err)
	}
	defer d.Close()
	f, err := d.Open(name, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, saferead.ErrUnsafe):
	case err != nil:
		return "", fmt.Errorf("read transcript: %w", err)
	default:
		defer f.Close()
		if _, err := io.Copy(h, f); err != nil {
			return "", fmt.Errorf("read transcript: %w", err)
		}
	}
	return Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}
