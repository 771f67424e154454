package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// world is an outside whose names are a table and whose whole address space is
// one backend, which counts.
type world struct {
	t       *testing.T
	names   map[string][]string // each lookup takes the next entry; the last stays
	own     []netip.Addr
	ownErr  error
	down    bool // nothing can be dialled
	mu      sync.Mutex
	asked   []string
	dialled []string
	backend net.Listener
	reached atomic.Int64 // connections that the backend saw
}

// newWorld has a backend that answers each line with the same in capitals.
func newWorld(t *testing.T) *world {
	w := &world{t: t, names: map[string][]string{}}
	var err error
	if w.backend, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			c, err := w.backend.Accept()
			if err != nil {
				return
			}
			w.reached.Add(1)
			wait.Go(func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					io.WriteString(c, strings.ToUpper(line))
				}
			})
		}
	})
	t.Cleanup(func() {
		w.backend.Close()
		wait.Wait()
	})
	return w
}

func (w *world) outside() Outside {
	return Outside{
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = append(w.asked, name)
			turns := w.names[name]
			if len(turns) == 0 {
				return nil, errors.New("no such host")
			}
			if len(turns) > 1 {
				w.names[name] = turns[1:]
			}
			var out []netip.Addr
			for _, s := range strings.Fields(turns[0]) {
				out = append(out, netip.MustParseAddr(s))
			}
			return out, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			w.mu.Lock()
			w.dialled = append(w.dialled, to.String())
			down := w.down
			w.mu.Unlock()
			if down {
				return nil, errors.New("unreachable")
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", w.backend.Addr().String())
		},
		Own: func() ([]netip.Addr, error) { return w.own, w.ownErr },
	}
}

// serve starts a server of an allow list.
func (w *world) serve(allow ...string) (*Server, string) {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	var entries []Endpoint
	for _, a := range allow {
		e, err := ParseEndpoint(a)
		if err != nil {
			w.t.Fatal(err)
		}
		entries = append(entries, e)
	}
	s := Start(l, Allow(entries), w.outside())
	w.t.Cleanup(func() { s.Close() })
	return s, l.Addr().String()
}

// ask sends raw bytes, and reads the answer's first line.
func ask(t *testing.T, addr, raw string) (net.Conn, *bufio.Reader, string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	return c, r, strings.TrimSpace(line)
}

