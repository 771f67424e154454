package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
)

func TestClassify(t *testing.T) {
	rows := map[class]string{
		public: "1.1.1.1 93.184.216.34 172.32.0.1 100.128.0.1 192.167.255.255 223.255.255.255 2606:4700::1 2a00::1 2001:4860::8888 " +
			"::ffff:1.1.1.1 64:ff9b::101:101 2002:101:101::1",
		private: "10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 100.127.255.255 fc00::1 fd12:3456::1 ::ffff:10.0.0.1",
		never: "0.0.0.0 0.1.2.3 127.0.0.1 127.255.255.255 169.254.169.254 169.254.170.2 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1 " +
			"198.51.100.1 203.0.113.1 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255 100.100.100.200 168.63.129.16 " +
			":: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 " +
			"64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::a00:1 64:ff9b:1::1 2002:7f00:1::1 2002:a9fe:a9fe::1 2002:c0a8:101::1 " +
			"2001::1 2001:20::1 2001:db8::1 3fff::1 100::1 4000::1 2606:4700::1%2",
	}
	for want, list := range rows {
		for _, s := range strings.Fields(list) {
			if got := classify(netip.MustParseAddr(s)); got != want {
				t.Errorf("%s is %d, want %d", s, got, want)
			}
		}
	}
	if classify(netip.Addr{}) != never {
		t.Error("the zero address")
	}
}

func TestParseEndpoint(t *testing.T) {
	for _, s := range []string{"example.org:443", "a:1", "xn--bcher-kva.example:65535", "1password.com:443", "a1.2b:80", "10.0.0.1:8080",
		"93.184.216.34:443", "[fd12::1]:443", "[2606:4700::1]:1"} {
		e, err := ParseEndpoint(s)
		if err != nil || e.String() != s {
			t.Errorf("%s: %v, %v", s, e, err)
		}
	}
	for _, s := range []string{"", "example.org", "example.org:", "example.org:0", "example.org:0443", "example.org:+1", "example.org:65536",
		"Example.org:443", "example.org.:443", ".example.org:443", "a..b:1", "*.example.org:443", "-a:1", "a-:1", "a_b:1", "bücher.example:443",
		"example.org:443 ", " example.org:443", "user@example.org:443", "http://example.org:443", "a:1:2", "localhost:80", "api.localhost:80",
		"127.0.0.1:80", "0.0.0.0:80", "169.254.169.254:80", "[::1]:80", "[fd00:ec2::254]:80", "[fe80::1%1]:80", "[::ffff:10.0.0.1]:80",
		"::1:80", "fd12::1:80", "[10.0.0.1]:80", "[FD12::1]:80", "[fd12:0::1]:80", "10.0.1:80", "2130706433:80", "0x7f000001:80", "0177.0.0.1:80",
		"010.0.0.1:80", "0x7f.1:80", "a.0x:80", "1.2.3.4.5:80", "a.b.7:80", strings.Repeat("a", 64) + ":1", strings.Repeat("a.", 127) + "a:1"} {
		if e, err := ParseEndpoint(s); err == nil {
			t.Errorf("%q was taken as %v", s, e)
		}
	}
}

// head makes a request's head of its lines.
func head(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }

