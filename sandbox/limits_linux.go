package sandbox

// limit puts in force, at the gate, what the supervisor bounds from outside, and
// completes the Report with it.
func (t *turn) limit() {
	r := &t.report
	if t.scratch != "" { // what it could bound is everybody's
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
	if s.MemoryBytes == 0 {
		return []string{"memory is not bounded"}
	}
	g = append(g,
		"memory is added up every 20 ms, at 20 times what a look takes: a turn can be over its limit for a moment before it is ended",
		"what the kernel keeps for pipes and sockets is not counted in the memory limit")
	if !ipc {
		g = append(g, "segments of shared memory are counted, not refused")
	}
	return g
}
