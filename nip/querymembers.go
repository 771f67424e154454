package nip

// orNull writes a nullable member: what f makes of a value, or null.
func orNull[T any](p *T, f func(T) members) any {
	if p == nil {
		return nil
	}
	return f(*p)
}

func scopeMembers(s Scope) members {
	return members{
		"workspace": s.Workspace, "task": s.Task, "revision": s.Revision,
		"attempt": s.Attempt, "intent_digest": s.IntentDigest,
	}
}

func originalMembers(f OriginalRef) members {
	return members{"source": f.Source, "digest": f.Digest, "bytes": f.Bytes, "media_type": f.MediaType}
}

func listCursorMembers(c ListCursor) members {
	return members{"workspace": c.Workspace, "snapshot_digest": c.SnapshotDigest, "next": c.Next}
}

func pageCursorMembers(c PageCursor) members {
	return members{
		"scope": scopeMembers(c.Scope), "source": c.Source, "source_digest": c.SourceDigest,
		"source_bytes": c.SourceBytes, "next_step": c.NextStep, "prefix_digest": c.PrefixDigest,
	}
}

func chunkCursorMembers(c ChunkCursor) members {
	return members{
		"scope": scopeMembers(c.Scope), "source": c.Source, "digest": c.Digest,
		"next_byte": c.NextByte, "prefix_digest": c.PrefixDigest,
	}
}

func listQueryMembers(q ListQuery) members {
	return members{"workspace": q.Workspace, "cursor": orNull(q.Cursor, listCursorMembers), "limit": q.Limit}
}

func readQueryMembers(q ReadQuery) members {
	return members{
		"workspace": q.Workspace, "task": q.Task, "revision": q.Revision,
		"cursor": orNull(q.Cursor, pageCursorMembers), "limit": q.Limit,
	}
}

func originalQueryMembers(q OriginalQuery) members {
	return members{
		"scope": scopeMembers(q.Scope), "original": originalMembers(q.Original),
		"cursor": orNull(q.Cursor, chunkCursorMembers), "limit": q.Limit,
	}
}