// TestThreatS23Requests holds the forms in which a request could be more, or
// another, than it says.
func TestThreatS23Requests(t *testing.T) {
	for _, r := range []struct {
		name, text string
		want       string // the endpoint, or ""
		verdict    Verdict
	}{
		{"plain", head("CONNECT example.org:443 HTTP/1.1"), "example.org:443", 0},
		{"old version", head("CONNECT example.org:443 HTTP/1.0"), "example.org:443", 0},
		{"host the same", head("CONNECT example.org:443 HTTP/1.1", "Host: example.org:443", "User-Agent: x", "Proxy-Connection: keep-alive"), "example.org:443", 0},
		{"host without port", head("CONNECT example.org:443 HTTP/1.1", "host:\tExample.org "), "example.org:443", 0},
		{"case and final dot", head("CONNECT EXAMPLE.org.:443 HTTP/1.1"), "example.org:443", 0},
		{"address", head("CONNECT 10.0.0.1:443 HTTP/1.1"), "10.0.0.1:443", 0},
		{"address of six", head("CONNECT [FD12:0::1]:443 HTTP/1.1"), "[fd12::1]:443", 0},
		{"decimal", head("CONNECT 2130706433:80 HTTP/1.1"), "", LiteralAddress},
		{"octal", head("CONNECT 0177.0.0.1:80 HTTP/1.1"), "", LiteralAddress},
		{"hexadecimal", head("CONNECT 0x7f.0x0.0x0.0x1:80 HTTP/1.1"), "", LiteralAddress},
		{"hexadecimal whole", head("CONNECT 0X7F000001:80 HTTP/1.1"), "", LiteralAddress},
		{"short", head("CONNECT 127.1:80 HTTP/1.1"), "", LiteralAddress},
		{"final dot of an address", head("CONNECT 127.0.0.1.:80 HTTP/1.1"), "", LiteralAddress},
		{"mapped", head("CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1"), "", LiteralAddress},
		{"zone", head("CONNECT [fe80::1%1]:80 HTTP/1.1"), "", LiteralAddress},
		{"six without brackets", head("CONNECT ::1:80 HTTP/1.1"), "", Malformed},
		{"four in brackets", head("CONNECT [127.0.0.1]:80 HTTP/1.1"), "", Malformed},
		{"other letters", head("CONNECT ｅxample.org:443 HTTP/1.1"), "", Malformed},
		{"two final dots", head("CONNECT example.org..:443 HTTP/1.1"), "", Malformed},
		{"no port", head("CONNECT example.org HTTP/1.1"), "", Malformed},
		{"port with zero", head("CONNECT example.org:0443 HTTP/1.1"), "", Malformed},
		{"user", head("CONNECT x@example.org:443 HTTP/1.1"), "", Malformed},
		{"path", head("CONNECT example.org:443/x HTTP/1.1"), "", Malformed},
		{"scheme", head("CONNECT https://example.org:443 HTTP/1.1"), "", Malformed},
		{"percent", head("CONNECT example%2eorg:443 HTTP/1.1"), "", Malformed},
		{"NUL in the name", head("CONNECT example.org\x00.evil:443 HTTP/1.1"), "", Malformed},
		{"two spaces", head("CONNECT  example.org:443 HTTP/1.1"), "", Malformed},
		{"tab for a space", head("CONNECT\texample.org:443 HTTP/1.1"), "", Malformed},
		{"more on the line", head("CONNECT example.org:443 HTTP/1.1 x"), "", Malformed},
		{"no version", head("CONNECT example.org:443"), "", Malformed},
		{"version 2", head("CONNECT example.org:443 HTTP/2.0"), "", Malformed},
		{"other case", head("connect example.org:443 HTTP/1.1"), "", PlainRequest},
		{"plain http", head("GET http://example.org/ HTTP/1.1", "Host: example.org"), "", PlainRequest},
		{"origin form", head("GET / HTTP/1.1"), "", PlainRequest},
		{"host differs", head("CONNECT example.org:443 HTTP/1.1", "Host: evil.example:443"), "", Malformed},
		{"host of another port", head("CONNECT example.org:443 HTTP/1.1", "Host: example.org:444"), "", Malformed},
		{"two hosts", head("CONNECT example.org:443 HTTP/1.1", "Host: example.org:443", "Host: example.org:443"), "", Malformed},
		{"a body", head("CONNECT example.org:443 HTTP/1.1", "Content-Length: 5"), "", Malformed},
		{"an empty body", head("CONNECT example.org:443 HTTP/1.1", "Content-Length: 0"), "", Malformed},
		{"chunks", head("CONNECT example.org:443 HTTP/1.1", "Transfer-Encoding: chunked"), "", Malformed},
		{"space before the colon", head("CONNECT example.org:443 HTTP/1.1", "Host : example.org"), "", Malformed},
		{"folded", head("CONNECT example.org:443 HTTP/1.1", "A: b", " Host: evil.example"), "", Malformed},
		{"no colon", head("CONNECT example.org:443 HTTP/1.1", "A"), "", Malformed},
		{"bare line feed", head("CONNECT example.org:443 HTTP/1.1", "A: b\nHost: evil.example"), "", Malformed},
		{"bare carriage return", head("CONNECT example.org:443 HTTP/1.1", "A: b\rHost: evil.example"), "", Malformed},
		{"line feeds alone", "CONNECT example.org:443 HTTP/1.1\n\n", "", Malformed},
		{"high bytes", head("CONNECT example.org:443 HTTP/1.1", "A: \x80"), "", Malformed},
		{"empty line first", "\r\n" + head("CONNECT example.org:443 HTTP/1.1"), "", Malformed},
		{"cut short", "CONNECT example.org:443 HTTP/1.1\r\n", "", Malformed},
		{"nothing", "", "", Malformed},
		{"long name", head("CONNECT " + strings.Repeat("a.", 200) + "a:443 HTTP/1.1"), "", Malformed},
	} {
		t.Run(r.name, func(t *testing.T) {
			e, verdict := parseHead([]byte(r.text))
			got := ""
			if verdict == 0 {
				got = e.String()
			}
			if got != r.want || verdict != r.verdict {
				t.Fatalf("%q, %q; want %q, %q", got, verdict, r.want, r.verdict)
			}
		})
	}
}

