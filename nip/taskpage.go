package nip

// StreamPages is the mailbox of published pages, host to device. It and the
// schema are Holdfast's own, beside the draft's.
const StreamPages Stream = "holdfast.host-mailbox.pages.v1"

// SchemaTaskPage is the schema of a published page.
const SchemaTaskPage = "holdfast.task-page.v1"

const maxPageLife = 604_800 // seconds

// PublishedPage is the last page of a turn that ended or asks, so that a device
// with observe reads it while the host is off. Page is as task.read gives it.
type PublishedPage struct {
	Host      PubKey
	IssuedAt  int64
	ExpiresAt int64 // at most 604,800 s after IssuedAt
	Page      Page
}

// ParseTaskPage decodes the canonical body of a published page. That the pinned
// host signed it, and that no newer revision was seen, is for the caller.
func ParseTaskPage(inline []byte) (PublishedPage, error) {
	r := &reader{layer: layerSchema}
	o := r.document("task page", inline, maxBody)
	v, requires := o.header()
	p := PublishedPage{Host: PubKey(o.text("host")), IssuedAt: o.int("issued_at"), ExpiresAt: o.int("expires_at")}
	raw := o.raw("page")
	if len(raw) > maxOutcome+outcomeSlack {
		r.fail(Bounds, "the page is over 48 KiB")
	}
	p.Page = r.object("page", raw).page()
	o.end()
	r.checkHeader(v, requires, SchemaTaskPage)
	if r.err == nil {
		r.err = checkTaskPage(p)
	}
	if r.err != nil {
		return PublishedPage{}, r.err
	}
	return p, nil
}

func checkTaskPage(p PublishedPage) *Error {
	v := &validator{layer: layerSchema}
	v.key(p.Host, "host")
	v.int(p.IssuedAt, "issued_at")
	v.int(p.ExpiresAt, "expires_at")
	v.must(p.ExpiresAt > p.IssuedAt && p.ExpiresAt-p.IssuedAt <= maxPageLife, Malformed,
		"the page lives not at all or over 7 days")
	v.page(p.Page)
	return v.err
}

// EncodeTaskPage writes a published page under the rules of ParseTaskPage. Code
// bounds says that the envelope's plaintext is over 40,960 bytes: publish a page
// of fewer steps.
func EncodeTaskPage(p PublishedPage) (Artifact, error) {
	if err := checkTaskPage(p); err != nil {
		return Artifact{}, err
	}
	return artifact(SchemaTaskPage, members{
		"host": p.Host, "issued_at": p.IssuedAt, "expires_at": p.ExpiresAt, "page": pageMembers(p.Page),
	}, p.IssuedAt, p.ExpiresAt)
}