func TestTunnel(t *testing.T) {
	w := newWorld(t)
	w.names["example.org"] = []string{"93.184.216.34"}
	s, addr := w.serve("example.org:443")
	// What follows the head at once is the tunnel's, even where it looks like another request.
	c, r, line := ask(t, addr, head("CONNECT Example.org.:443 HTTP/1.1", "Host: example.org.:443")+"connect evil.example:443 http/1.1\r\n")
	if line != "HTTP/1.1 200 Connection established" {
		t.Fatal(line)
	}
	if empty, err := r.ReadString('\n'); err != nil || empty != "\r\n" {
		t.Fatalf("%q, %v", empty, err)
	}
	if got, err := r.ReadString('\n'); err != nil || got != "CONNECT EVIL.EXAMPLE:443 HTTP/1.1\r\n" {
		t.Fatalf("%q, %v", got, err)
	}
	io.WriteString(c, "more\n")
	if got, err := r.ReadString('\n'); err != nil || got != "MORE\n" {
		t.Fatalf("%q, %v", got, err)
	}
	c.(*net.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(r); err != nil || len(rest) != 0 {
		t.Fatalf("%q, %v", rest, err)
	}
	rec := s.Close()
	if len(rec.Rows) != 1 || rec.Rows[0] != (Row{"example.org:443", Allowed, 1, 40, 40}) || rec.Up != 40 || rec.Down != 40 {
		t.Fatalf("%+v", rec)
	}
	if !slices.Equal(w.asked, []string{"example.org"}) || !slices.Equal(w.dialled, []string{"93.184.216.34:443"}) {
		t.Fatalf("asked %v, dialled %v", w.asked, w.dialled)
	}
}

// TestThreatS23 holds every form of a refused target: nothing is dialled, the
// backend sees nothing, and a name that is not on the list is not even resolved.
func TestThreatS23(t *testing.T) {
	for _, r := range []struct {
		name   string
		target string
		leads  string // what example.org resolves to, each time
		own    string
		want   Verdict
	}{
		{"another host", "evil.example:443", "", "", NotListed},
		{"another port", "example.org:80", "", "", NotListed},
		{"a name below", "a.example.org:443", "", "", NotListed},
		{"a name above", "org:443", "", "", NotListed},
		{"localhost", "localhost:443", "", "", NotListed},
		{"literal of the host", "93.184.216.34:443", "93.184.216.34", "", LiteralAddress},
		{"loopback", "127.0.0.1:443", "", "", LiteralAddress},
		{"loopback of six", "[::1]:443", "", "", LiteralAddress},
		{"decimal", "2130706433:443", "", "", LiteralAddress},
		{"octal", "0177.0.0.1:443", "", "", LiteralAddress},
		{"hexadecimal", "0x7f.0.0.1:443", "", "", LiteralAddress},
		{"mapped", "[::ffff:127.0.0.1]:443", "", "", LiteralAddress},
		{"mapped of the list", "[::ffff:10.1.2.3]:443", "", "", LiteralAddress},
		{"zone", "[fe80::1%lo]:443", "", "", LiteralAddress},
		{"metadata", "169.254.169.254:80", "", "", LiteralAddress},
		{"metadata of six", "[fd00:ec2::254]:80", "", "", LiteralAddress},
		{"leads to loopback", "example.org:443", "127.0.0.1", "", ForbiddenAddress},
		{"leads to loopback of six", "example.org:443", "::1", "", ForbiddenAddress},
		{"leads to mapped loopback", "example.org:443", "::ffff:127.0.0.1", "", ForbiddenAddress},
		{"leads to unspecified", "example.org:443", "0.0.0.0", "", ForbiddenAddress},
		{"leads to metadata", "example.org:443", "169.254.169.254", "", ForbiddenAddress},
		{"leads to metadata of six", "example.org:443", "fd00:ec2::254", "", ForbiddenAddress},
		{"leads to link-local", "example.org:443", "fe80::1%2", "", ForbiddenAddress},
		{"leads to multicast", "example.org:443", "224.0.0.251", "", ForbiddenAddress},
		{"leads to a private address", "example.org:443", "192.168.1.1", "", ForbiddenAddress},
		{"leads to the list's private address", "example.org:443", "10.1.2.3", "", ForbiddenAddress},
		{"leads to a carrier's address", "example.org:443", "100.64.0.1", "", ForbiddenAddress},
		{"leads to a unique local address", "example.org:443", "fd12::1", "", ForbiddenAddress},
		{"leads to translated loopback", "example.org:443", "64:ff9b::7f00:1", "", ForbiddenAddress},
		{"leads to tunnelled metadata", "example.org:443", "2002:a9fe:a9fe::1", "", ForbiddenAddress},
		{"leads to this machine", "example.org:443", "93.184.216.34", "93.184.216.34", ForbiddenAddress},
		{"leads to this machine, translated", "example.org:443", "64:ff9b::5db8:d822", "93.184.216.34", ForbiddenAddress},
		{"the list's address is this machine's", "10.1.2.3:443", "", "10.1.2.3", ForbiddenAddress},
		{"one of several is bad", "example.org:443", "93.184.216.34 127.0.0.1", "", ForbiddenAddress},
		{"too many to check", "example.org:443", strings.Repeat("93.184.216.34 ", maxAddrs+1), "", ForbiddenAddress},
		{"leads nowhere", "example.org:443", "", "", Unresolved},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newWorld(t)
			if r.leads != "" {
				w.names["example.org"] = []string{r.leads}
			}
			if r.own != "" {
				w.own = []netip.Addr{netip.MustParseAddr(r.own)}
			}
			s, addr := w.serve("example.org:443", "10.1.2.3:443", "[fd12::1]:443")
			_, body, line := ask(t, addr, head("CONNECT "+r.target+" HTTP/1.1"))
			if line != "HTTP/1.1 "+r.want.status() || r.want != Unresolved && !strings.Contains(line, "403") {
				t.Fatal(line)
			}
			text, err := io.ReadAll(body)
			if err != nil || !strings.HasSuffix(string(text), "\r\n\r\nholdfast: "+r.want.String()+"\n") {
				t.Fatalf("%q, %v", text, err)
			}
			for _, a := range strings.Fields(r.leads + " " + r.own) {
				if strings.Contains(string(text), a) {
					t.Fatalf("the answer names %s", a)
				}
			}
			rec := s.Close()
			if len(rec.Rows) != 1 || rec.Rows[0].Target != r.target || rec.Rows[0].Verdict != r.want || rec.Rows[0].Count != 1 {
				t.Fatalf("%+v", rec)
			}
			if len(w.dialled) != 0 || w.reached.Load() != 0 {
				t.Fatalf("dialled %v, the backend saw %d", w.dialled, w.reached.Load())
			}
			if r.want == NotListed && len(w.asked) != 0 {
				t.Fatalf("the resolver was asked for %v", w.asked)
			}
		})
	}
}

