package nip

import (
	"bytes"
	"context"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nbd-wtf/go-nostr"
)

const (
	schemaEnvelope = "openagents.artifact-envelope.v1"
	mediaJSON      = "application/json"
	// maxPlaintext is what we produce, so that the whole event stays below the
	// 65,536 bytes at which common relays stop. We read up to the wire's limit.
	maxPlaintext = 40_960
)

// Open decrypts a private artifact and checks everything of the envelope that
// needs no expectation. It is hop 2 of the data path: before it stands the
// relay's receiver (relay/receive.go), after it the typed decoders, ParseRequest
// (nip/request.go) on a host.
//
// The order is the draft's: tags, shape of the payload, decryption, envelope
// schema, digest and size, media type, created_at equal to issued_at, strict
// decode of the body within 131,072 bytes, its `v` and its times equal to the
// envelope's. key belongs to the recipient or to the author; anybody else gets
// code forbidden before any cryptography. The caller still compares signer,
// recipient, schema and mailbox with what it expects.
func Open(v Verified, key SecretKey) (Opened, error) {
	return OpenBy(context.Background(), v, Keep(key))
}

// OpenBy is Open by a key that is kept elsewhere. That the Keeper did not
// decrypt is a *KeeperError; ctx bounds it.
func OpenBy(ctx context.Context, v Verified, k Keeper) (Opened, error) {
	ev := v.ev
	if ev == nil || ev.Kind != KindArtifact {
		return Opened{}, fault(Malformed, layerEvent, "not a verified artifact event")
	}
	tags, err := artifactTags(ev)
	if err != nil {
		return Opened{}, err
	}
	signer, self := PubKey(ev.PubKey), k.Public()
	peer := signer
	switch self {
	case tags.recipient:
	case signer:
		peer = tags.recipient
	default:
		return Opened{}, fault(Forbidden, layerEnvelope, "the artifact is between other keys")
	}
	if err := checkPayload(ev.Content); err != nil {
		return Opened{}, err
	}
	plain, err := k.Decrypt(ctx, peer, ev.Content)
	if err != nil {
		return Opened{}, keeperFault(k, "decrypt", err)
	}
	a, digest, err := parseEnvelope([]byte(plain))
	if err != nil {
		return Opened{}, err
	}
	if int64(ev.CreatedAt) != a.IssuedAt {
		return Opened{}, fault(Malformed, layerEnvelope, "issued_at is not the event's created_at")
	}
	if err := checkTimes(a); err != nil {
		return Opened{}, err
	}
	return Opened{
		Artifact: a, Event: ev, EventID: EventID(ev.ID), Signer: signer,
		Recipient: tags.recipient, Mailbox: tags.mailbox, Digest: digest,
	}, nil
}

// Seal makes the signed event that carries a to recipient in mailbox. nonce nil
// means crypto/rand; a given one has 32 bytes and must never serve twice. More
// than 40,960 bytes of plaintext is bounds; a body that Open would refuse, too.
func Seal(key SecretKey, to PubKey, mailbox Mailbox, a Artifact, nonce []byte) (*Event, error) {
	return SealBy(context.Background(), ownKey{key: key, nonce: nonce}, to, mailbox, a)
}

// SealBy is Seal by a key that is kept elsewhere. What the Keeper encrypted and
// signed is held to the shape of a payload, to the event that it was given and
// to its key; what it did not do is a *KeeperError, and ctx bounds it. That the
// payload holds a, only the recipient can tell.
func SealBy(ctx context.Context, k Keeper, to PubKey, mailbox Mailbox, a Artifact) (*Event, error) {
	if !ValidID(string(mailbox)) {
		return nil, fault(Malformed, layerEnvelope, "the mailbox is not 64 lowercase hex")
	}
	if body, err := canonical(a.Inline, maxBody, true); err != nil {
		return nil, err
	} else if !bytes.Equal(body, a.Inline) {
		return nil, fault(Malformed, layerEnvelope, "inline is not canonical")
	}
	if err := checkTimes(a); err != nil {
		return nil, err
	}
	plain, err := encodeEnvelope(a)
	if err != nil {
		return nil, err
	}
	content, err := k.Encrypt(ctx, to, string(plain))
	if err == nil {
		err = checkPayload(content)
	}
	if err != nil {
		return nil, keeperFault(k, "encrypt", err)
	}
	return SignBy(ctx, k, &Event{
		CreatedAt: nostr.Timestamp(a.IssuedAt),
		Kind:      KindArtifact,
		Tags:      nostr.Tags{{"p", string(to)}, {"h", string(mailbox)}, {"t", tagArtifact}},
		Content:   content,
	})
}

