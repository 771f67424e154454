// Package proxy is a turn's only way out where its network is an allow list: an
// HTTP proxy that knows CONNECT and nothing else.
//
// Its nouns: an Endpoint is one host and port; Rules decide what may be asked
// for and which addresses may be dialled for it; a Verdict is what became
// of one attempt; a Record is what all of them came to, for the evidence. The
// rules are pure and the request's parser is too; Server is the shell around
// them, and takes resolver, dialler and this machine's addresses as an Outside.
//
// Everything that comes over the listener is hostile: it was written by the
// program that is confined. A connection carries one request, of a head within
// bounds that no two readers can read differently; what does not parse is
// refused and its connection closed, and what follows the head is the tunnel's
// and never looked at. A name is asked of the resolver only when it is on the
// list, so that no name carries anything out. It is resolved once, with all of
// its addresses checked, and one of exactly those is dialled: what the name says
// a moment later changes nothing. One address that may not be reached refuses
// them all.
//
// Loopback, link-local, metadata and the machine's own addresses are never
// dialled, even if a list should name them. Services there trust whoever can
// reach them, and one such port would be a way round the whole sandbox; most
// clients would not use a proxy for loopback anyhow. A private address is
// dialled where the list holds that very address, never through a name: who
// controls the name's zone must not choose what in a private network is reached.
//
// # Limitations
//
// TLS is not terminated, so within a tunnel the list binds an address and not a
// name: a front that serves many names under one address may serve them all.
// Allowed traffic is counted and not bounded. Plain HTTP is refused. A NAT64
// prefix of a network's own is not recognised as one.
package proxy
