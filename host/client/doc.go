// Package client is a device of a Holdfast host, or of any host that speaks
// the NIP-HOST draft: it pairs, calls, verifies and keeps what was not answered.
//
// Its nouns are the Device, one key with its profile folder; the exchange, one
// signed request and the host's signed reply to exactly that event; and the
// outbox, the durable commands and creates whose outcome nobody has signed yet.
// A Device is paired with hosts, or acts as the owner of some (Own): without a
// grant, with every right and no publications. An owner's key may be held
// elsewhere (nip.Keeper), which encrypts and signs requests and decrypts replies.
//
// Operations go in (nip.Operation, nip.Command), verified outcomes come out. A
// relay is only a carrier: its OK proves nothing, its events are candidates
// until the signature, the envelope and every member of the reply agree with
// the request (NIP-HOST, reply checks). A signed refusal is a *Refused error,
// silence is ErrNoAnswer and means that the outcome is unknown.
//
// What is durable, and when:
//
//   - device.key is written once and never replaced; so is bunker.json in its
//     place, where a remote signer has the key.
//   - hosts/KEY.owner is a person's word that the key owns the host KEY.
//   - hosts/KEY.json holds the grant of the host with that key and the event
//     that proves it. It is verified again at every Open, so a changed file
//     grants nothing. A Device is turned to one host at a time.
//   - outbox.db holds a command or create before its first byte leaves, until a
//     signed outcome arrives; and of each host the highest summary and the last
//     page of each task, the last word about each own command, the last presence
//     and hints, and the clock offset, so that a relay cannot replay old ones and
//     they can be shown with the host off.
//
// The database is opened for each transaction and closed after it: a watching
// process and a sending one share a profile, and a third waits for at most two
// seconds (ErrBusy).
//
// Methods of a Device may be called from any goroutine. Close ends the relay
// link, and with it every exchange and Watch.
//
// While a grant is near its end the device looks for the one that the host
// renewed it to, and takes it only as the same standing with a later end. A host
// that does not answer is left a nudge, at most one in 30 s.
//
// The package does not decide anything the host decides, does not widen its
// clock rules (it writes times in the host's time instead), and does not start
// work in the background except while Watch runs.
package client