// encodeEnvelope writes the plaintext around an inline body and holds it to the
// size we produce.
func encodeEnvelope(a Artifact) ([]byte, error) {
	b, err := encode(members{
		"v": schemaEnvelope, "requires": []string{},
		"artifact": members{
			"digest": DigestOf(a.Inline), "size": len(a.Inline), "media_type": mediaJSON, "schema": a.Schema,
		},
		"inline":    jsontext.Value(a.Inline),
		"issued_at": a.IssuedAt, "retain_until": a.RetainUntil,
	})
	if err != nil {
		return nil, err
	}
	if len(b) > maxPlaintext {
		return nil, fault(Bounds, layerEnvelope, "plaintext is over 40,960 bytes")
	}
	return b, nil
}

// parseEnvelope takes the plaintext apart. Inline of the result is canonical,
// whatever order the sender used; the digest is over the canonical form.
func parseEnvelope(plain []byte) (Artifact, Digest, error) {
	r := &reader{layer: layerEnvelope}
	o := r.document("envelope", plain, maxLongPlain)
	v, requires := o.header()
	art := o.object("artifact")
	digest, size := Digest(art.text("digest")), art.int("size")
	media, schema := art.text("media_type"), art.text("schema")
	// Two members of the shared contract that HOST never writes.
	for _, name := range []string{"event", "sources"} {
		if art.has(name) {
			art.raw(name)
		}
	}
	art.end()
	inline := o.raw("inline")
	a := Artifact{Schema: schema, IssuedAt: o.int("issued_at"), RetainUntil: o.int("retain_until")}
	if o.has("meta") {
		o.object("meta")
	}
	o.end()
	r.checkHeader(v, requires, schemaEnvelope)
	if r.err != nil {
		return Artifact{}, "", r.err
	}
	if inline.Kind() != '{' {
		return Artifact{}, "", fault(Malformed, layerEnvelope, "inline is not an object")
	}
	body, err := canonical(inline, maxBody, true)
	if err != nil {
		return Artifact{}, "", err
	}
	a.Inline = body
	check := &validator{layer: layerEnvelope}
	check.digest(digest, "artifact.digest")
	check.must(digest == DigestOf(body), Malformed, "artifact.digest is not that of inline")
	check.must(size == int64(len(body)), Malformed, "artifact.size is not that of inline")
	check.must(media == mediaJSON, Unsupported, "artifact.media_type is not application/json")
	check.must(a.RetainUntil > a.IssuedAt, Malformed, "retain_until is not after issued_at")
	if check.err != nil {
		return Artifact{}, "", check.err
	}
	return a, digest, nil
}

// checkTimes holds a canonical body against its envelope: of the named schema,
// with the same times. A presence is issued when observed and a summary when
// updated, and neither says when it ends; every other body repeats both.
func checkTimes(a Artifact) error {
	r := &reader{layer: layerEnvelope}
	o := r.object("inline", a.Inline)
	schema := o.text("v")
	issued, expires := "issued_at", a.RetainUntil
	switch a.Schema {
	case SchemaPresence:
		issued = "observed_at"
	case SchemaSummary:
		issued = "updated_at"
	default:
		expires = o.int("expires_at")
	}
	at := o.int(issued)
	if r.err != nil {
		return r.err
	}
	check := &validator{layer: layerEnvelope}
	check.must(schema == a.Schema, Malformed, "the schema is not that of inline")
	check.must(at == a.IssuedAt, Malformed, "the body was issued at another time than the envelope")
	check.must(expires == a.RetainUntil, Malformed, "the body ends at another time than the envelope")
	check.must(a.RetainUntil > a.IssuedAt, Malformed, "retain_until is not after issued_at")
	return asError(check.err)
}

// artifact joins a body with its envelope's facts, and refuses what would be too
// large to seal, so that the caller learns it while it can still answer bounds.
func artifact(schema string, body members, issued, retain int64) (Artifact, error) {
	body["v"], body["requires"] = schema, []string{}
	inline, err := encode(body)
	if err != nil {
		return Artifact{}, err
	}
	a := Artifact{Schema: schema, Inline: inline, IssuedAt: issued, RetainUntil: retain}
	if _, err := encodeEnvelope(a); err != nil {
		return Artifact{}, err
	}
	return a, nil
}
