package nip

// unserved holds the known kinds that have no shape here: of them only the name
// is read, whatever else the object has. The host answers unavailable for what
// it may grow (spends, chats, threads, terminals) and unsupported for the rest.
var unserved = func() map[string]unservedKind {
	m := make(map[string]unservedKind)
	add := func(answer Code, right Right, kinds ...string) {
		for _, k := range kinds {
			m[k] = unservedKind{answer, right}
		}
	}
	add(Unavailable, Observe, "chats.invite", "thread.list", "thread.read")
	add(Unavailable, Operate, "spend.list", "spend.settle", "thread.send", "thread.stop", "thread.run")
	add(Unavailable, Terminal, "terminal.open", "task.terminal.open")

	add(Unsupported, Terminal, "computer")
	add(Unsupported, Review, "studio.merge.decide")
	add(Unsupported, Observe,
		"task.review", "verse.private",
		"background.list", "background.show", "background.log",
		"studio.snapshot", "studio.update", "studio.review.open",
		"studio.agent.list", "studio.agent.memory.list", "studio.agent.jobs.list", "studio.agent.log",
		"studio.agent.workspaces", "studio.agent.verdict.list", "studio.agent.crew.status",
		"studio.agent.crew.hire.list",
		"project.list", "project.read", "project.original",
		"cloud.projects", "cloud.catalog", "cloud.list", "cloud.read", "cloud.original",
		"environment.read", "environment.evidence")
	add(Unsupported, Operate,
		"task.publish", "wallet.link.list", "wallet.link.answer", "background.run", "background.pause",
		"studio.goal.submit", "studio.seat.message", "studio.seat.pause", "studio.seat.resume",
		"studio.seat.stop", "studio.task.reassign", "studio.task.cancel", "studio.task.retry",
		"studio.task.prioritize", "studio.decision.answer", "studio.decision.always",
		"studio.agent.ask", "studio.agent.answer", "studio.agent.ran", "studio.agent.stop",
		"studio.agent.memory.edit", "studio.agent.jobs.edit", "studio.agent.new", "studio.agent.retire",
		"studio.agent.rotate", "studio.agent.charter.set", "studio.agent.verdict.record",
		"studio.agent.crew.new", "studio.agent.crew.control", "studio.agent.crew.hire.propose",
		"studio.agent.crew.hire.decide",
		"cloud.submit", "cloud.continue", "cloud.cancel", "cloud.follow", "cloud.release",
		"environment.promote", "environment.select", "environment.steer")
	return m
}()

type unservedKind struct {
	answer Code
	right  Right
}

func (EnrollRedeem) Kind() string  { return "enroll.redeem" }
func (DeviceList) Kind() string    { return "device.list" }
func (DeviceRevoke) Kind() string  { return "device.revoke" }
func (TaskCreate) Kind() string    { return "task.create" }
func (TaskSteer) Kind() string     { return "task.steer" }
func (TaskCancel) Kind() string    { return "task.cancel" }
func (TaskArchive) Kind() string   { return "task.archive" }
func (TaskCommand) Kind() string   { return "task.command" }
func (TaskQueue) Kind() string     { return "task.queue" }
func (WorkspaceList) Kind() string { return "workspace.list" }
func (TaskList) Kind() string      { return "task.list" }
func (TaskRead) Kind() string      { return "task.read" }
func (TaskOriginal) Kind() string  { return "task.original" }
func (o Other) Kind() string       { return o.Name }

func (EnrollRedeem) Right() Right  { return "" }
func (DeviceList) Right() Right    { return AccessRead }
func (DeviceRevoke) Right() Right  { return AccessAdmin }
func (TaskCreate) Right() Right    { return Operate }
func (TaskSteer) Right() Right     { return Operate }
func (TaskCancel) Right() Right    { return Operate }
func (TaskArchive) Right() Right   { return Operate }
func (TaskCommand) Right() Right   { return Operate }
func (TaskQueue) Right() Right     { return Operate }
func (WorkspaceList) Right() Right { return Operate }
func (TaskList) Right() Right      { return Observe }
func (TaskRead) Right() Right      { return Observe }
func (TaskOriginal) Right() Right  { return Observe }

// Right is the one that the wire names for the kind, so that a device without
// it learns no more than missing_right. A name that is not known has none.
func (o Other) Right() Right { return unserved[o.Name].right }
