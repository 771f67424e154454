package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast/nip"
	"holdfast/relay/embedded"
)

const (
	defaultListen = "127.0.0.1:7447"
	// longestRelay is how long a relay's name may be in a pairing code
	// (NIP-HOST, invitations).
	longestRelay = 256
)

// plainFlag says what it does, so that nobody sets it by accident.
const plainFlag = "unencrypted-on-the-network"

// plainLeaks is what a relay without TLS gives away to whoever is on the path.
const plainLeaks = "without TLS, whoever is on the network between here and the TLS proxy sees who talks to whom and when, and the size " +
	"of every message, and can cut or delay any of them; what the messages say stays sealed"

// listening is how the embedded relay is reached: words that up, serve and
// relay serve share.
type listening struct {
	listen    string
	cert, key string
	public    string
	plain     bool
}

func (l *listening) flags(c *cobra.Command) {
	c.Flags().StringVar(&l.listen, "listen", "", "address of the embedded relay (default "+defaultListen+"; beyond loopback only with --tls-cert)")
	c.Flags().StringVar(&l.cert, "tls-cert", "", "serve the embedded relay over TLS with this certificate chain (PEM)")
	c.Flags().StringVar(&l.key, "tls-key", "", "the certificate's private key (PEM), not readable by others")
	c.Flags().StringVar(&l.public, "public-url", "", "the name (wss://...) under which devices reach the embedded relay")
	c.Flags().BoolVar(&l.plain, plainFlag, false, "let --listen be an address that other machines reach, without TLS: for a TLS proxy on another machine")
}

// overTLS reports whether the embedded relay itself speaks TLS.
func (l *listening) overTLS() bool { return l.cert != "" }

// check refuses wrong words and a certificate that would serve nobody, before
// anything is opened or made.
func (l *listening) check() error {
	if (l.cert == "") != (l.key == "") {
		return usage("--tls-cert and --tls-key go together")
	}
	if l.public != "" {
		if err := nip.CheckRelay(nip.RelayURL(l.public), false); err != nil {
			return usage("--public-url %s: %s", l.public, err)
		}
		if len(l.public) > longestRelay {
			return usage("--public-url is %d characters long; a pairing code carries at most %d", len(l.public), longestRelay)
		}
	}
	outside, err := l.outside()
	switch {
	case err != nil:
		return err
	case l.overTLS() && l.plain:
		return usage("--tls-cert and --%s contradict each other", plainFlag)
	case l.overTLS() && l.listen == "":
		return usage("--tls-cert needs --listen ADDRESS:PORT, such as 0.0.0.0:7447")
	case l.overTLS() && l.public == "":
		return usage("--tls-cert needs --public-url, the name that devices dial, such as wss://relay.example.com:7447/")
	case l.plain && !outside:
		return usage("--%s is for a --listen address that other machines reach", plainFlag)
	case l.plain && l.public == "":
		return usage("--%s needs --public-url wss://..., the name of the TLS proxy: devices take no other", plainFlag)
	case outside && !l.overTLS() && !l.plain:
		return usage("--listen %s reaches beyond this computer: give --tls-cert and --tls-key, or listen on loopback such as %s (a TLS proxy on this computer needs no more)", l.listen, defaultListen)
	case l.overTLS():
		return checkCertificate(l.cert, l.key, nip.RelayURL(l.public), time.Now())
	}
	return nil
}

// outside reports whether --listen is an address that other machines could
// reach: everything but a literal loopback address, a host name too, because
// what that stands for can change.
func (l *listening) outside() (bool, error) {
	if l.listen == "" {
		return false, nil
	}
	name, _, err := net.SplitHostPort(l.listen)
	if err != nil {
		return false, usage("--listen %s: %s", l.listen, err)
	}
	ip := net.ParseIP(name)
	return ip == nil || !ip.IsLoopback(), nil
}

// open listens. addr stands in where --listen says nothing.
func (l *listening) open(addr string) (net.Listener, error) {
	if l.listen != "" {
		addr = l.listen
	}
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &cliError{Exit: exitBusy, Code: "port_in_use", Message: "something already listens on " + addr, Hint: "stop it, or choose another with --listen 127.0.0.1:PORT"}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

// names lists the names under which the listener's relay is reached: the public
// one first, and the loopback one where it speaks without TLS.
func (l *listening) names(ln net.Listener) []nip.RelayURL {
	var out []nip.RelayURL
	if l.public != "" {
		out = append(out, nip.RelayURL(l.public))
	}
	if local := l.local(ln); local != "" {
		out = append(out, local)
	}
	return out
}

// local is the loopback name, "" where there is none.
func (l *listening) local(ln net.Listener) nip.RelayURL {
	a, ok := ln.Addr().(*net.TCPAddr)
	switch {
	case !ok || l.overTLS():
		return ""
	case a.IP.IsUnspecified():
		return nip.RelayURL(fmt.Sprintf("ws://127.0.0.1:%d/", a.Port))
	case a.IP.IsLoopback():
		return nip.RelayURL("ws://" + a.String() + "/")
	}
	return ""
}

// serve lets clients in until the relay closes.
func (l *listening) serve(r *embedded.Relay, ln net.Listener) error {
	if l.overTLS() {
		return r.ServeTLS(ln, l.cert, l.key)
	}
	return r.Serve(ln)
}

// checkCertificate says in one line what would keep every device out, or give
// the key away.
func checkCertificate(cert, key string, name nip.RelayURL, now time.Time) error {
	bad := func(format string, args ...any) error {
		return &cliError{Exit: exitFailed, Code: "certificate", Message: fmt.Sprintf(format, args...)}
	}
	for _, f := range []struct{ flag, path string }{{"--tls-cert", cert}, {"--tls-key", key}} {
		flag, path := f.flag, f.path
		st, err := os.Stat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return bad("%s %s: there is no such file", flag, path)
		case err != nil:
			return bad("%s: %s", flag, err)
		case !st.Mode().IsRegular():
			return bad("%s %s is no regular file", flag, path)
		case flag == "--tls-key" && st.Mode().Perm()&0o027 != 0:
			return bad("--tls-key %s is readable by others (mode %04o); chmod 600 %s", path, st.Mode().Perm(), path)
		}
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return bad("--tls-key %s is not the key of the certificate in %s", key, cert)
	case err != nil:
		return bad("--tls-cert %s, --tls-key %s: %s", cert, key, err)
	}
	leaf := pair.Leaf
	u, err := url.Parse(string(name))
	if err != nil {
		return usage("--public-url %s: %s", name, err)
	}
	switch {
	case now.After(leaf.NotAfter):
		return bad("--tls-cert %s ended on %s; renew it", cert, leaf.NotAfter.Format(time.DateOnly))
	case now.Before(leaf.NotBefore):
		return bad("--tls-cert %s begins only on %s; is this clock right?", cert, leaf.NotBefore.Format(time.DateTime))
	case leaf.VerifyHostname(u.Hostname()) != nil:
		return bad("--tls-cert %s is for %s, not for %s of --public-url", cert, certified(leaf), u.Hostname())
	}
	return nil
}

// certified lists a few of the names that a certificate is for.
func certified(leaf *x509.Certificate) string {
	names := leaf.DNSNames
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no name at all"
	}
	return strings.Join(names[:min(4, len(names))], ", ")
}