// TestThreatS23Rebinding: a name is resolved once for each attempt, and what is
// dialled was checked.
func TestThreatS23Rebinding(t *testing.T) {
	w := newWorld(t)
	w.names["example.org"] = []string{"93.184.216.34", "127.0.0.1"}
	s, addr := w.serve("example.org:443")
	_, _, first := ask(t, addr, head("CONNECT example.org:443 HTTP/1.1"))
	_, _, second := ask(t, addr, head("CONNECT example.org:443 HTTP/1.1"))
	s.Close()
	if !strings.Contains(first, "200") || !strings.Contains(second, "403") || w.reached.Load() != 1 {
		t.Fatalf("%s, %s, the backend saw %d", first, second, w.reached.Load())
	}
	if len(w.asked) != 2 || !slices.Equal(w.dialled, []string{"93.184.216.34:443"}) {
		t.Fatalf("asked %v, dialled %v", w.asked, w.dialled)
	}
}

// TestThreatS23Smuggling: a connection has one request, and a refused one ends it.
func TestThreatS23Smuggling(t *testing.T) {
	good := head("CONNECT example.org:443 HTTP/1.1")
	for _, r := range []struct {
		name, raw string
		want      Verdict
	}{
		{"after a refusal", head("CONNECT evil.example:443 HTTP/1.1") + good, NotListed},
		{"after plain http", head("POST http://evil.example/ HTTP/1.1", "Content-Length: 3") + "abc" + good, PlainRequest},
		{"in a body", head("CONNECT evil.example:443 HTTP/1.1", "Content-Length: 100") + good, Malformed},
		{"by another host", head("CONNECT evil.example:443 HTTP/1.1", "Host: example.org:443"), Malformed},
		{"by line feeds", "CONNECT evil.example:443 HTTP/1.1\n\n" + good, Malformed},
		{"by a carriage return", head("CONNECT evil.example:443 HTTP/1.1\rX: y") + good, Malformed},
		{"a head too long", "CONNECT example.org:443 HTTP/1.1\r\nA: " + strings.Repeat("b", maxHead) + "\r\n\r\n", Malformed},
		{"TLS to the proxy", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Malformed},
		{"SOCKS to the proxy", "\x05\x01\x00", Malformed},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Malformed},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newWorld(t)
			w.names["example.org"] = []string{"93.184.216.34"}
			s, addr := w.serve("example.org:443")
			_, body, line := ask(t, addr, r.raw)
			rest, err := io.ReadAll(body)
			if err != nil || line != "HTTP/1.1 "+r.want.status() || strings.Contains(string(rest), "HTTP/1.1") {
				t.Fatalf("%s, then %q, %v", line, rest, err)
			}
			rec := s.Close()
			if w.reached.Load() != 0 || len(w.asked) != 0 || len(rec.Rows) != 1 || rec.Rows[0].Verdict != r.want {
				t.Fatalf("the backend saw %d, asked %v, %+v", w.reached.Load(), w.asked, rec)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	w := newWorld(t)
	w.names["example.org"] = []string{"93.184.216.34 2606:4700::1 1.1.1.1 1.0.0.1 8.8.8.8"}
	w.down = true
	s, addr := w.serve("example.org:443", "10.1.2.3:80")
	if _, _, line := ask(t, addr, head("CONNECT example.org:443 HTTP/1.1")); line != "HTTP/1.1 502 Bad Gateway" {
		t.Fatal(line)
	}
	if len(w.dialled) != maxDials {
		t.Fatalf("dialled %v", w.dialled)
	}
	w.mu.Lock()
	w.down = false
	w.mu.Unlock()
	if _, _, line := ask(t, addr, head("CONNECT 10.1.2.3:80 HTTP/1.1")); line != "HTTP/1.1 200 Connection established" {
		t.Fatal(line)
	}
	w.ownErr = errors.New("cannot tell")
	if _, _, line := ask(t, addr, head("CONNECT 10.1.2.3:80 HTTP/1.1")); line != "HTTP/1.1 403 Forbidden" {
		t.Fatalf("undecidable, yet %s", line)
	}
	s.Close()
}

// TestCloseEndsEverything: tunnels, half-sent heads and waiting connections.
func TestCloseEndsEverything(t *testing.T) {
	w := newWorld(t)
	w.names["example.org"] = []string{"93.184.216.34"}
	s, addr := w.serve("example.org:443")
	_, open, _ := ask(t, addr, head("CONNECT example.org:443 HTTP/1.1"))
	half, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	io.WriteString(half, "CONNECT exam")
	s.Close()
	open.ReadString('\n')
	if _, err := open.ReadByte(); err == nil {
		t.Fatal("a tunnel outlived its server")
	}
	half.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadAll(half); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal("a connection outlived its server")
	}
	if again := s.Close(); len(again.Rows) == 0 {
		t.Fatal("the record is gone")
	}
}

