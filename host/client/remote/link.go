package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

const (
	kindConnect = 24133 // NIP-46 requests and responses; ephemeral
	subID       = "bunker"
	maxFrame    = 512 << 10
	maxFrames   = 4096 // of a relay, in one wait
	dialTimeout = 15 * time.Second
)

// errLost is a connection that ended; what was sent over it may have arrived.
var errLost = errors.New("the connection to the bunker's relay ended")

// link is one connection to a relay that carries kind 24133. Package relay
// carries private artifacts only, so this is a smaller one of its own: used by
// one goroutine, read only while somebody waits.
type link struct {
	ws     *websocket.Conn
	url    nip.RelayURL
	key    nip.SecretKey
	peer   nip.PubKey
	authID string // of the authentication that was sent; "" before one
}

// dialLink connects and subscribes to what peer sends to key.
func dialLink(ctx context.Context, url nip.RelayURL, key nip.SecretKey, peer nip.PubKey) (*link, error) {
	dial, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	ws, _, err := websocket.Dial(dial, string(url), &websocket.DialOptions{
		// A redirect would move the key's signature to another name.
		HTTPClient: &http.Client{
			Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, fmt.Errorf("relay %s is not reached: %w", url, err)
	}
	ws.SetReadLimit(maxFrame)
	l := &link{ws: ws, url: url, key: key, peer: peer}
	if err := l.subscribe(dial); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) close() { l.ws.CloseNow() }

// subscribe asks and waits for the end of stored events, so that no answer is
// missed: relays do not keep this kind.
func (l *link) subscribe(ctx context.Context) error {
	if err := l.ask(ctx); err != nil {
		return err
	}
	for range maxFrames {
		f, err := l.read(ctx)
		switch {
		case err != nil:
			return err
		case f.label == "EOSE" && f.text == subID:
			return nil
		}
	}
	return fmt.Errorf("relay %s floods", l.url)
}

func (l *link) ask(ctx context.Context) error {
	filter, err := json.Marshal(map[string]any{"kinds": []int{kindConnect}, "authors": []string{string(l.peer)},
		"#p": []string{string(l.key.Public())}})
	if err != nil {
		return err
	}
	return l.write(ctx, relay.EncodeFrame("REQ", subID, filter))
}

func (l *link) write(ctx context.Context, frame []byte) error {
	if err := l.ws.Write(ctx, websocket.MessageText, frame); err != nil {
		return errors.Join(errLost, ctx.Err())
	}
	return nil
}

// frame is what a wait looks at of one message.
type frame struct {
	label string
	text  string // subscription ID, or the ID of an OK
	ok    bool
	words string // of OK and CLOSED
	event []byte
}

// read takes one message; authentication (NIP-42) is done on the way.
func (l *link) read(ctx context.Context) (frame, error) {
	_, b, err := l.ws.Read(ctx)
	if err != nil {
		return frame{}, errors.Join(errLost, ctx.Err())
	}
	f, err := parseFrame(b)
	if err != nil {
		return frame{}, fmt.Errorf("relay %s: %w", l.url, err)
	}
	switch {
	case f.label == "AUTH":
		return f, l.authenticate(ctx, f.text)
	case f.label == "OK" && f.text == l.authID:
		if !f.ok {
			return f, fmt.Errorf("relay %s refused authentication", l.url)
		}
		return f, l.ask(ctx)
	case f.label == "CLOSED" && f.text == subID && relay.Prefix(f.words) != "auth-required":
		// After authentication the subscription is asked for again.
		return f, fmt.Errorf("relay %s ended the subscription", l.url)
	}
	return f, nil
}

func (l *link) authenticate(ctx context.Context, challenge string) error {
	ev := &nip.Event{Kind: nostr.KindClientAuthentication, CreatedAt: nostr.Now(),
		Tags: nostr.Tags{{"relay", string(l.url)}, {"challenge", challenge}}}
	if err := l.key.Sign(ev); err != nil {
		return err
	}
	l.authID = ev.ID
	return l.write(ctx, relay.EncodeFrame("AUTH", nip.EncodeEvent(ev)))
}

// parseFrame decodes one message of a relay as far as this link needs it. An
// unknown label is no fault.
func parseFrame(b []byte) (frame, error) {
	parts, err := relay.SplitFrame(b, 8)
	if err != nil || len(parts) < 2 {
		return frame{}, errors.New("a message that is no relay message")
	}
	f := frame{label: text(parts[0])}
	switch f.label {
	case "EVENT":
		if len(parts) < 3 || parts[2].Kind() != '{' {
			return frame{}, errors.New("an event message without an event")
		}
		f.event = parts[2]
	case "OK":
		f.ok = len(parts) > 2 && parts[2].Kind() == 't'
		if len(parts) > 3 {
			f.words = text(parts[3])
		}
	case "CLOSED":
		if len(parts) > 2 {
			f.words = text(parts[2])
		}
	}
	f.text = text(parts[1])
	return f, nil
}

func text(v jsontext.Value) string {
	var s string
	if v.Kind() != '"' || json.Unmarshal(v, &s) != nil {
		return ""
	}
	return s
}
