package embedded_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// certificate writes a self-signed certificate of 127.0.0.1 and its key.
func certificate(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"relay.example.com"},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(public)
	for path, b := range map[string][]byte{cert: public, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, roots
}

// TestTLS: two clients over a real socket, by the relay's wss names.
func TestTLS(t *testing.T) {
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	url := nip.RelayURL("wss://127.0.0.1:" + port + "/")
	r, err := embedded.Open(embedded.Options{
		Path: filepath.Join(t.TempDir(), "relay.db"), Name: url, Also: []nip.RelayURL{"wss://relay.example.com/"}, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, key, roots := certificate(t)
	served := make(chan error, 1)
	go func() { served <- r.ServeTLS(ln, cert, key) }()
	t.Cleanup(func() {
		r.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	link := func(url nip.RelayURL, k nip.SecretKey, change func(*relay.Options)) relay.Link {
		o := relay.Options{URL: url, Key: k, Log: zerolog.Nop(), TLS: &tls.Config{RootCAs: roots}}
		change(&o)
		l := relay.Dial(o)
		t.Cleanup(func() { l.Close() })
		return l
	}
	host, device := relaytest.Key(t), relaytest.Key(t)
	h := link(url, host, func(*relay.Options) {})
	s := h.Subscribe("s", relaytest.To(host.Public()))
	relaytest.AwaitEOSE(t, s)
	// The second name: its host resolves here only for this test.
	d := link("wss://relay.example.com/", device, func(o *relay.Options) {
		o.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
		}
	})
	ev := event(t, device, host.Public(), "over TLS")
	relaytest.Publish(t, d, ev)
	if got := relaytest.Next(t, s); got.Event.Event().ID != ev.ID {
		t.Error("another event")
	}
	if d := r.Local(host.Public()).Subscribe("via", relaytest.To(host.Public())); relaytest.Next(t, d).Relay != "wss://relay.example.com/" {
		t.Error("the delivery names another relay than the publisher's")
	}
	if !h.Health().Authenticated {
		t.Errorf("health %+v", h.Health())
	}

	// A client that does not trust the certificate does not get in.
	blind := link(url, device, func(o *relay.Options) { o.TLS = nil })
	relaytest.Eventually(t, "a word about the certificate", func() bool { return strings.Contains(blind.Health().LastError, "certificate") })
	// Nor does one without TLS, or with an old one.
	if resp := get(t, "http://127.0.0.1:"+port+"/", func(*http.Request) {}); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP got %d", resp.StatusCode)
	}
	if c, err := tls.Dial("tcp", "127.0.0.1:"+port, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}); err == nil {
		c.Close()
		t.Error("TLS 1.1 was taken")
	}
}

func TestCertificateThatIsNone(t *testing.T) {
	r, _ := open(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := r.ServeTLS(ln, "/nowhere/cert.pem", "/nowhere/key.pem"); err == nil || !strings.Contains(err.Error(), "/nowhere/cert.pem") {
		t.Errorf("got %v", err)
	}
}

// TestAllowPlain: another address without TLS only where the owner said so.
func TestAllowPlain(t *testing.T) {
	for _, allow := range []bool{false, true} {
		r, _ := open(t, func(o *embedded.Options) { o.AllowPlain = allow })
		ln, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- r.Serve(ln) }()
		if !allow {
			if err := <-served; !errors.Is(err, embedded.ErrNotLoopback) {
				t.Errorf("got %v", err)
			}
			ln.Close()
			continue
		}
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		if resp := get(t, "http://127.0.0.1:"+port+"/", func(*http.Request) {}); resp.StatusCode != http.StatusUpgradeRequired {
			t.Errorf("status %d", resp.StatusCode)
		}
		r.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// TestForwardedHeadersAreNotBelieved: a stranger who says to come from
// elsewhere each time has one address' share of events all the same.
func TestForwardedHeadersAreNotBelieved(t *testing.T) {
	c := &clock{at: time.Now()}
	host, stranger := relaytest.Key(t), relaytest.Key(t)
	_, url := open(t, func(o *embedded.Options) {
		o.Now = c.now
		o.Class = func(nip.PubKey) embedded.Class { return embedded.Stranger }
		o.Served = func(k nip.PubKey) bool { return k == host.Public() }
	})
	taken := 0
	for i := range 5 {
		ctx, stop := context.WithTimeout(t.Context(), relaytest.Patience)
		defer stop()
		from := fmt.Sprintf("203.0.113.%d", i)
		ws, _, err := websocket.Dial(ctx, string(url), &websocket.DialOptions{HTTPHeader: http.Header{
			"X-Forwarded-For": {from}, "X-Real-Ip": {from}, "Forwarded": {"for=" + from},
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		p := &peer{t: t, url: url, ws: ws, ctx: ctx}
		p.login(stranger)
		for j := range 20 {
			if p.publish(event(t, stranger, host.Public(), fmt.Sprint(i, j))) == "true" {
				taken++
			}
		}
	}
	if taken != 64 {
		t.Errorf("%d events of one address in one minute", taken)
	}
}
