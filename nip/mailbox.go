package nip

import (
	"crypto/sha256"
	"encoding/hex"
)

// Stream names a derived mailbox.
type Stream string

// The derived mailboxes: presence, hints and summaries go from a host to a
// device, nudges from a device to its host.
const (
	StreamPresence  Stream = "openagents.host-mailbox.presence.v1"
	StreamHints     Stream = "openagents.host-mailbox.hints.v1"
	StreamSummaries Stream = "openagents.host-mailbox.summaries.v1"
	StreamNudges    Stream = "openagents.host-mailbox.nudges.v1"
)

// DeriveMailbox computes the mailbox that the holder of key and peer share for
// one stream. Both sides get the same value and nobody else can: it is a hash of
// the stream's name and their conversation key. It fails on a bad key only.
func DeriveMailbox(key SecretKey, peer PubKey, s Stream) (Mailbox, error) {
	conversation, err := conversationKey(key, peer)
	if err != nil {
		return "", err
	}
	defer clear(conversation)
	return mailboxOf(conversation, s), nil
}

func mailboxOf(conversation []byte, s Stream) Mailbox {
	h := sha256.New()
	h.Write([]byte(s))
	h.Write([]byte{0})
	h.Write(conversation)
	return Mailbox(hex.EncodeToString(h.Sum(nil)))
}
