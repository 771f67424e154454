package sandbox_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
	"holdfast/sandbox/proxy"
)

// counter is a listener of the host that must not be reached. The test itself
// reaches it once at the end, so that nothing that came before is missed.
type counter struct {
	network, addr string
	seen          atomic.Int64
}

func unreached(t *testing.T, network, addr string) *counter {
	t.Helper()
	c := &counter{network: network}
	var wait sync.WaitGroup
	var closer io.Closer
	if network == "tcp" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		closer, c.addr = l, l.Addr().String()
		wait.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				c.seen.Add(1)
				conn.Close()
			}
		})
	} else {
		l, err := net.ListenPacket("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		closer, c.addr = l, l.LocalAddr().String()
		wait.Go(func() {
			b := make([]byte, 64)
			for {
				if _, _, err := l.ReadFrom(b); err != nil {
					return
				}
				c.seen.Add(1)
			}
		})
	}
	t.Cleanup(func() {
		closer.Close()
		wait.Wait()
	})
	return c
}

// untouched fails the test where anything but its own knock arrived.
func (c *counter) untouched(t *testing.T) {
	t.Helper()
	conn, err := net.Dial(c.network, c.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Write([]byte("knock"))
	eventually(t, "the knock arrives", 30*time.Second, func() bool { return c.seen.Load() > 0 })
	if n := c.seen.Load(); n != 1 {
		t.Errorf("%s %s was reached %d times", c.network, c.addr, n-1)
	}
}

// hostAddresses are where the host listens: loopback, and its first other address if it has one.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	addrs := []string{"127.0.0.1:0"}
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return append(addrs, net.JoinHostPort(n.IP.String(), "0"))
		}
	}
	return addrs
}

// networks are the turns without the host's network.
var networks = map[string]func(*sandbox.Spec){
	"none":  func(*sandbox.Spec) {},
	"allow": func(s *sandbox.Spec) { s.Network, s.Allow = sandbox.NetworkAllow, []string{"example.org:443"} },
}

// TestThreatS18: no TCP, UDP, ICMP or raw packet leaves the turn, and no name is
// resolved, whether or not there is a proxy (net, landlock, seccomp).
func TestThreatS18(t *testing.T) {
	for name, change := range networks {
		t.Run(name, func(t *testing.T) {
			var counters []*counter
			var to []string
			for _, a := range hostAddresses(t) {
				for _, network := range []string{"tcp", "udp"} {
					c := unreached(t, network, a)
					counters, to = append(counters, c), append(to, network, c.addr)
				}
			}
			s := hostile(t, "directly", to...)
			change(&s)
			r, o := run(t, s)
			exited(t, r, o, 0)
			for _, c := range counters {
				c.untouched(t)
			}
			if o.stdout.Len() > 0 {
				t.Errorf("the program says:\n%s", o.stdout.String())
			}
			if r.Egress != nil && len(r.Egress.Rows) > 0 {
				t.Errorf("the proxy was used: %+v", r.Egress)
			}
		})
	}
}

// directly tries to reach what it is told, and more, without the proxy. It says
// what worked.
func directly(args []string) {
	for ; len(args) > 1; args = args[2:] {
		for range 3 {
			c, err := net.DialTimeout(args[0], args[1], time.Second)
			if err != nil {
				continue
			}
			c.Write([]byte("hello"))
			if args[0] == "tcp" {
				fmt.Println("reached", args[1])
			}
			c.Close()
		}
	}
	for _, a := range []string{"1.1.1.1:53", "169.254.169.254:80", "[2606:4700::1111]:443"} {
		for _, network := range []string{"tcp", "udp"} {
			if c, err := net.DialTimeout(network, a, 2*time.Second); err == nil {
				fmt.Println("reached", network, a)
				c.Close()
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if found, err := net.DefaultResolver.LookupHost(ctx, "example.org"); err == nil {
		fmt.Println("resolved", found)
	}
	for name, kind := range map[string][3]int{
		"raw": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw IP": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW},
		"ping": {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, "packet": {unix.AF_PACKET, unix.SOCK_RAW, 0},
	} {
		if fd, err := unix.Socket(kind[0], kind[1], kind[2]); err == nil {
			fmt.Println("opened a socket:", name)
			unix.Close(fd)
		}
	}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err == nil {
		r, _ := unix.NewIfreq("lo")
		r.SetUint16(unix.IFF_UP)
		if unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r) == nil {
			fmt.Println("changed a link")
		}
	}
}

// farWorld is what the proxy finds outside: a table of names, a TLS server at one
// public address, and a counter everywhere else.
type farWorld struct {
	mu    sync.Mutex
	names map[string][]string // each lookup takes the next entry; the last stays
	asked []string
	tls   *httptest.Server
	rest  *counter
}

func newFarWorld(t *testing.T) *farWorld {
	w := &farWorld{rest: unreached(t, "tcp", "127.0.0.1:0"), names: map[string][]string{
		"example.com": {"93.184.216.34"}, "evil.example": {"93.184.216.35"}, "localhost": {"127.0.0.1"},
		"loopback.example": {"127.0.0.1"}, "six.example": {"::1"}, "meta.example": {"169.254.169.254"}, "meta6.example": {"fd00:ec2::254"},
		"private.example": {"192.168.1.1"}, "translated.example": {"64:ff9b::a9fe:a9fe"}, "mixed.example": {"93.184.216.35 127.0.0.1"},
		"rebind.example": {"93.184.216.34", "127.0.0.1"},
	}}
	w.tls = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s", r.Method, r.Host, body)
	}))
	w.tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.tls.StartTLS()
	t.Cleanup(w.tls.Close)
	return w
}

