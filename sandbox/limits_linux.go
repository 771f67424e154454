package sandbox

// limit puts in force, at the gate, what the supervisor bounds from outside, and
// completes the Report with it.
func (t *turn) limit() {
	r := &t.report
	if t.scratch != "" { // without namespaces: said elsewhere
		r.Descendants = "subreaper"
		if t.spec.MemoryBytes > 0 {
			r.Memory = "data-limit"
		}
		return
	}
	r.Descendants = "pidns"
	if t.spec.MemoryBytes > 0 {
		r.Memory = "data-limit+sampler"
	}
	bounded := boundIPC(t.proc.Pid, t.spec.MemoryBytes)
	r.Gaps = append(r.Gaps, limitGaps(t.spec, bounded)...)
}

// limitGaps says in plain words what the limits of a turn do not hold.
func limitGaps(s Spec, ipc bool) (g []string) {
	if len(s.Read) > 0 {
		g = append(g, "what may be read besides the workspace is not looked through for sockets and pipes")
	}
	switch {
	case !s.Write:
	case s.DiskBytes == 0 || s.DiskFiles == 0:
		g = append(g, "the growth of the workspace is not bounded")
	default:
		g = append(g, "the workspace is measured about once a second: a turn can be over its limit for a moment before it is ended")
	}
	if s.MemoryBytes == 0 {
		return append(g, "memory is not bounded")
	}
	g = append(g,
		"memory is added up every 20 ms, at 20 times what a look takes: a turn can be over its limit for a moment before it is ended",
		"what the kernel keeps for pipes and sockets is not counted in the memory limit")
	if !ipc {
		g = append(g, "segments of shared memory are counted, not refused")
	}
	return g
}
