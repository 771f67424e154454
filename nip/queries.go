package nip

import (
	"strconv"
	"strings"
)

// The bounds of task reads (NIP-HOST, task reads).
const (
	maxRows     = 64
	maxSteps    = 64
	maxChunk    = 16_384 // raw bytes
	maxOriginal = 64 << 20
	maxMedia    = 128
)

// Equal compares two scopes by value.
func (s Scope) Equal(o Scope) bool {
	a, b := s.Attempt, o.Attempt
	s.Attempt, o.Attempt = nil, nil
	return s == o && (a == nil) == (b == nil) && (a == nil || *a == *b)
}

func (o object) count(name string) int { return int(o.int(name)) }

func (o object) attempt() *int {
	if o.null("attempt") {
		return nil
	}
	n := o.count("attempt")
	return &n
}

func (o object) scope() Scope {
	s := Scope{
		Workspace: Label(o.text("workspace")), Task: o.text("task"), Revision: o.int("revision"),
		Attempt: o.attempt(), IntentDigest: Digest(o.text("intent_digest")),
	}
	o.end()
	return s
}

func (o object) original() OriginalRef {
	f := OriginalRef{
		Source: o.text("source"), Digest: Digest(o.text("digest")),
		Bytes: o.int("bytes"), MediaType: o.text("media_type"),
	}
	o.end()
	return f
}

func (o object) originalOrNull(name string) *OriginalRef {
	if o.null(name) {
		return nil
	}
	f := o.object(name).original()
	return &f
}

func (o object) listCursor(name string) *ListCursor {
	if o.null(name) {
		return nil
	}
	c := o.object(name)
	out := &ListCursor{
		Workspace: Label(c.text("workspace")), SnapshotDigest: Digest(c.text("snapshot_digest")), Next: c.count("next"),
	}
	c.end()
	return out
}

func (o object) pageCursor(name string) *PageCursor {
	if o.null(name) {
		return nil
	}
	c := o.object(name)
	out := &PageCursor{
		Scope: c.object("scope").scope(), Source: c.text("source"), SourceDigest: Digest(c.text("source_digest")),
		SourceBytes: c.int("source_bytes"), NextStep: c.count("next_step"), PrefixDigest: Digest(c.text("prefix_digest")),
	}
	c.end()
	return out
}

func (o object) chunkCursor(name string) *ChunkCursor {
	if o.null(name) {
		return nil
	}
	c := o.object(name)
	out := &ChunkCursor{
		Scope: c.object("scope").scope(), Source: c.text("source"), Digest: Digest(c.text("digest")),
		NextByte: c.int("next_byte"), PrefixDigest: Digest(c.text("prefix_digest")),
	}
	c.end()
	return out
}

func (o object) listQuery() ListQuery {
	q := ListQuery{Workspace: Label(o.text("workspace")), Cursor: o.listCursor("cursor"), Limit: o.count("limit")}
	o.end()
	return q
}

func (o object) readQuery() ReadQuery {
	q := ReadQuery{
		Workspace: Label(o.text("workspace")), Task: o.text("task"), Revision: o.intOrNull("revision"),
		Cursor: o.pageCursor("cursor"), Limit: o.count("limit"),
	}
	o.end()
	return q
}

func (o object) originalQuery() OriginalQuery {
	q := OriginalQuery{
		Scope: o.object("scope").scope(), Original: o.object("original").original(),
		Cursor: o.chunkCursor("cursor"), Limit: o.count("limit"),
	}
	o.end()
	return q
}

func (v *validator) label(l Label) {
	v.text(string(l), maxLabel, "workspace")
	v.must(validLabel(string(l)), Malformed, "workspace is not one path element")
}

func (v *validator) studioID(s string) {
	v.must(validStudioID(s), Malformed, "task is not a task ID")
}

func (v *validator) limit(n, most int) {
	v.must(n >= 1 && n <= most, Bounds, "limit is out of range")
}

func (v *validator) scope(s Scope) {
	v.label(s.Workspace)
	v.studioID(s.Task)
	v.int(s.Revision, "scope.revision")
	v.must(s.Attempt == nil || *s.Attempt >= 1 && int64(*s.Attempt) <= maxInt, Malformed, "scope.attempt is out of range")
	v.digest(s.IntentDigest, "scope.intent_digest")
}

// validSource reports whether s names bytes that task.original serves.
func validSource(s string) bool {
	if s == "task" {
		return true
	}
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "artifact":
		return ValidID(rest)
	case "trace", "manifest":
		n, err := strconv.ParseInt(rest, 10, 64)
		// The comparison refuses a sign and leading zeros: one source, one name.
		return err == nil && n >= 1 && n <= maxInt && strconv.FormatInt(n, 10) == rest
	}
	return false
}

func (v *validator) original(f OriginalRef) {
	v.must(validSource(f.Source), Malformed, "original.source is not known")
	v.digest(f.Digest, "original.digest")
	v.int(f.Bytes, "original.bytes")
	v.must(f.Bytes <= maxOriginal, Bounds, "original.bytes is over 64 MiB")
	v.text(f.MediaType, maxMedia, "original.media_type")
}

func (v *validator) listCursor(c ListCursor, w Label) {
	v.must(c.Workspace == w, Malformed, "the cursor is of another workspace")
	v.digest(c.SnapshotDigest, "cursor.snapshot_digest")
	v.int(int64(c.Next), "cursor.next")
}

func (v *validator) pageCursor(c PageCursor) {
	v.scope(c.Scope)
	v.must(validSource(c.Source), Malformed, "cursor.source is not known")
	v.digest(c.SourceDigest, "cursor.source_digest")
	v.int(c.SourceBytes, "cursor.source_bytes")
	v.int(int64(c.NextStep), "cursor.next_step")
	v.digest(c.PrefixDigest, "cursor.prefix_digest")
}

// chunkCursor demands that the cursor was taken from this scope and original.
func (v *validator) chunkCursor(c ChunkCursor, s Scope, f OriginalRef) {
	v.must(c.Scope.Equal(s) && c.Source == f.Source && c.Digest == f.Digest, Malformed,
		"the cursor is of another original")
	v.int(c.NextByte, "cursor.next_byte")
	v.must(c.NextByte <= f.Bytes, Malformed, "cursor.next_byte is past the end")
	v.digest(c.PrefixDigest, "cursor.prefix_digest")
}

func (v *validator) listQuery(q ListQuery) {
	v.label(q.Workspace)
	if q.Cursor != nil {
		v.listCursor(*q.Cursor, q.Workspace)
	}
	v.limit(q.Limit, maxRows)
}

// readQuery demands that a cursor continues exactly the task and the revision
// that are asked for.
func (v *validator) readQuery(q ReadQuery) {
	v.label(q.Workspace)
	v.studioID(q.Task)
	if q.Revision != nil {
		v.int(*q.Revision, "revision")
	}
	if c := q.Cursor; c != nil {
		v.pageCursor(*c)
		v.must(c.Scope.Workspace == q.Workspace && c.Scope.Task == q.Task, Malformed, "the cursor is of another task")
		v.must(q.Revision != nil && *q.Revision == c.Scope.Revision, Malformed, "revision is not the cursor's")
	}
	v.limit(q.Limit, maxSteps)
}

func (v *validator) originalQuery(q OriginalQuery) {
	v.scope(q.Scope)
	v.original(q.Original)
	if q.Cursor != nil {
		v.chunkCursor(*q.Cursor, q.Scope, q.Original)
	}
	v.limit(q.Limit, maxChunk)
}