func (w *farWorld) outside() proxy.Outside {
	return proxy.Outside{
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
			for _, a := range strings.Fields(turns[0]) {
				out = append(out, netip.MustParseAddr(a))
			}
			return out, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			addr := w.rest.addr
			if to.String() == "93.184.216.34:443" {
				addr = w.tls.Listener.Addr().String()
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", addr)
		},
		Own: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("203.0.113.7")}, nil },
	}
}

// roots is the TLS server's certificate, as standard input.
func (w *farWorld) roots() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.tls.Certificate().Raw})
}

// TestAllowedEgress: an ordinary client inside reaches what the list holds by
// TLS from end to end, nothing else, and the result says what it reached.
func TestAllowedEgress(t *testing.T) {
	w := newFarWorld(t)
	s := hostile(t, "fetch", "https://example.com/a", "https://example.com/b", "https://evil.example/", "http://example.com/")
	s.Network, s.Allow, s.Stdin = sandbox.NetworkAllow, []string{"example.com:443", "10.9.9.9:443"}, w.roots()
	r, o := run(t, sandbox.WithOutside(s, w.outside()))
	exited(t, r, o, 0)
	got := o.stdout.String()
	for _, want := range []string{"https://example.com/a: POST example.com body\n", "https://example.com/b: POST example.com body\n",
		"https://evil.example/: failed\n", "http://example.com/: 403 holdfast: refused: only CONNECT is served; use https\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %q in:\n%s%s", want, got, o.stderr.String())
		}
	}
	w.rest.untouched(t)
	if r.Report.Network != "netns-lo-proxy" || r.Report.Namespaces["net"] == 0 {
		t.Errorf("report says %q", r.Report.Network)
	}
	if r.Egress == nil || len(r.Egress.Rows) != 3 {
		t.Fatalf("egress %+v", r.Egress)
	}
	first := r.Egress.Rows[0]
	if first.Target != "example.com:443" || first.Verdict != proxy.Allowed || first.Count != 1 || first.Up < 200 || first.Down < 500 {
		t.Errorf("first row %+v", first)
	}
	if second := r.Egress.Rows[1]; second.Target != "evil.example:443" || second.Verdict != proxy.NotListed || second.Up != 0 {
		t.Errorf("second row %+v", second)
	}
	if third := r.Egress.Rows[2]; third.Target != "example.com:80" || third.Verdict != proxy.PlainRequest {
		t.Errorf("third row %+v", third)
	}
}

// fetch posts to each URL as any client would, with the proxy of its environment.
func fetch(urls []string) {
	ca, err := io.ReadAll(os.Stdin)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(ca) {
		panic("no roots")
	}
	c := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: pool}}}
	for _, u := range urls {
		res, err := c.Post(u, "text/plain", strings.NewReader("body"))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			fmt.Printf("%s: failed\n", u)
			continue
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		status := ""
		if res.StatusCode != 200 {
			status = fmt.Sprint(res.StatusCode, " ")
		}
		fmt.Printf("%s: %s%s\n", u, status, strings.TrimSpace(string(body)))
	}
}

