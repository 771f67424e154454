package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// Options of Connect.
type Options struct {
	// Key is this client's own. A bunker remembers it, so keep it; the zero
	// key is replaced by a new one, which Bunker.Key gives.
	Key      nip.SecretKey
	Loopback bool // a person's word that ws:// on a loopback address is fine
	// Ask shows a person the address under which the bunker wants its
	// permission. Nil: such a bunker's answer is an error.
	Ask func(address string)
}

// Bunker is a nip.Keeper whose key is kept by a remote signer.
type Bunker struct {
	text string // the bunker:// URL, which holds a secret
	near bool   // Options.Loopback
	url  bunkerURL
	key  nip.SecretKey
	ask  func(string)
	user nip.PubKey

	// turn holds the one token of the one call at a time; who has it owns link.
	// It is no mutex because whoever waits for it must hear its context.
	turn chan struct{}
	link *link // nil between a loss and the next call
}

var _ nip.Keeper = (*Bunker)(nil)

// RefusedError is a bunker's own no.
type RefusedError struct {
	Method string
	Words  string // the bunker's, printable, at most 256 bytes
}

func (e *RefusedError) Error() string { return "the bunker refused " + e.Method + ": " + e.Words }

// Connect introduces this client to the bunker of a bunker:// URL and asks for
// the key that it keeps. ctx bounds the whole; the bunker may wait for a person.
func Connect(ctx context.Context, bunker string, o Options) (*Bunker, error) {
	b, err := newBunker(bunker, o)
	if err != nil {
		return nil, err
	}
	if err := b.introduce(ctx); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func newBunker(bunker string, o Options) (*Bunker, error) {
	u, err := parseURL(bunker, o.Loopback)
	if err != nil {
		return nil, err
	}
	if o.Key.Public() == "" {
		if o.Key, err = nip.GenerateSecretKey(rand.Reader); err != nil {
			return nil, fmt.Errorf("make a client key: %w", err)
		}
	}
	b := &Bunker{text: bunker, near: o.Loopback, url: u, key: o.Key, ask: o.Ask, turn: make(chan struct{}, 1)}
	b.turn <- struct{}{}
	return b, nil
}

func (b *Bunker) introduce(ctx context.Context) error {
	got, err := b.call(ctx, "connect", string(b.url.key), b.url.secret)
	if err != nil {
		return err
	}
	// The secret comes back from the bunker that gave it, and from nobody else.
	if got != "ack" && (b.url.secret == "" || got != b.url.secret) {
		return errors.New("the bunker answered connect with something else than its own secret")
	}
	user, err := b.call(ctx, "get_public_key")
	if err != nil {
		return err
	}
	if b.user, err = nip.ParsePubKey(user); err != nil {
		return errors.New("the bunker keeps no key that could be used")
	}
	return nil
}

// Key is this client's own key.
func (b *Bunker) Key() nip.SecretKey { return b.key }

// Public is the key that the bunker keeps.
func (b *Bunker) Public() nip.PubKey { return b.user }

// Close ends the connection, after the call under way. A later call makes a new
// one.
func (b *Bunker) Close() error {
	<-b.turn
	defer b.release()
	b.drop()
	return nil
}

func (b *Bunker) release() { b.turn <- struct{}{} }

func (b *Bunker) drop() {
	if b.link != nil {
		b.link.close()
		b.link = nil
	}
}

// Sign has the bunker sign ev and takes the signature only if it is one, of its
// key, over exactly these members.
func (b *Bunker) Sign(ctx context.Context, ev *nip.Event) error {
	tags := ev.Tags
	if tags == nil {
		tags = nostr.Tags{}
	}
	wanted, err := json.Marshal(map[string]any{"kind": ev.Kind, "created_at": int64(ev.CreatedAt), "content": ev.Content, "tags": tags})
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	got, err := b.call(ctx, "sign_event", string(wanted))
	if err != nil {
		return err
	}
	signed, err := nip.ParseEvent([]byte(got))
	if err != nil {
		return fmt.Errorf("the bunker's signed event: %w", err)
	}
	if _, err := nip.VerifyEvent(signed); err != nil {
		return fmt.Errorf("the bunker's signed event: %w", err)
	}
	if signed.PubKey != string(b.user) || signed.Kind != ev.Kind || signed.CreatedAt != ev.CreatedAt ||
		signed.Content != ev.Content || len(signed.Tags) != len(ev.Tags) || len(ev.Tags) > 0 && !reflect.DeepEqual(signed.Tags, ev.Tags) {
		return errors.New("the bunker signed another event, or with another key")
	}
	ev.PubKey, ev.ID, ev.Sig = signed.PubKey, signed.ID, signed.Sig
	return nil
}

// Encrypt has the bunker encrypt text for peer.
func (b *Bunker) Encrypt(ctx context.Context, peer nip.PubKey, text string) (string, error) {
	return b.call(ctx, "nip44_encrypt", string(peer), text)
}

// Decrypt has the bunker decrypt a payload of peer. Payloads that do not fit
// into an event of the bunker's relay are the bunker's refusal or silence.
func (b *Bunker) Decrypt(ctx context.Context, peer nip.PubKey, payload string) (string, error) {
	return b.call(ctx, "nip44_decrypt", string(peer), payload)
}

// request and response are the bodies of NIP-46.
type request struct {
	ID     string   `json:"id"`
	Method string   `json:"method"`
	Params []string `json:"params"`
}

type response struct {
	ID     string `json:"id"`
	Result string `json:"result"`
	Error  string `json:"error"`
}

// call sends one request and waits for the answer with its ID.
func (b *Bunker) call(ctx context.Context, method string, params ...string) (string, error) {
	select {
	case <-b.turn:
	case <-ctx.Done():
		return "", fmt.Errorf("bunker %s: another call is under way: %w", method, ctx.Err())
	}
	defer b.release()
	got, err := b.exchange(ctx, request{Method: method, Params: params})
	var refused *RefusedError
	if err != nil && !errors.As(err, &refused) {
		// Whatever was in flight must not be taken for the next call's.
		b.drop()
		return "", fmt.Errorf("bunker %s: %w", method, err)
	}
	return got, err
}

func (b *Bunker) exchange(ctx context.Context, r request) (string, error) {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return "", err
	}
	r.ID = id
	if r.Params == nil {
		r.Params = []string{}
	}
	body, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode request: %w", err)
	}
	content, err := nip.Keep(b.key).Encrypt(ctx, b.url.key, string(body))
	if err != nil {
		return "", err
	}
	ev := &nip.Event{Kind: kindConnect, CreatedAt: nostr.Now(), Tags: nostr.Tags{{"p", string(b.url.key)}}, Content: content}
	if err := b.key.Sign(ev); err != nil {
		return "", err
	}
	if err := b.reach(ctx); err != nil {
		return "", err
	}
	if err := b.link.write(ctx, relay.EncodeFrame("EVENT", nip.EncodeEvent(ev))); err != nil {
		return "", err
	}
	for range maxFrames {
		f, err := b.link.read(ctx)
		if err != nil {
			return "", err
		}
		switch {
		case f.label == "OK" && f.text == ev.ID && !f.ok:
			return "", fmt.Errorf("relay %s refused the request: %s", b.link.url, printable(f.words))
		case f.label != "EVENT":
			continue
		}
		resp, ok := b.open(ctx, f.event)
		if !ok || resp.ID != id {
			continue // another session's, or not the bunker's
		}
		if resp.Result == "auth_url" && b.ask != nil {
			b.ask(printable(resp.Error))
			continue // the answer comes under the same ID when the person agreed
		}
		if resp.Error != "" {
			return "", &RefusedError{Method: r.Method, Words: printable(resp.Error)}
		}
		return resp.Result, nil
	}
	return "", fmt.Errorf("relay %s floods", b.link.url)
}

