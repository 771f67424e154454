// Package embedded is the small relay that runs inside the host.
//
// Its nouns: a Relay is one bbolt file of events and everybody who listens; a
// connection is one websocket; a listener is one subscription of either a
// connection or an in-process link. Open makes a Relay, Serve or Handler let
// websockets in, Local gives this process a relay.Link without one.
//
// It speaks NIP-01 (EVENT, REQ, CLOSE, EOSE, OK, CLOSED, NOTICE), NIP-42 (every
// client must authenticate) and NIP-11. It keeps private artifacts, kind 3188,
// and nothing else: stored, by ID and live, an event is shown only to its
// author and its recipient, and only its author may publish it. COUNT is
// refused. An expiration tag (NIP-40) is the publisher's wish to this relay:
// refused once past, shown to nobody and swept from then on. Readers of
// artifacts refuse an event that carries one. What has no such tag ends as its
// room says.
//
// Room. A member's events last 30 days within 64 MiB a recipient, the oldest
// out first. A stranger (a key that the host does not know) may write only to
// a served host; that exchange lasts 10 minutes, 1,000 events of all
// strangers together, 64 a minute from one address. A revoked key has nothing.
// Messages of connections that are no member's are read at 64 at once and 20 a
// second from one address, so that a flood waits in its own sockets and a member's
// request does not wait for it.
//
// Durable is what was answered OK true: one goroutine commits, many events in
// one transaction while the last one is being synced, and answers after it. A
// failed commit stops the store until it is opened again, because nobody knows
// whether it landed.
//
// A duplicate is answered OK true and not stored again, and goes to the live
// subscriptions that were not sent that ID in the last seconds: a client's
// retry of a request reaches the host even though its event is old.
//
// A reader that does not read is dropped after a bounded queue or 10 s; it never
// delays another. Every method may be called from any goroutine.
//
// Beyond the loopback interface it serves over TLS, or without it only where
// Options.AllowPlain says so. Host and Origin must be a name of this relay;
// X-Forwarded headers are never read. Sockets are bounded in all and from one
// address before TLS, connections of strangers from one address after it.
//
// It does not decrypt, and does not talk to other relays.
package embedded
