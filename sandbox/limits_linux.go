package sandbox

// limit completes the Report with what holds the limits; ipc says whether the
// IPC namespace is bounded.
func (t *turn) limit(ipc bool) {
	r := &t.report
	if t.scratch != "" { // without namespaces: said elsewhere
		r.Descendants = "subreaper"
		if t.spec.MemoryBytes > 0 {
			r.Memory = "data-limit"
			if t.group.bounds() {
				r.Memory = "memcg+data-limit"
			}
		}
		return
	}
	r.Descendants = "pidns"
	if t.spec.MemoryBytes > 0 {
		r.Memory = "data-limit+sampler"
		if t.group.bounds() {
			r.Memory = "memcg+data-limit+sampler"
		}
	}
	r.Gaps = append(r.Gaps, limitGaps(t.spec, ipc, t.group.bounds())...)
}

// limitGaps says in plain words what the limits of a turn do not hold.
func limitGaps(s Spec, ipc, group bool) (g []string) {
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
	if group {
		return append(g, "the memory cgroup stands a part above the limit: the sampler, which ends a turn there, looks every 20 ms")
	}
	g = append(g,
		"memory is added up every 20 ms, at 20 times what a look takes: a turn can be over its limit for a moment before it is ended",
		"what the kernel keeps for pipes and sockets is not counted in the memory limit")
	if !ipc {
		g = append(g, "segments of shared memory are counted, not refused")
	}
	return g
}
