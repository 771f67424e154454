// Package remotetest is a remote signer (NIP-46) for tests, behind a relay of its
// own and as honest as its script.
//
// Its noun is the Signer: the bunker's key, the key that it keeps, and a relay on
// a loopback socket that carries kind 24133. What goes in are the requests of a
// client (package remote, or a whole holdfast process that was given URL); what
// comes out is what the honest signer answers, unless Set says otherwise:
// nothing, a refusal, another key's signature, an altered event.
//
// The relay answers every connection from one goroutine. The methods may be
// called from any goroutine; the exported members are changed between the calls
// of a client only. Nothing here is durable, and only tests import the package.
package remotetest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay/relaytest"
)

const kindConnect = 24133 // NIP-46 requests and responses

// Request and Response are the bodies of NIP-46.
type (
	Request struct {
		ID     string   `json:"id"`
		Method string   `json:"method"`
		Params []string `json:"params"`
	}
	Response struct {
		ID     string `json:"id"`
		Result string `json:"result"`
		Error  string `json:"error"`
	}
)

// Signer is a remote signer behind its own relay, both scripted.
type Signer struct {
	t      testing.TB
	Key    nip.SecretKey // of the bunker
	User   nip.SecretKey // that it keeps
	Secret string
	Relay  *relaytest.Hostile

	mu sync.Mutex // guards what follows
	// answer changes what is sent for a request; nil is the honest answer.
	answer func(r Request, honest Response) []Response
	open   bool // the relay wants no authentication
	drop   int  // requests after which the connection is dropped
}

// New starts a signer with two fresh keys for the length of t.
func New(t testing.TB) *Signer {
	s := &Signer{t: t, Key: relaytest.Key(t), User: relaytest.Key(t), Secret: "only once"}
	s.Relay = relaytest.NewHostile(t, s.serve)
	return s
}

// URL is the bunker:// address; its secret is Secret as long as that is what New made it.
func (s *Signer) URL() string {
	return "bunker://" + string(s.Key.Public()) + "?relay=" + string(s.Relay.URL) + "&secret=only%20once&name=x"
}

// Set scripts the answers: for each request those that answer returns are sent,
// beside none or instead of the honest one. Nil is the honest answer alone.
func (s *Signer) Set(answer func(r Request, honest Response) []Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// SetRelay says how the relay treats the next connections: whether it wants no
// authentication, and after how many requests it drops one (0: never).
func (s *Signer) SetRelay(open bool, drop int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.drop = open, drop
}

func (s *Signer) serve(c *relaytest.HostileConn) {
	s.mu.Lock()
	admitted, drop := s.open, s.drop
	s.mu.Unlock()
	if !admitted {
		c.Send("AUTH", "challenge of "+strings.Repeat("c", 20))
	}
	sub := ""
	for {
		m := c.Next()
		switch m.Label {
		case "REQ":
			if !admitted {
				c.Send("CLOSED", m.Text(0), "auth-required: who are you")
				continue
			}
			sub = m.Text(0)
			c.Send("EOSE", sub)
		case "AUTH":
			admitted = true
			c.Send("OK", m.Event().ID, true, "")
		case "EVENT":
			ev := m.Event()
			c.Send("OK", ev.ID, true, "")
			if drop--; drop == 0 {
				return
			}
			for _, resp := range s.respond(ev) {
				c.Event(sub, resp)
			}
		}
	}
}

func (s *Signer) respond(ev *nip.Event) []*nip.Event {
	client := nip.PubKey(ev.PubKey)
	body, err := nip.Keep(s.Key).Decrypt(context.Background(), client, ev.Content)
	if err != nil {
		s.t.Errorf("client sent what does not decrypt: %v", err)
		return nil
	}
	var r Request
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		s.t.Errorf("client sent no request: %v", err)
		return nil
	}
	list := []Response{s.honest(r)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil {
		list = s.answer(r, list[0])
	}
	var events []*nip.Event
	for _, resp := range list {
		events = append(events, s.Seal(s.Key, client, resp))
	}
	return events
}

// Seal is a response as key sends it to client.
func (s *Signer) Seal(key nip.SecretKey, client nip.PubKey, resp Response) *nip.Event {
	b, err := json.Marshal(resp)
	if err != nil {
		s.t.Error(err)
	}
	content, err := nip.Keep(key).Encrypt(context.Background(), client, string(b))
	if err != nil {
		s.t.Error(err)
	}
	ev := &nip.Event{Kind: kindConnect, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"p", string(client)}}, Content: content}
	if err := key.Sign(ev); err != nil {
		s.t.Error(err)
	}
	return ev
}

func (s *Signer) honest(r Request) Response {
	resp := Response{ID: r.ID}
	var err error
	switch r.Method {
	case "connect":
		if len(r.Params) < 2 || r.Params[0] != string(s.Key.Public()) || r.Params[1] != s.Secret {
			resp.Error = "wrong secret"
			return resp
		}
		resp.Result = "ack"
	case "get_public_key":
		resp.Result = string(s.User.Public())
	case "sign_event":
		var ev nip.Event
		if err = json.Unmarshal([]byte(r.Params[0]), &ev); err == nil {
			err = s.User.Sign(&ev)
			resp.Result = string(nip.EncodeEvent(&ev))
		}
	case "nip44_encrypt":
		resp.Result, err = nip.Keep(s.User).Encrypt(context.Background(), nip.PubKey(r.Params[0]), r.Params[1])
	case "nip44_decrypt":
		resp.Result, err = nip.Keep(s.User).Decrypt(context.Background(), nip.PubKey(r.Params[0]), r.Params[1])
	default:
		resp.Error = "no such method"
	}
	if err != nil {
		resp.Error = "failed"
	}
	return resp
}
