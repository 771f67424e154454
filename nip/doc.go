// Package nip turns the bytes of NIP-HOST into typed, verified values and back.
//
// It speaks the public draft NIP-HOST, in the form where every body is closed
// and named `...v1`: its sections on strict JSON and canonical form, the private
// artifact envelope (kind 3188), derived mailboxes, principals and rights, the
// relay policy, grants and their renewal, requests, replies, invitation strings,
// enrollment and its short code, operations, task reads, durable commands, queue
// edits, refusal codes, nudges, hints, activity summaries and presence. Underneath lie NIP-01 events, NIP-44 version 2 and RFC 8785.
//
// The nouns: an Event is what a relay carries; a Verified one had its ID
// recomputed and its signature checked here; an Artifact is a canonical body on
// its way into or out of an envelope; a Request asks for an Operation; a Reply
// carries an Outcome or a Refusal.
//
// In go bytes that a stranger may have written, out come values that hold every
// rule the wire states about their own members, or an *Error with the wire code
// and the layer that found the fault. Bounds are checked before parsing, parsing
// before cryptography, signatures last. Nothing that fails returns a half-filled
// value. The Encode functions apply the same rules, so this program never writes
// what it would refuse to read.
//
// Everything is a function of its arguments and safe from any goroutine. There
// is no I/O, no clock and no state; random bytes come from crypto/rand only
// where a nonce or a key is minted.
//
// What it does not do: it does not know who may ask for what, whether a grant is
// current, which relay an event arrived on, or whether an ID was seen before.
// Those expectations belong to the callers, host admission above all. It does
// not decode the operations of spends, chats, threads and terminals.
package nip
