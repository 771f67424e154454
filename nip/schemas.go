package nip

// The schemas of the bodies that this package knows, as the inner `v` has them.
const (
	SchemaGrant    = "openagents.host-grant.v1"
	SchemaAccess   = "openagents.host-access.v1"
	SchemaRequest  = "openagents.host-request.v1"
	SchemaReply    = "openagents.host-reply.v1"
	SchemaSummary  = "openagents.activity-summary.v1"
	SchemaPresence = "openagents.host-presence.v1"
)