func TestPlainTarget(t *testing.T) {
	for url, want := range map[string]string{
		"http://Example.org/a": "example.org:80", "http://example.org": "example.org:80", "http://example.org:8080/": "example.org:8080",
		"http://10.0.0.1/": "10.0.0.1:80", "http://[fd12::1]/": "[fd12::1]:80", "/": "", "https://example.org/": "", "http://a@b/": "",
		"http://127.1/": "", "http:///": "",
	} {
		e := plainTarget(url)
		if got := e.String(); e.Port != 0 && got != want || e.Port == 0 && want != "" {
			t.Errorf("%s is for %q, want %q", url, got, want)
		}
	}
}

func TestReadHead(t *testing.T) {
	whole := head("CONNECT a:1 HTTP/1.1", "A: b")
	for _, r := range []struct {
		name, text string
		want, left string
		err        error
	}{
		{"alone", whole, whole, "", nil},
		{"what follows is left", whole + "CONNECT b:1 HTTP/1.1\r\n\r\n", whole, "CONNECT b:1 HTTP/1.1\r\n\r\n", nil},
		{"nothing", "", "", "", io.EOF},
		{"cut", whole[:len(whole)-1], "", "", io.ErrUnexpectedEOF},
		{"TLS", "\x16\x03\x01 and no line end", "", "", errHead},
		{"empty line first", "\r\n" + whole, "", "", errHead},
		{"line feed", "CONNECT a:1 HTTP/1.1\n", "", "", errHead},
		{"long line", "CONNECT " + strings.Repeat("a", maxHead), "", "", errHead},
		{"long head", "C\r\n" + strings.Repeat("A: "+strings.Repeat("b", 1000)+"\r\n", 9), "", "", errHead},
		{"many lines", "C\r\n" + strings.Repeat("A:b\r\n", maxLines), "", "", errHead},
	} {
		t.Run(r.name, func(t *testing.T) {
			br := bufio.NewReaderSize(strings.NewReader(r.text), maxHead)
			got, err := readHead(br)
			if !errors.Is(err, r.err) || err == nil && string(got) != r.want {
				t.Fatalf("%q, %v", got, err)
			}
			if left, _ := io.ReadAll(br); err == nil && string(left) != r.left {
				t.Fatalf("left %q", left)
			}
		})
	}
}

// FuzzRequest: no head makes the parser panic or read on, and what it lets
// through has one spelling that parses to itself.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{head("CONNECT example.org:443 HTTP/1.1", "Host: example.org"), head("CONNECT [fd12::1]:1 HTTP/1.0"),
		head("CONNECT 0x7f.1:80 HTTP/1.1"), head("GET http://a/ HTTP/1.1"), "CONNECT a:1 HTTP/1.1\n\n", "\x16\x03\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), maxHead)
		h, err := readHead(r)
		if err != nil {
			return
		}
		rest, _ := io.ReadAll(r)
		if !bytes.Equal(append(bytes.Clone(h), rest...), b) || len(h) > maxHead {
			t.Fatalf("head %q, rest %q", h, rest)
		}
		e, verdict := parseHead(h)
		if verdict == LiteralAddress {
			if s := asked(h); len(s) > maxName+7 || !printable(s) {
				t.Fatalf("records %q", s)
			}
		}
		if verdict != 0 {
			return
		}
		again, v := parseTarget(e.String())
		if v != 0 || again != e || (e.Name == "") == !e.Addr.IsValid() || numeric(e.Name) && e.Name != "" {
			t.Fatalf("%q became %v, %v, %q", h, e, again, v)
		}
		if bytes.Count(h, []byte("\n")) != bytes.Count(h, []byte("\r\n")) || bytes.Count(h, []byte("\r")) != bytes.Count(h, []byte("\r\n")) {
			t.Fatalf("a line end alone was let through: %q", h)
		}
	})
}

func TestRecordIsBounded(t *testing.T) {
	var c tally
	for i := range maxRows + 50 {
		c.attempt(fmt.Sprintf("host-%d.example:443", i), NotListed)
	}
	k := c.attempt("example.org:443", Allowed)
	c.bytes(k, 3, 4)
	c.attempt("example.org:443", Allowed)
	r := c.record()
	if len(r.Rows) != maxRows+1 || r.More != 50 || r.Rows[0] != (Row{"example.org:443", Allowed, 2, 3, 4}) || r.Up != 3 || r.Down != 4 {
		t.Fatalf("%d rows, %d more, first %+v", len(r.Rows), r.More, r.Rows[0])
	}
	fit := r.Fit(4 << 10)
	b, err := json.Marshal(fit)
	if err != nil || len(b) > 4<<10 || len(fit.Rows) < 10 || fit.Rows[0] != r.Rows[0] {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if int(fit.More)+len(fit.Rows) != maxRows+51 || fit.Up != 3 || len(r.Rows) != maxRows+1 {
		t.Fatalf("%d rows, %d more", len(fit.Rows), fit.More)
	}
	if whole := r.Fit(1 << 20); len(whole.Rows) != len(r.Rows) || whole.More != 50 {
		t.Fatal("what fits was cut")
	}
}