// reach dials the first relay of the bunker that answers.
func (b *Bunker) reach(ctx context.Context) error {
	if b.link != nil {
		return nil
	}
	var all error
	for _, url := range b.url.relays {
		l, err := dialLink(ctx, url, b.key, b.url.key)
		if err == nil {
			b.link = l
			return nil
		}
		all = errors.Join(all, err)
	}
	return all
}

// open believes an event that the bunker signed and sealed to this client.
func (b *Bunker) open(ctx context.Context, raw []byte) (response, bool) {
	ev, err := nip.ParseEvent(raw)
	if err != nil || ev.Kind != kindConnect || ev.PubKey != string(b.url.key) || ev.Tags.FindWithValue("p", string(b.key.Public())) == nil {
		return response{}, false
	}
	if _, err := nip.VerifyEvent(ev); err != nil {
		return response{}, false
	}
	body, err := nip.Keep(b.key).Decrypt(ctx, b.url.key, ev.Content)
	if err != nil {
		return response{}, false
	}
	var r response
	// Bunkers write null for what is absent, which leaves "".
	if err := json.Unmarshal(jsontext.Value(body), &r); err != nil {
		return response{}, false
	}
	return r, true
}

// printable cuts foreign words to what may stand in a terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
	if len(s) > 256 {
		s = strings.ToValidUTF8(s[:256], "")
	}
	return s
}
