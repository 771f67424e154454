package nip

// The operations by which access is given and withdrawn (NIP-HOST, enrollment
// and delegation), and their outcomes. Who may give what is the host's to say.
type (
	// EnrollApprove lets an administrator admit the device that shows Code. What
	// it approves is named by digest, so an exchanged request is not approved.
	EnrollApprove struct {
		Enrollment     EnrollmentID
		RequestDigest  Digest // of the enrollment request's canonical body
		Code           string // as it was typed, 1 to 32 bytes; never logged
		Device         PubKey
		Rights         Rights
		GrantExpiresAt int64
	}
	EnrollDeny struct {
		Enrollment    EnrollmentID
		RequestDigest Digest
	}
	InviteCreate struct {
		Rights         Rights
		GrantExpiresAt int64
	}
	InviteCancel struct{ Invitation InvitationID }

	// DeniedEnrollment is the outcome "denied".
	DeniedEnrollment struct{}
	// Invited is the outcome "invitation". Code is the coder-host string
	// with its capability; never logged.
	Invited struct {
		Invitation InvitationID
		Code       string
		ExpiresAt  int64 // of the invitation
	}
	// CancelledInvitation is the outcome "cancelled".
	CancelledInvitation struct{ Invitation InvitationID }
)

func (EnrollApprove) Kind() string { return "enroll.approve" }
func (EnrollDeny) Kind() string    { return "enroll.deny" }
func (InviteCreate) Kind() string  { return "invite.create" }
func (InviteCancel) Kind() string  { return "invite.cancel" }

func (EnrollApprove) Right() Right { return AccessAdmin }
func (EnrollDeny) Right() Right    { return AccessAdmin }
func (InviteCreate) Right() Right  { return AccessAdmin }
func (InviteCancel) Right() Right  { return AccessAdmin }

func (DeniedEnrollment) OutcomeKind() string    { return "denied" }
func (Invited) OutcomeKind() string             { return "invitation" }
func (CancelledInvitation) OutcomeKind() string { return "cancelled" }

func (o object) enrollApprove() EnrollApprove {
	return EnrollApprove{
		Enrollment: EnrollmentID(o.text("enrollment")), RequestDigest: Digest(o.text("request_digest")),
		Code: o.text("code"), Device: PubKey(o.text("device")), Rights: o.rights("rights"),
		GrantExpiresAt: o.int("grant_expires_at"),
	}
}

// enrollApprove holds the code to its size only: a code of another shape is a
// wrong code, which the host counts, and not a malformed request.
func (v *validator) enrollApprove(op EnrollApprove) {
	v.id(string(op.Enrollment), "enrollment")
	v.digest(op.RequestDigest, "request_digest")
	v.must(op.Code != "" && len(op.Code) <= maxTypedCode && isASCII(op.Code), Bounds, "code is empty, too long or not ASCII")
	v.key(op.Device, "device")
	v.grantTerms(op.Rights, op.GrantExpiresAt)
}

func (v *validator) grantTerms(r Rights, expires int64) {
	v.must(r.valid(), Malformed, "rights are not a nonempty list in canonical order")
	v.int(expires, "grant_expires_at")
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func enrollApproveMembers(m members, op EnrollApprove) {
	m["enrollment"], m["request_digest"], m["code"] = op.Enrollment, op.RequestDigest, op.Code
	m["device"], m["rights"], m["grant_expires_at"] = op.Device, op.Rights, op.GrantExpiresAt
}

// invited demands that the string is an invitation and the very one that
// the other members name. Whether it is current and of the pinned host is for
// the caller, who has a clock and knows the host.
func (v *validator) invited(out Invited) {
	v.id(string(out.Invitation), "invitation")
	v.int(out.ExpiresAt, "expires_at")
	if v.err != nil {
		return
	}
	i, err := decodeInvitation(out.Code, Profile{Loopback: true})
	if err != nil {
		v.err = withLayer(err, v.layer, "code")
		return
	}
	v.must(i.ID == out.Invitation && i.ExpiresAt == out.ExpiresAt, Malformed, "code is of another invitation")
}
