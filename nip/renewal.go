package nip

import "slices"

// RenewalDue reports whether a host renews g when its device makes a request at
// now (NIP-HOST, renewal): a quarter or less of the grant's life is left, and
// some of it is. That g is the device's newest and its epoch current is for the
// access book.
func RenewalDue(g Grant, now int64) bool {
	left := g.ExpiresAt - now
	return left > 0 && left*4 <= g.ExpiresAt-g.IssuedAt
}

// CheckRenewal says whether a device may put a renewed grant in the place of the
// one it holds: another ID and a later end, issued no earlier, and nothing else
// changed. Code forbidden says that the two are not of one standing, stale that
// the renewed one is no newer. Both grants were parsed and verified before.
func CheckRenewal(old, renewed Grant) error {
	v := &validator{layer: layerPolicy}
	v.must(renewed.Host == old.Host, Forbidden, "the renewed grant is of another host")
	v.must(renewed.Owner == old.Owner, Forbidden, "the renewed grant names another owner")
	v.must(renewed.Device == old.Device, Forbidden, "the renewed grant is for another device")
	v.must(renewed.Relay == old.Relay, Forbidden, "the renewed grant names another relay")
	v.must(slices.Equal(renewed.Rights, old.Rights), Forbidden, "the renewed grant has other rights")
	v.must(renewed.Epoch == old.Epoch, Forbidden, "the renewed grant has another epoch")
	v.must(renewed.Origin == old.Origin, Forbidden, "the renewed grant has another origin")
	v.must(renewed.ID != old.ID, Stale, "the renewed grant is the same grant")
	v.must(renewed.IssuedAt >= old.IssuedAt, Stale, "the renewed grant was issued earlier")
	v.must(renewed.ExpiresAt > old.ExpiresAt, Stale, "the renewed grant ends no later")
	return asError(v.err)
}
