package embedded

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"holdfast/nip"
)

// Handler answers websockets and NIP-11. Its server must listen on a loopback
// address or speak TLS; Serve and ServeTLS make sure of that.
func (r *Relay) Handler() http.Handler { return http.HandlerFunc(r.answer) }

// Serve lets clients in over ln, without TLS, until Close; then it returns nil.
// It refuses a listener that is not TCP on a loopback address, unless
// Options.AllowPlain says otherwise.
func (r *Relay) Serve(ln net.Listener) error {
	a, ok := ln.Addr().(*net.TCPAddr)
	if !r.o.AllowPlain && (!ok || !a.IP.IsLoopback()) {
		return fmt.Errorf("%w (%s)", ErrNotLoopback, ln.Addr())
	}
	return r.listen(newGate(ln))
}

// ServeTLS is Serve over TLS (1.2 or later), on any address. cert and key are
// the paths of PEM files, read once: a renewed certificate needs a restart. The
// relay must have the wss name under which clients reach it, as Options.Name or
// in Options.Also.
func (r *Relay) ServeTLS(ln net.Listener, cert, key string) error {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("embedded relay: certificate %s with key %s: %w", cert, key, err)
	}
	return r.listen(tls.NewListener(newGate(ln), &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"http/1.1"}, // a websocket starts there
	}))
}

// listen serves until Close.
func (r *Relay) listen(ln net.Listener) error {
	s := &http.Server{
		Handler:           r.Handler(),
		ReadHeaderTimeout: 10 * time.Second, // and the time of a TLS handshake
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // what strangers send is no news
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		ln.Close()
		return nil
	}
	r.servers[s] = struct{}{}
	r.mu.Unlock()
	err := s.Serve(ln)
	r.mu.Lock()
	closed := r.closed
	delete(r.servers, s)
	r.mu.Unlock()
	if closed {
		return nil
	}
	return fmt.Errorf("embedded relay: %w", err)
}

func (r *Relay) answer(w http.ResponseWriter, req *http.Request) {
	if !r.trusted(req) {
		http.Error(w, "this relay is not reached by that name", http.StatusForbidden)
		return
	}
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		if strings.Contains(req.Header.Get("Accept"), "application/nostr+json") {
			r.document(w)
			return
		}
		http.Error(w, "a nostr relay: connect with a websocket", http.StatusUpgradeRequired)
		return
	}
	ws, err := websocket.Accept(w, req, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // trusted checked Origin, more strictly
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return // Accept answered
	}
	// The peer of the socket and nothing else: X-Forwarded-For is what the
	// client likes to say. Behind a TLS proxy all strangers share its address.
	address := network(req.RemoteAddr)
	done := make(chan struct{})
	if !r.enter(func() { defer close(done); r.serve(ws, address) }) {
		ws.CloseNow()
		return
	}
	<-done
}

// trusted checks Host and Origin. A web page that points its own name at this
// address (DNS rebinding) sends that name as Host; one that dials the loopback
// address sends its own Origin.
func (r *Relay) trusted(req *http.Request) bool {
	if !r.ours(req.Host) {
		return false
	}
	origins := req.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	u, err := url.Parse(origins[0])
	if err != nil || len(origins) > 1 || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	return strings.EqualFold(u.Host, req.Host) || r.namesHost(u.Host)
}

// ours reports whether a Host header is a literal loopback address, localhost,
// or the host of one of the relay's names.
func (r *Relay) ours(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	if a, err := netip.ParseAddr(name); err == nil {
		return a.IsLoopback() && a.Zone() == "" || r.namesHost(host)
	}
	return strings.EqualFold(name, "localhost") || r.namesHost(host)
}

func (r *Relay) namesHost(host string) bool {
	for _, n := range append([]nip.RelayURL{r.o.Name}, r.o.Also...) {
		u, err := url.Parse(string(n))
		if err != nil {
			continue
		}
		port := map[string]string{"ws": ":80", "wss": ":443"}[u.Scheme] // clients leave it out, or not
		if strings.EqualFold(strings.TrimSuffix(u.Host, port), strings.TrimSuffix(host, port)) {
			return true
		}
	}
	return false
}

// document is NIP-11.
func (r *Relay) document(w http.ResponseWriter) {
	b, err := json.Marshal(map[string]any{
		"name":                 "holdfast",
		"description":          "private artifacts between a host and its devices",
		"software":             "holdfast",
		"supported_nips":       []int{1, 11, 40, 42},
		"supported_extensions": []string{"oa-private-artifacts-v1"},
		"limitation": map[string]any{
			"max_message_length": maxFrame, "max_subscriptions": maxSubs, "max_limit": maxLimit, "default_limit": defaultLimit,
			"max_subid_length": maxSubID, "auth_required": true, "payment_required": false, "restricted_writes": true,
			"created_at_upper_limit": futureMost,
		},
		"retention": []map[string]any{{"kinds": []int{nip.KindArtifact}, "time": int(memberLife / time.Second)}},
	}, json.Deterministic(true))
	if err != nil {
		http.Error(w, "no document", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/nostr+json")
	w.Write(b)
}
