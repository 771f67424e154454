package nip

// The schemas of the bodies that this package knows, as the inner `v` has them.
const (
	SchemaGrant    = "openagents.host-grant.v1"
	SchemaAccess   = "openagents.host-access.v1"
	SchemaRequest  = "openagents.host-request.v1"
	SchemaReply    = "openagents.host-reply.v1"
	SchemaSummary  = "openagents.activity-summary.v1"
	SchemaPresence = "openagents.host-presence.v1"

	SchemaEnrollment = "openagents.host-enrollment-request.v1"
	SchemaNudge      = "openagents.host-nudge.v1"
	SchemaHints      = "openagents.reach-hints.v1"
)
