// Package relaytest holds what tests of relays and of their users need.
//
// Suite is the conformance suite that every relay.Link passes: the websocket
// client over the embedded relay, the embedded relay's in-process link, and
// Memory. Memory is the in-memory twin: the same rules, no file and no socket,
// for tests of the host and of the device. Hostile is a relay that does what a
// script says, for tests of what a lying, slow or broken relay can do.
//
// The suite takes a World, which makes links of one relay for several keys.
// All of it is for tests only; nothing here is durable or fast. Every method
// may be called from any goroutine, but a HostileConn belongs to its script.
//
// It does not test the wire of NIP-HOST: events here carry any content.
package relaytest
