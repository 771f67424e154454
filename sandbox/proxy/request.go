package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
)

// Bounds of a request's head, line ends counted.
const (
	maxHead  = 8 << 10
	maxLines = 64
)

var errHead = errors.New("not the head of a request")

// readHead reads one head, up to and with its empty line, and not a byte
// beyond it: what follows in r is the tunnel's. It stops at what cannot become
// a head any more, at maxHead bytes and at maxLines lines, with errHead.
func readHead(r *bufio.Reader) ([]byte, error) {
	// TLS, spoken to the proxy itself, has no line end to wait for.
	if first, err := r.Peek(1); err != nil {
		return nil, err
	} else if first[0] < 'A' || first[0] > 'Z' {
		return nil, errHead
	}
	var head []byte
	for range maxLines {
		line, err := r.ReadSlice('\n')
		head = append(head, line...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) || len(head) > maxHead:
			return nil, errHead
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case len(line) < 2 || line[len(line)-2] != '\r':
			return nil, errHead
		case len(line) == 2:
			return head, nil
		}
	}
	return nil, errHead
}

// parseHead reads a whole head. The verdict is 0 and the endpoint holds where it
// is exactly a CONNECT: one target, HTTP/1.0 or 1.1, no body, and a Host header
// that says nothing else. Anything that two readers could read differently
// is Malformed. Other headers are for the proxy alone and say nothing to it.
// With PlainRequest the endpoint is what was meant, or zero.
func parseHead(head []byte) (Endpoint, Verdict) {
	body, ok := bytes.CutSuffix(head, []byte("\r\n\r\n"))
	if !ok {
		return Endpoint{}, Malformed
	}
	lines := strings.Split(string(body), "\r\n")
	for _, l := range lines {
		if !printable(l) {
			return Endpoint{}, Malformed
		}
	}
	method, rest, _ := strings.Cut(lines[0], " ")
	target, version, _ := strings.Cut(rest, " ")
	if !token(method) || version != "HTTP/1.1" && version != "HTTP/1.0" {
		return Endpoint{}, Malformed
	}
	if method != "CONNECT" {
		return plainTarget(target), PlainRequest
	}
	e, verdict := parseTarget(target)
	if verdict == Malformed {
		return Endpoint{}, Malformed
	}
	if !plainHeaders(lines[1:], target) {
		return Endpoint{}, Malformed
	}
	return e, verdict
}

// plainTarget is the host of a plain request as clients send it to a proxy, for
// the record; the zero Endpoint where it is written in any other way.
func plainTarget(url string) Endpoint {
	rest, ok := strings.CutPrefix(url, "http://")
	if !ok {
		return Endpoint{}
	}
	host, _, _ := strings.Cut(rest, "/")
	e, verdict := parseTarget(host)
	if verdict == Malformed {
		e, verdict = parseTarget(host + ":80")
	}
	if verdict != 0 {
		return Endpoint{}
	}
	return e
}

// plainHeaders accepts headers that leave no doubt about what is asked.
func plainHeaders(lines []string, target string) bool {
	hosts := 0
	for _, l := range lines {
		name, value, ok := strings.Cut(l, ":")
		if !ok || !token(name) { // a folded line has no name
			return false
		}
		value = strings.Trim(value, " \t")
		switch strings.ToLower(name) {
		case "content-length", "transfer-encoding", "upgrade":
			return false // a CONNECT has no body, and becomes nothing else
		case "host":
			hosts++
			host := target[:strings.LastIndexByte(target, ':')]
			if hosts > 1 || !strings.EqualFold(value, target) && !strings.EqualFold(value, host) {
				return false
			}
		}
	}
	return true
}

// printable accepts visible ASCII, spaces and tabs: no control character that
// one reader takes for a line end and another does not.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c != '\t' && (c < ' ' || c > '~') {
			return false
		}
	}
	return true
}

// token accepts what HTTP calls one.
func token(s string) bool {
	for _, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
