package nip

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nbd-wtf/go-nostr"
)

// The bounds of an event. A private artifact has exactly three tags of two
// strings; the others bound the rest of what a relay sends, authentication
// events for instance.
const (
	maxContent  = 409_600 // characters, checked in bytes
	maxTags     = 64
	maxTagParts = 16
	maxTagText  = 4_096
	tagArtifact = "oa:artifact:v1"
)

// VerifyEvent checks the bounds and the shape of ev, recomputes its ID and
// checks its signature, in this order, the costly step last. A kind 3188 event
// must carry the tags p, h and t of a private artifact; an expiration (NIP-40)
// may stand beside them, because that one is between a publisher and its relay.
// Open, which reads the artifact, refuses it. It works on a copy and never
// panics, whatever ev holds.
func VerifyEvent(ev *Event) (Verified, error) {
	if ev == nil {
		return Verified{}, fault(Malformed, layerEvent, "no event")
	}
	if err := checkShape(ev); err != nil {
		return Verified{}, err
	}
	if !isHex(ev.ID, 64) || !isHex(ev.Sig, 128) {
		return Verified{}, fault(Malformed, layerEvent, "id or sig is not lowercase hex of its length")
	}
	if ev.Kind == KindArtifact {
		bare := *ev
		if i := expirationAt(ev); i >= 0 {
			bare.Tags = slices.Delete(slices.Clone(ev.Tags), i, i+1)
		}
		if _, err := artifactTags(&bare); err != nil {
			return Verified{}, err
		}
	}
	id := eventHash(ev)
	if hex.EncodeToString(id[:]) != ev.ID {
		return Verified{}, fault(Malformed, layerEvent, "id is not the hash of the event")
	}
	pub, err := curvePoint(ev.PubKey)
	if err != nil {
		return Verified{}, withLayer(err, layerEvent, "pubkey")
	}
	raw, err := hex.DecodeString(ev.Sig)
	if err != nil {
		return Verified{}, fault(Malformed, layerEvent, "sig is not hex")
	}
	sig, err := schnorr.ParseSignature(raw)
	if err != nil || !sig.Verify(id[:], pub) {
		return Verified{}, fault(Malformed, layerEvent, "signature does not hold")
	}
	return Verified{ev: cloneEvent(ev)}, nil
}

// checkShape is every bound that needs neither the ID nor the signature. It
// stands before the serialisation, which trusts the pubkey to be hex.
func checkShape(ev *Event) error {
	switch {
	case !ValidID(ev.PubKey):
		return fault(Malformed, layerEvent, "pubkey is not 64 lowercase hex")
	case ev.CreatedAt < 0 || ev.CreatedAt > maxInt:
		return fault(Malformed, layerEvent, "created_at is out of range")
	case ev.Kind < 0 || ev.Kind > 65_535:
		return fault(Malformed, layerEvent, "kind is out of range")
	case len(ev.Content) > maxContent:
		return fault(Bounds, layerEvent, "content is too long")
	case !utf8.ValidString(ev.Content):
		return fault(Malformed, layerEvent, "content is not UTF-8")
	case len(ev.Tags) > maxTags:
		return fault(Bounds, layerEvent, "too many tags")
	}
	for _, tag := range ev.Tags {
		if len(tag) > maxTagParts {
			return fault(Bounds, layerEvent, "a tag is too long")
		}
		for _, s := range tag {
			if len(s) > maxTagText {
				return fault(Bounds, layerEvent, "a tag's text is too long")
			}
			if !utf8.ValidString(s) {
				return fault(Malformed, layerEvent, "a tag is not UTF-8")
			}
		}
	}
	return nil
}

type artifactTag struct {
	recipient PubKey
	mailbox   Mailbox
}

// artifactTags reads the three tags of a private artifact, in any order.
func artifactTags(ev *Event) (artifactTag, error) {
	bad := fault(Malformed, layerEvent, "tags are not exactly p, h and t")
	var out artifactTag
	marked := false
	if len(ev.Tags) != 3 {
		return out, bad
	}
	for _, tag := range ev.Tags {
		if len(tag) != 2 {
			return artifactTag{}, bad
		}
		switch name, value := tag[0], tag[1]; {
		case name == "p" && out.recipient == "" && ValidID(value):
			out.recipient = PubKey(value)
		case name == "h" && out.mailbox == "" && ValidID(value):
			out.mailbox = Mailbox(value)
		case name == "t" && !marked && value == tagArtifact:
			marked = true
		default:
			return artifactTag{}, bad
		}
	}
	return out, nil
}

