package sandbox

import "sync/atomic"

// Prepared is a start that was begun before its Spec was known: the first
// process of a turn, in namespaces of its own and with what every view shows,
// which waits to be told what else to show and what to run. Nothing of any
// program runs in it and it holds nothing of a workspace; it ends with this
// process, however that ends. Any goroutine may call its methods. On a nil one
// nothing was prepared.
type Prepared struct {
	network Network
	slot    int
	memory  int64
	taken   atomic.Bool
	made    chan struct{} // closed once first is set
	first   *first        // nil where none could be made
}

// Prepare begins a start for a turn with this Network, Slot and MemoryBytes, and
// returns at once. To start a process, to make namespaces and to mount what every
// turn sees takes longer than all the rest of a start, so a caller that has
// something to do before it knows the whole Spec, such as looking at the
// workspace, prepares first. That nothing can be prepared is no error: Start then
// does all of it. The caller must Start or Discard.
func Prepare(network Network, slot int, memory int64) *Prepared {
	p := &Prepared{network: network, slot: slot, memory: memory, made: make(chan struct{})}
	go func() {
		defer close(p.made)
		if f, err := newFirst(kindOf(Spec{Network: network, Slot: slot, MemoryBytes: memory}, false)); err == nil {
			p.first = f
		}
	}()
	return p
}

// Start is the package's Start, with what was prepared where that fits the Spec
// and is still there. It uses p up.
func (p *Prepared) Start(spec Spec) (*Process, error) {
	defer p.Discard()
	if err := spec.check(); err != nil {
		return nil, err
	}
	if p == nil { // at least while the Spec's files are looked at
		p = Prepare(spec.Network, spec.Slot, spec.MemoryBytes)
		defer p.Discard()
	}
	return launch(spec.withDefaults(), p)
}

// Discard ends what was prepared and not used, and waits for its end.
func (p *Prepared) Discard() {
	if f := p.claim(); f != nil {
		f.abandon()
		f.pipes.close()
	}
}

// Ready blocks until what is prepared waits for its Spec, or never will.
func (p *Prepared) Ready() {
	if p == nil {
		return
	}
	<-p.made
	if p.first != nil {
		select {
		case <-p.first.idle:
		case <-p.first.exited:
		}
	}
}

// claim is what was prepared, for the first who asks.
func (p *Prepared) claim() *first {
	if p == nil || p.taken.Swap(true) {
		return nil
	}
	<-p.made
	return p.first
}

// take is what was prepared where it can be used for s, else nil.
func (p *Prepared) take(s Spec) *first {
	if p == nil || p.network != s.Network || p.slot != s.Slot || p.memory != s.MemoryBytes {
		return nil // Start discards it
	}
	return p.claim()
}
