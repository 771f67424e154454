// Package relay moves events between this process and Nostr relays.
//
// Its nouns: a Link is one authenticated path to one relay for one key; a
// Subscription is a standing question on a Link; a Delivery is one verified
// event that answered it. Dial makes a Link over a websocket; relay/embedded
// makes one inside the process; relay/relaytest has an in-memory twin and the
// suite that all three pass.
//
// In go filters and signed events; out come events whose ID was recomputed and
// whose signature was checked here (nip.Verified). Everything a relay says is
// hostile: a frame is bounded first, then the event's size, kind, parties,
// subscription and the caller's own Admit, then ID and signature. Nothing is
// remembered before it is verified, so a forged copy never suppresses the
// honest one. Where the caller says who is known, strangers' events are verified
// at 20 a second and dropped rather than waited for, so that a flood of them
// costs the others the reading of its messages and no more.
//
// Each connection has one goroutine that reads, one that writes from a bounded
// queue with a deadline for each write, one that sends pings, and one that
// decides (authentication, REQ, CLOSE, retries). A connection lives 120 s, so
// that one which died without a word is not believed for long: its successor is
// opened and subscribed 20 s before its end, and both are read meanwhile. One
// that ends early is replaced at once, one that fails is dialled again after a
// jittered back-off of 0.5 s to 60 s, and every REQ is sent anew. A CLOSED of
// any kind is retried too: a subscription is never deaf in silence, Health says
// what is wrong, and OnGap how long nobody listened.
//
// Nothing here is durable. Publish returning nil means that the relay said OK
// true; everything else is the caller's outbox to repeat, with the same bytes.
// A subscription is sent an event once, whichever connections bring it, within
// some seconds and a bounded memory. It may be delivered again after a gap, a
// re-publish, Renew or through a second subscription; whoever acts on events keeps the durable
// memory of what it acted on.
//
// A consumer that stops reading its Subscription stops the link's reader, and
// with it every OK: never wait for Publish in the goroutine that reads C.
//
// This package does not decrypt, does not know grants, keeps no cursor and
// does not choose between relays.
package relay
