package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/host"
	"holdfast/nip"
)

// testCertificate is a self-made certificate and its key as files.
type testCertificate struct{ cert, key string }

func makeCertificate(t *testing.T, from, until time.Time, names ...string) testCertificate {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"}, NotBefore: from, NotAfter: until,
		DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
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
	c := testCertificate{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	for path, block := range map[string]*pem.Block{c.cert: {Type: "CERTIFICATE", Bytes: der}, c.key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func currentCertificate(t *testing.T) testCertificate {
	return makeCertificate(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "localhost")
}

// phoneWith runs a device verb in a process that trusts the certificate ("" is
// none of ours).
func phoneWith(ctx context.Context, s *tour, name, trust string, into any, args ...string) (exit int, message string, err error) {
	c := exec.CommandContext(ctx, s.exe, append(append([]string{"--json", "device"}, args...), "--profile", s.profile(name))...)
	c.Env = append(s.environment(), "SSL_CERT_FILE="+trust)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		var x *exec.ExitError
		if !errors.As(err, &x) {
			return 0, "", err
		}
		return x.ExitCode(), errs.String(), nil
	}
	if into == nil {
		return 0, "", nil
	}
	return 0, "", json.Unmarshal(out.Bytes(), into)
}

// reaches has a device redeem code and name the host's workspaces.
func reaches(t *testing.T, s *tour, ctx context.Context, name, trust, code string) {
	t.Helper()
	for _, args := range [][]string{{"pair", code, "--allow-loopback"}, {"workspaces"}} {
		if exit, msg, err := phoneWith(ctx, s, name, trust, nil, args...); err != nil || exit != 0 {
			t.Fatalf("%s, %s: exit %d, %s, %v", name, args[0], exit, msg, err)
		}
	}
}

func invite(t *testing.T, s *tour, ctx context.Context, args ...string) host.Invited {
	t.Helper()
	var inv host.Invited
	if err := s.operator(ctx, &inv, append([]string{"invite"}, args...)...); err != nil {
		t.Fatal(err)
	}
	return inv
}

// TestServeOverTLS: a real host on all addresses, over TLS; a device that trusts
// the certificate pairs and works through the public name, another does not.
func TestServeOverTLS(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	c := currentCertificate(t)
	_, port, _ := net.SplitHostPort(freePort(t))
	url := "wss://localhost:" + port + "/"
	p, ready := up(t, s, ctx, "--listen", "0.0.0.0:"+port, "--tls-cert", c.cert, "--tls-key", c.key, "--public-url", url)
	if ready["relay"] != url {
		t.Errorf("ready: %v", ready)
	}
	inv := invite(t, s, ctx)
	if string(inv.Relay) != url {
		t.Errorf("invited to %s", inv.Relay)
	}
	if exit, msg, err := phoneWith(ctx, s, "blind", "/dev/null", nil, "pair", inv.Code, "--timeout", "3s"); err != nil || exit != exitUnreachable {
		t.Errorf("a device that does not trust the certificate: exit %d, %s, %v", exit, msg, err)
	}
	reaches(t, s, ctx, "phone", c.cert, inv.Code)
	var made struct{ Task string }
	if exit, msg, err := phoneWith(ctx, s, "phone", c.cert, &made, "create", "--workspace", string(demoLabel), "--title", "over TLS", "--prompt", "hello", "--wait", "completed"); err != nil || exit != 0 {
		t.Fatalf("create: exit %d, %s, %v", exit, msg, err)
	}
	var st host.Status
	if err := s.operator(ctx, &st, "status"); err != nil || len(st.Relays) != 1 || string(st.Relays[0].URL) != url || len(st.Relays[0].Also) != 0 {
		t.Errorf("status %+v, %v", st.Relays, err)
	}
	// The next start without these words says that the device is cut off.
	p.end()
	// Its own word says that it serves: verbs that look for it meanwhile would
	// take the lock of the home in turns, and a slow start might never get it.
	p, err := s.spawn("up", "--json", "--home", s.home, "--listen", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if _, _, err := p.await(ctx, 0, "ready", isEvent("ready")); err != nil {
		t.Fatal(err)
	}
	if exit, msg := exitOf(t, s, ctx, "invite", "--relay", url, "--home", s.home); exit != exitUsage || !strings.Contains(msg, "not on "+url) {
		t.Errorf("an invitation to a name that is not served: exit %d, %s", exit, msg)
	}
}

// eventually waits for a condition as long as ctx lasts.
func (t *tour) eventually(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// proxyTLS is a TLS proxy on this computer before a plain relay.
func proxyTLS(t *testing.T, c testCertificate, to string) (port string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				done := make(chan struct{})
				go func() { defer close(done); io.Copy(out, in); out.Close() }()
				io.Copy(in, out)
				in.Close()
				<-done
			})
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	_, port, _ = net.SplitHostPort(ln.Addr().String())
	return port
}

// TestServeBehindAProxy: one relay under two names at once. Invitations take the
// public one unless told, each device works through its own, and each hears what
// the other does.
func TestServeBehindAProxy(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	c := currentCertificate(t)
	addr := freePort(t)
	public := "wss://localhost:" + proxyTLS(t, c, addr) + "/"
	local := "ws://" + addr + "/"
	p, ready := up(t, s, ctx, "--listen", addr, "--public-url", public)
	if names, _ := json.Marshal(ready["relays"]); string(names) != `["`+public+`","`+local+`"]` {
		t.Errorf("names %s", names)
	}
	far, near := invite(t, s, ctx), invite(t, s, ctx, "--relay", local)
	if string(far.Relay) != public || string(near.Relay) != local {
		t.Errorf("invited to %s and %s", far.Relay, near.Relay)
	}
	reaches(t, s, ctx, "phone", c.cert, far.Code)
	reaches(t, s, ctx, "desk", "/dev/null", near.Code)
	var made struct{ Task string }
	if exit, msg, err := phoneWith(ctx, s, "phone", c.cert, &made, "create", "--workspace", string(demoLabel), "--title", "t", "--prompt", "hello", "--wait", "completed"); err != nil || exit != 0 {
		t.Fatalf("create: exit %d, %s, %v", exit, msg, err)
	}
	var list struct{ Tasks []struct{ Task string } }
	if exit, msg, err := phoneWith(ctx, s, "desk", "/dev/null", &list, "tasks"); err != nil || exit != 0 || len(list.Tasks) != 1 {
		t.Errorf("tasks of the other device: %+v, exit %d, %s, %v", list, exit, msg, err)
	}
	// The same words again strand nobody; the listen address was kept.
	p.end()
	p, err := s.spawn("up", "--home", s.home, "--public-url", public)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	reachAgain := func(name, trust string) {
		t.Helper()
		if exit, msg, err := phoneWith(ctx, s, name, trust, nil, "workspaces"); err != nil || exit != 0 {
			t.Errorf("%s after a restart: exit %d, %s, %v", name, exit, msg, err)
		}
	}
	reachAgain("phone", c.cert)
	reachAgain("desk", "/dev/null")
}

// TestListeningWords: what is refused before anything is made, in one line, and
// with which code.
func TestListeningWords(t *testing.T) {
	good := currentCertificate(t)
	other := currentCertificate(t)
	old := makeCertificate(t, time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour), "localhost")
	early := makeCertificate(t, time.Now().Add(24*time.Hour), time.Now().Add(48*time.Hour), "localhost")
	elsewhere := makeCertificate(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour), "other.example.com")
	shared := currentCertificate(t)
	if err := os.Chmod(shared.key, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := currentCertificate(t)
	if err := os.WriteFile(broken.cert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	const public = "wss://localhost:7447/"
	served := func(cert, key string) listening {
		return listening{listen: "0.0.0.0:7447", cert: cert, key: key, public: public}
	}
	for _, row := range []struct {
		name string
		l    listening
		exit int // 0: taken
		says string
	}{
		{"nothing", listening{}, 0, ""},
		{"loopback", listening{listen: "127.0.0.1:1"}, 0, ""},
		{"loopback of IPv6", listening{listen: "[::1]:1"}, 0, ""},
		{"loopback behind a proxy", listening{public: public}, 0, ""},
		{"TLS", served(good.cert, good.key), 0, ""},
		{"plain for a proxy elsewhere", listening{listen: "0.0.0.0:7447", public: public, plain: true}, 0, ""},

		{"all addresses", listening{listen: "0.0.0.0:7447"}, exitUsage, "beyond this computer"},
		{"all addresses, short", listening{listen: ":7447"}, exitUsage, "beyond this computer"},
		{"all addresses with a name", listening{listen: "0.0.0.0:7447", public: public}, exitUsage, "beyond this computer"},
		{"another address", listening{listen: "192.0.2.1:7447"}, exitUsage, "beyond this computer"},
		{"a host name", listening{listen: "localhost:7447"}, exitUsage, "beyond this computer"},
		{"no port", listening{listen: "127.0.0.1"}, exitUsage, "--listen 127.0.0.1"},
		{"plain without a name", listening{listen: "0.0.0.0:7447", plain: true}, exitUsage, "needs --public-url"},
		{"plain on loopback", listening{listen: "127.0.0.1:7447", public: public, plain: true}, exitUsage, "other machines reach"},
		{"plain by default", listening{public: public, plain: true}, exitUsage, "other machines reach"},
		{"plain and TLS", listening{listen: "0.0.0.0:7447", cert: good.cert, key: good.key, public: public, plain: true}, exitUsage, "contradict"},
		{"a certificate without a key", listening{listen: "0.0.0.0:7447", cert: good.cert, public: public}, exitUsage, "go together"},
		{"a key without a certificate", listening{listen: "0.0.0.0:7447", key: good.key, public: public}, exitUsage, "go together"},
		{"TLS without an address", listening{cert: good.cert, key: good.key, public: public}, exitUsage, "needs --listen"},
		{"TLS without a name", listening{listen: "0.0.0.0:7447", cert: good.cert, key: good.key}, exitUsage, "needs --public-url"},
		{"a name without TLS", listening{public: "ws://relay.example.com/"}, exitUsage, "not wss"},
		{"a loopback name", listening{public: "ws://127.0.0.1:7447/"}, exitUsage, "not wss"},
		{"a name too long", listening{public: "wss://" + strings.Repeat("a", 250) + "/"}, exitUsage, "at most 256"},

		{"no such certificate", served("/nowhere/cert.pem", good.key), exitFailed, "no such file"},
		{"no such key", served(good.cert, "/nowhere/key.pem"), exitFailed, "no such file"},
		{"a folder", served(good.cert, "/"), exitFailed, "no regular file"},
		{"another key", served(good.cert, other.key), exitFailed, "is not the key of"},
		{"no certificate in it", served(broken.cert, broken.key), exitFailed, broken.cert},
		{"ended", served(old.cert, old.key), exitFailed, "ended on"},
		{"not begun", served(early.cert, early.key), exitFailed, "begins only"},
		{"another name's", served(elsewhere.cert, elsewhere.key), exitFailed, "other.example.com"},
		{"a key that others read", served(shared.cert, shared.key), exitFailed, "readable by others (mode 0644)"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := row.l.check()
			if row.exit == 0 {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var ce *cliError
			if !errors.As(err, &ce) || ce.Exit != row.exit || !strings.Contains(ce.Message, row.says) || strings.Contains(ce.Message, "\n") {
				t.Errorf("got %v, want exit %d and %q", err, row.exit, row.says)
			}
		})
	}
}

// TestPlainSaysWhatLeaks: the one way to serve without TLS beyond loopback, and
// what is printed on it.
func TestPlainSaysWhatLeaks(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	_, port, _ := net.SplitHostPort(freePort(t))
	p, _ := up(t, s, ctx, "--listen", "0.0.0.0:"+port, "--public-url", "wss://relay.example.com/", "--"+plainFlag)
	line, _, err := p.await(ctx, 0, "what leaks", isEvent("unencrypted"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"who talks to whom and when", "size", "cut or delay", "stays sealed"} {
		if why, _ := line["why"].(string); !strings.Contains(why, word) {
			t.Errorf("%q is not said: %q", word, why)
		}
	}
	reaches(t, s, ctx, "desk", "/dev/null", invite(t, s, ctx, "--relay", "ws://127.0.0.1:"+port+"/").Code)
}

// TestRelayServeOverTLS: the relay alone, over TLS, between a host and a device.
func TestRelayServeOverTLS(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	c := currentCertificate(t)
	_, port, _ := net.SplitHostPort(freePort(t))
	url := "wss://localhost:" + port + "/"
	r, err := s.spawn("relay", "serve", "--json", "--home", filepath.Join(s.dir, "relay-home"),
		"--listen", "0.0.0.0:"+port, "--tls-cert", c.cert, "--tls-key", c.key, "--public-url", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kill)
	if ready, _, err := r.await(ctx, 0, "the relay", isEvent("ready")); err != nil || ready["relay"] != url {
		t.Fatal(ready, err)
	}
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	h := exec.Command(s.exe, "serve", "--json", "--home", s.home, "--no-relay", "--relay", url)
	h.Env = append(s.environment(), "SSL_CERT_FILE="+c.cert)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Process.Kill(); h.Wait() })
	var st host.Status
	err = s.eventually(ctx, func() bool {
		// Not before the host has its lock: a verb would take it.
		if _, err := os.Lstat(filepath.Join(s.home, "operator.sock")); err != nil {
			return false
		}
		return s.operator(ctx, &st, "status") == nil && len(st.Relays) == 1 && st.Relays[0].State == "open" && st.Relays[0].Authenticated
	})
	if err != nil {
		t.Fatalf("%v: %+v", err, st.Relays)
	}
	inv := invite(t, s, ctx)
	if inv.Relay != nip.RelayURL(url) {
		t.Errorf("invited to %s", inv.Relay)
	}
	reaches(t, s, ctx, "phone", c.cert, inv.Code)
}