// TestSystem: the machine's own parts, as far as a machine without a network has them.
func TestSystem(t *testing.T) {
	out := System()
	own, err := out.Own()
	if err != nil || !slices.Contains(own, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("own addresses %v, %v", own, err)
	}
	w := newWorld(t)
	c, err := out.Dial(t.Context(), netip.MustParseAddrPort(w.backend.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if found, err := out.Resolve(ctx, "example.invalid"); err == nil {
		t.Errorf("found %v", found)
	}
	// Most machines know this name without asking anybody; where one does not, the answer is an error.
	if found, err := out.Resolve(t.Context(), "localhost"); err == nil {
		for _, a := range found {
			if classify(a) != never {
				t.Errorf("localhost is %v", a)
			}
		}
	}
}

// pipes is a listener of net.Pipe connections, for virtual time.
type pipes struct {
	next chan net.Conn
	done chan struct{}
	once sync.Once
}

func newPipes() *pipes { return &pipes{next: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.next:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	a, b := net.Pipe()
	p.next <- b
	return a
}

// idleWorld serves net.Pipe connections; far receives the other end of each tunnel.
func idleWorld(resolve func(context.Context, string) ([]netip.Addr, error)) (*Server, *pipes, chan net.Conn) {
	l, far := newPipes(), make(chan net.Conn, maxConns)
	return Start(l, Allow([]Endpoint{{Name: "example.org", Port: 443}}), Outside{
		Resolve: resolve,
		Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
			a, b := net.Pipe()
			far <- b
			return a, nil
		},
		Own: func() ([]netip.Addr, error) { return nil, nil },
	}), l, far
}

func found(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

func TestTimes(t *testing.T) {
	established := "HTTP/1.1 200 Connection established\r\n\r\n"
	t.Run("a head that does not end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, l, _ := idleWorld(found)
			c, from := l.dial(), time.Now()
			io.WriteString(c, "CONNECT example")
			answer, _ := io.ReadAll(c)
			if took := time.Since(from); took != headTime || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
				t.Errorf("%q after %s", answer, took)
			}
			s.Close()
		})
	})
	t.Run("a resolver that hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, l, _ := idleWorld(func(ctx context.Context, _ string) ([]netip.Addr, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
			c, from := l.dial(), time.Now()
			io.WriteString(c, head("CONNECT example.org:443 HTTP/1.1"))
			answer, _ := io.ReadAll(c)
			if took := time.Since(from); took != resolveTime || !strings.HasPrefix(string(answer), "HTTP/1.1 502 ") {
				t.Errorf("%q after %s", answer, took)
			}
			s.Close()
		})
	})
	t.Run("an end while a name is resolved is on record", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, l, _ := idleWorld(func(ctx context.Context, _ string) ([]netip.Addr, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
			c := l.dial()
			io.WriteString(c, head("CONNECT example.org:443 HTTP/1.1"))
			synctest.Wait()
			if rec := s.Close(); len(rec.Rows) != 1 || rec.Rows[0].Verdict != Unresolved {
				t.Errorf("%+v", rec)
			}
		})
	})
	t.Run("a tunnel of which one way moves stays, and one at rest ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, l, fars := idleWorld(found)
			c := l.dial()
			io.WriteString(c, head("CONNECT example.org:443 HTTP/1.1"))
			if _, err := io.ReadFull(c, make([]byte, len(established))); err != nil {
				t.Fatal(err)
			}
			far, from := <-fars, time.Now()
			for range 5 { // the program says nothing for longer than idleTime
				<-time.After(idleTime * 2 / 3)
				io.WriteString(far, "x")
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Fatalf("after %s: %v", time.Since(from), err)
				}
			}
			from = time.Now()
			if _, err := c.Read(make([]byte, 1)); err == nil || time.Since(from) != idleTime {
				t.Errorf("ended after %s: %v", time.Since(from), err)
			}
			if rec := s.Close(); rec.Down != 5 {
				t.Errorf("%+v", rec)
			}
		})
	})
	t.Run("more connections than are served wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, l, _ := idleWorld(found)
			var all []net.Conn
			for range maxConns {
				all = append(all, l.dial())
			}
			synctest.Wait()
			a, b := net.Pipe()
			select {
			case l.next <- b:
				t.Error("one too many was accepted")
			case <-time.After(time.Second):
			}
			all[0].Close()
			l.next <- b
			a.Close()
			for _, c := range all {
				c.Close()
			}
			s.Close()
		})
	})
}
