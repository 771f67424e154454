// Package remote is a key that is held somewhere else: the owner's, kept by a
// remote signer (a "bunker", NIP-46) on another computer or phone.
//
// Its noun is the Bunker, a nip.Keeper over a relay that both sides reach: one
// key that signs, encrypts and decrypts without being given out.
//
// A Bunker is known by a bunker:// URL, which a person copies from it. Every
// message is an event of kind 24133 between the bunker's key and a client key
// of ours, encrypted by NIP-44; the relay between sees who talks and how much.
// What comes back is believed as far as it proves itself: a signed event is
// verified and compared member by member with what was to be signed. Encrypted
// and decrypted text proves nothing; the envelope around it does.
//
// The bunker may ask its person before each answer, so calls last as long as
// their context does. A request is sent once: a bunker that was asked and whose
// answer is lost is asked again only by another call.
//
// Methods may be called from any goroutine; a Bunker answers one at a time.
// Nothing runs in the background, and nothing is kept on disk: whoever wants
// the bunker to know this client again keeps what Save gives, for Resume.
//
// A relay that carries these messages takes kind 24133 and events of up to
// 90,000 bytes: what is to be signed or decrypted travels inside. The embedded
// relay of a host keeps private artifacts only and is none of them.
//
// The package does not decide what is signed, and does not hold the host to the
// owner: the host does that by its own fixed owner key.
package remote
