package nip

// PutChunk is how many raw bytes of an artifact a device of ours sends at once.
// The wire lets it be 32,768, which as base64 would not fit the events that we
// write.
const PutChunk = 24_576

const maxPutChunk = 32_768 // raw bytes

type (
	// ArtifactPut brings one piece of a picture to the host (NIP-HOST,
	// artifact.put), before the task.create that names it.
	ArtifactPut struct {
		Digest    Digest // of the whole
		MediaType string // image/png or image/jpeg
		Size      int64  // of the whole, 1 to 8 MiB
		Offset    int64  // of Data in the whole
		Data      []byte // 1 to 32,768 raw bytes
	}
	// ArtifactProgress is the outcome "artifact".
	ArtifactProgress struct {
		Digest   Digest
		Received int64 // bytes from the start that the host holds
		Complete bool
	}
)

func (ArtifactPut) Kind() string { return "artifact.put" }

func (ArtifactPut) Right() Right { return Operate }

func (ArtifactProgress) OutcomeKind() string { return "artifact" }

func (o object) artifactPut() ArtifactPut {
	op := ArtifactPut{
		Digest: Digest(o.text("digest")), MediaType: o.text("media_type"),
		Size: o.int("size"), Offset: o.int("offset"), Data: o.base64("data", maxPutChunk),
	}
	o.end()
	return op
}

func (o object) artifactProgress() ArtifactProgress {
	out := ArtifactProgress{Digest: Digest(o.text("digest")), Received: o.int("received"), Complete: o.bool("complete")}
	o.end()
	return out
}

// picture is what task.create and artifact.put say of one.
func (v *validator) picture(d Digest, mediaType string, size int64) {
	v.digest(d, "image digest")
	v.must(mediaType == "image/png" || mediaType == "image/jpeg", Unsupported, "an image is neither png nor jpeg")
	v.must(size >= 1 && size <= maxImageBytes, Bounds, "an image is empty or over 8 MiB")
}

// artifactPut holds a piece to its place. An empty one would move nothing, and a
// device that sends it would do so for ever.
func (v *validator) artifactPut(op ArtifactPut) {
	v.picture(op.Digest, op.MediaType, op.Size)
	v.int(op.Offset, "offset")
	v.must(len(op.Data) >= 1 && len(op.Data) <= maxPutChunk, Bounds, "data is empty or over 32 KiB")
	v.must(op.Offset+int64(len(op.Data)) <= op.Size, Malformed, "data goes past the end")
}

func (v *validator) artifactProgress(out ArtifactProgress) {
	v.digest(out.Digest, "artifact.digest")
	v.int(out.Received, "artifact.received")
	v.must(out.Received <= maxImageBytes, Bounds, "artifact.received is over 8 MiB")
}

func artifactPutMembers(op ArtifactPut) members {
	return members{
		"digest": op.Digest, "media_type": op.MediaType, "size": op.Size, "offset": op.Offset, "data": op.Data,
	}
}

func answersPut(op ArtifactPut, out ArtifactProgress) bool {
	return out.Digest == op.Digest && out.Received <= op.Size && out.Complete == (out.Received == op.Size)
}