// TestThreatS23: a program that speaks to the proxy itself, in every form that
// has fooled one, reaches nothing (proxy).
func TestThreatS23(t *testing.T) {
	connect := func(target string, more ...string) string {
		return strings.Join(append([]string{"CONNECT " + target + " HTTP/1.1"}, more...), "\r\n") + "\r\n\r\n"
	}
	good := connect("example.com:443")
	forms := map[string]string{
		"another host": connect("evil.example:443"), "another port": connect("example.com:80"), "a name below": connect("a.example.com:443"),
		"localhost": connect("localhost:443"), "loopback": connect("127.0.0.1:443"), "loopback of six": connect("[::1]:443"),
		"decimal": connect("2130706433:443"), "octal": connect("0177.0.0.1:443"), "hexadecimal": connect("0x7f.1:443"),
		"mapped": connect("[::ffff:127.0.0.1]:443"), "zone": connect("[fe80::1%lo]:443"), "metadata": connect("169.254.169.254:80"),
		"metadata of six": connect("[fd00:ec2::254]:80"), "the address of a listed name": connect("93.184.216.34:443"), "a private address": connect("10.0.0.1:443"),
		"leads to loopback": connect("loopback.example:443"), "leads to loopback of six": connect("six.example:443"),
		"leads to metadata": connect("meta.example:443"), "leads to metadata of six": connect("meta6.example:443"),
		"leads to a private address": connect("private.example:443"), "leads to translated metadata": connect("translated.example:443"),
		"leads to both": connect("mixed.example:443"), "this machine": connect("203.0.113.7:443"),
		"another Host": connect("evil.example:443", "Host: example.com:443"), "a body": connect("evil.example:443", "Content-Length: 99") + good,
		"after a refusal": connect("evil.example:443") + good, "line feeds": "CONNECT evil.example:443 HTTP/1.1\n\n" + good,
		"a carriage return": connect("example.com:443 HTTP/1.1\rX: evil.example:443"), "NUL": connect("evil.example\x00.example.com:443"),
		"user": connect("example.com@evil.example:443"), "percent": connect("evil%2eexample:443"), "plain http": "GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	}
	asked, err := json.Marshal(forms)
	if err != nil {
		t.Fatal(err)
	}
	w := newFarWorld(t)
	s := hostile(t, "speak")
	s.Network, s.Stdin = sandbox.NetworkAllow, asked
	s.Allow = []string{"example.com:443", "loopback.example:443", "six.example:443", "meta.example:443", "meta6.example:443",
		"private.example:443", "translated.example:443", "mixed.example:443", "rebind.example:443"}
	r, o := run(t, sandbox.WithOutside(s, w.outside()))
	exited(t, r, o, 0)
	var got map[string]string
	if err := json.Unmarshal(o.stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, clip(o.stdout.String()))
	}
	for name := range forms {
		if a := got[name]; !strings.HasPrefix(a, "HTTP/1.1 403 ") && !strings.HasPrefix(a, "HTTP/1.1 400 ") || strings.Count(a, "HTTP/1.1") != 1 {
			t.Errorf("%s: %q", name, a)
		}
	}
	// The name that changes where it leads: once reached, once refused.
	if a := got["rebinding 1"]; !strings.HasPrefix(a, "HTTP/1.1 200 ") {
		t.Errorf("rebinding, first: %q", a)
	}
	if a := got["rebinding 2"]; !strings.HasPrefix(a, "HTTP/1.1 403 ") {
		t.Errorf("rebinding, second: %q", a)
	}
	w.rest.untouched(t)
	for _, name := range w.asked {
		if name == "evil.example" || name == "a.example.com" || name == "localhost" {
			t.Errorf("the resolver was asked for %s", name)
		}
	}
	if r.Egress == nil || r.Egress.Rows[0].Verdict == proxy.NotListed || r.Egress.Up+r.Egress.Down > 4096 {
		t.Errorf("egress %+v", r.Egress)
	}
}

// speak sends each form to the proxy by itself, and prints the answers.
func speak([]string) {
	var forms map[string]string
	if err := json.NewDecoder(os.Stdin).Decode(&forms); err != nil {
		panic(err)
	}
	at := strings.TrimPrefix(os.Getenv("HTTPS_PROXY"), "http://")
	got := map[string]string{}
	say := func(name, raw string) {
		c, err := net.Dial("tcp", at)
		if err != nil {
			got[name] = err.Error()
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, raw)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			line = err.Error()
		}
		got[name] = line
		if !strings.Contains(line, " 200 ") {
			rest, _ := io.ReadAll(c)
			got[name] += string(rest)
		}
	}
	for name, raw := range forms {
		say(name, raw)
	}
	for i := range 2 {
		say(fmt.Sprintf("rebinding %d", i+1), "CONNECT rebind.example:443 HTTP/1.1\r\n\r\n")
	}
	json.NewEncoder(os.Stdout).Encode(got)
}

// TestEgressEndsWithTheTurn: a tunnel that a turn leaves open is closed at its
// end, and what was stopped before it ran has an empty record.
func TestEgressEndsWithTheTurn(t *testing.T) {
	w := newFarWorld(t)
	s := hostile(t, "speak")
	s.Network, s.Allow, s.Stdin = sandbox.NetworkAllow, []string{"rebind.example:443"}, []byte("{}")
	p := start(t, sandbox.WithOutside(s, w.outside()))
	p.Stop()
	r, _ := finish(t, p)
	if r.Egress == nil || len(r.Egress.Rows) != 0 {
		t.Errorf("egress %+v", r.Egress)
	}
	if r, _ := run(t, shell(t, "exit 0")); r.Egress != nil {
		t.Errorf("a turn without a network has the record %+v", r.Egress)
	}
}
