package nip

import "encoding/base64"

func (o object) chunk() Chunk {
	c := Chunk{
		Scope: o.object("scope").scope(), Original: o.object("original").original(), Start: o.int("start"),
	}
	c.Data = o.base64("data", maxChunk)
	c.Next, c.MoreAvailable = o.chunkCursor("next"), o.bool("more_available")
	o.end()
	return c
}

// base64 takes standard padded base64 in its one canonical spelling.
func (o object) base64(name string, limit int) []byte {
	s := o.text(name)
	if o.r.err != nil {
		return nil
	}
	if len(s) > base64.StdEncoding.EncodedLen(limit) {
		o.r.fail(Bounds, o.path+"."+name+" is too long")
		return nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || base64.StdEncoding.EncodeToString(b) != s {
		o.r.fail(Malformed, o.path+"."+name+" is not canonical base64")
		return nil
	}
	return b
}

// chunk holds a piece of an original to its rules. An empty piece before the end
// would make a reader ask for ever, so it is refused.
func (v *validator) chunk(c Chunk) {
	v.scope(c.Scope)
	v.original(c.Original)
	v.int(c.Start, "start")
	v.must(len(c.Data) <= maxChunk, Bounds, "data is too long")
	end := c.Start + int64(len(c.Data))
	v.must(end <= c.Original.Bytes, Malformed, "data goes past the end")
	v.must(c.MoreAvailable == (end < c.Original.Bytes), Malformed, "more_available does not agree with the end")
	v.must(!c.MoreAvailable || c.Next != nil && len(c.Data) > 0, Malformed, "more is available without a way on")
	if c.Next != nil {
		v.chunkCursor(*c.Next, c.Scope, c.Original)
		v.must(c.Next.NextByte == end, Malformed, "next does not continue the data")
	}
}

func chunkMembers(c Chunk) members {
	return members{
		"scope": scopeMembers(c.Scope), "original": originalMembers(c.Original), "start": c.Start,
		"data": c.Data, "next": orNull(c.Next, chunkCursorMembers), "more_available": c.MoreAvailable,
	}
}