// Expiration returns the time (Unix seconds) after which relays show ev to
// nobody (NIP-40); false for an event without an expiration tag, or with one
// that is no time.
func Expiration(ev *Event) (at int64, ok bool) {
	i := expirationAt(ev)
	if i < 0 {
		return 0, false
	}
	at, err := strconv.ParseInt(ev.Tags[i][1], 10, 64)
	return at, err == nil
}

// expirationAt is the place of the first expiration tag that holds a time in
// decimal digits, -1 where there is none. A second one is left for artifactTags
// to refuse.
func expirationAt(ev *Event) int {
	return slices.IndexFunc(ev.Tags, func(tag nostr.Tag) bool {
		if len(tag) != 2 || tag[0] != "expiration" {
			return false
		}
		n, err := strconv.ParseInt(tag[1], 10, 64)
		return err == nil && n >= 0 && n <= maxInt && strconv.FormatInt(n, 10) == tag[1]
	})
}

func eventHash(ev *Event) [32]byte { return sha256.Sum256(ev.Serialize()) }

func cloneEvent(ev *Event) *Event {
	c := *ev
	c.Tags = make(nostr.Tags, len(ev.Tags))
	for i, tag := range ev.Tags {
		c.Tags[i] = append(make(nostr.Tag, 0, len(tag)), tag...)
	}
	return &c
}

// ParseEvent decodes one NIP-01 event strictly: exactly the seven members, none
// twice, within 1 MiB and the bounds of VerifyEvent. It does not verify.
func ParseEvent(b []byte) (*Event, error) {
	r := &reader{layer: layerEvent}
	ev := r.event(r.document("event", b, maxJSON))
	if r.err != nil {
		return nil, r.err
	}
	return ev, nil
}

// event takes the members of an event and checks everything that VerifyEvent
// checks before the ID.
func (r *reader) event(o object) *Event {
	ev := &Event{
		ID:        o.text("id"),
		PubKey:    o.text("pubkey"),
		CreatedAt: nostr.Timestamp(o.int("created_at")),
		Kind:      int(o.int("kind")),
		Content:   o.text("content"),
		Sig:       o.text("sig"),
		Tags:      nostr.Tags{},
	}
	for _, v := range o.list("tags", maxTags) {
		tag := nostr.Tag{}
		holder := object{r: r, path: "event", m: map[string]jsontext.Value{"tag": v}}
		for _, s := range holder.texts("tag", maxTagParts) {
			tag = append(tag, s)
		}
		ev.Tags = append(ev.Tags, tag)
	}
	o.end()
	if r.err != nil {
		return nil
	}
	if !isHex(ev.ID, 64) || !isHex(ev.Sig, 128) {
		r.fail(Malformed, "id or sig is not lowercase hex of its length")
	}
	if err := checkShape(ev); err != nil && r.err == nil {
		r.err = err.(*Error)
	}
	return ev
}

// EncodeEvent writes an event as JSON, canonically. It is for events that were
// parsed, verified or signed here; one whose text is not UTF-8 gives nil. Every
// event passes it several times, so it writes the seven members in their
// canonical order itself.
func EncodeEvent(ev *Event) []byte {
	if at, kind := int64(ev.CreatedAt), int64(ev.Kind); max(at, kind) > maxInt || min(at, kind) < -maxInt {
		return nil
	}
	valid := true
	b := make([]byte, 0, len(ev.Content)+1024)
	text := func(before, s string) {
		var err error
		b = append(b, before...)
		if b, err = jsontext.AppendQuote(b, s); err != nil {
			valid = false
		}
	}
	text(`{"content":`, ev.Content)
	b = strconv.AppendInt(append(b, `,"created_at":`...), int64(ev.CreatedAt), 10)
	text(`,"id":`, ev.ID)
	b = strconv.AppendInt(append(b, `,"kind":`...), int64(ev.Kind), 10)
	text(`,"pubkey":`, ev.PubKey)
	text(`,"sig":`, ev.Sig)
	b = append(b, `,"tags":[`...)
	for i, tag := range ev.Tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for j, s := range tag {
			if j > 0 {
				b = append(b, ',')
			}
			text("", s)
		}
		b = append(b, ']')
	}
	b = append(b, "]}"...)
	if !valid || len(b) > maxJSON {
		return nil
	}
	return b
}

func eventMembers(ev *Event) members {
	return members{
		"id":         ev.ID,
		"pubkey":     ev.PubKey,
		"created_at": int64(ev.CreatedAt),
		"kind":       ev.Kind,
		"tags":       tagLists(ev.Tags),
		"content":    ev.Content,
		"sig":        ev.Sig,
	}
}

func tagLists(tags nostr.Tags) [][]string {
	out := make([][]string, len(tags))
	for i, t := range tags {
		out[i] = t
	}
	return out
}
