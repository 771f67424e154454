package client

import (
	"context"
	"slices"
	"sync"

	"holdfast/nip"
	"holdfast/relay"
)

// Update is one verified publication of the host; one member is set.
type Update struct {
	Summary  *nip.Summary
	Presence *nip.Presence
	Grant    *nip.Grant         // the renewed one, which the device holds from now on
	Page     *nip.PublishedPage // the last page of a task; LastPage has it from now on
	Commands []CommandStatus    // own commands that stand elsewhere than was known
	Hints    *nip.Hints         // where they name other ways than the last ones
}

// Watch delivers what the host publishes and this device verified until ctx
// ends or the device is closed; then it closes the channel: summaries, highest
// sequence per task; presence; pages, highest revision per task; what became of
// own commands; hints. The summaries that were kept from earlier come first;
// LastPage and Commands have the rest. A presence that is newer than the last
// unanswered try makes the device work through its outbox.
//
// Watch has a link of its own: a consumer that is slow to read holds up nothing
// but its own updates.
func (d *Device) Watch(ctx context.Context) (<-chan Update, error) {
	m, err := d.mailboxes()
	if err != nil {
		return nil, err
	}
	kept, err := d.store.summaries(m.host)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(kept, func(a, b nip.Summary) int { return int(a.UpdatedAt - b.UpdatedAt) })
	from, err := m.cursors(kept)
	if err != nil {
		return nil, err
	}
	seen := shown{}
	if err := seen.read(d.store, m.host); err != nil {
		return nil, err
	}
	g, _ := d.Grant()
	m.link = d.connect(g.Relay, g.Host)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.life, cancel)
	out := make(chan Update)
	go func() {
		defer close(out)
		defer m.link.Close()
		var resending sync.WaitGroup
		defer resending.Wait()
		defer stop()
		defer cancel()
		for i := range kept {
			if seen.summary(kept[i]); !send(ctx, out, Update{Summary: &kept[i]}) {
				return
			}
		}
		m.follow(ctx, from, seen, out, &resending)
	}()
	return out, nil
}

func send(ctx context.Context, out chan<- Update, u Update) bool {
	select {
	case out <- u:
		return true
	case <-ctx.Done():
		return false
	}
}

// follow delivers until ctx ends or the link closes.
func (m mailboxes) follow(ctx context.Context, from cursors, seen shown, out chan<- Update, resending *sync.WaitGroup) {
	s := m.subscribe(from, wantWords|wantPages)
	s.grants = m.d.renewals(m.link, "grants", m.host)
	defer func() { s.close() }()
	idle := make(chan struct{}, 1) // holds the one token of the one resend at a time
	idle <- struct{}{}
	// A process that ended between the presence and the resend left it to us.
	if f, ok, err := m.d.store.presence(m.host); err == nil && ok && m.fresh(f.ObservedAt) {
		m.wake(ctx, f.ObservedAt, idle, resending)
	}
	for {
		batch, ok := gather(ctx, s)
		if !ok {
			return
		}
		for _, u := range m.take(batch, seen) {
			if u.Grant != nil {
				s.grants.Close() // the next renewal is a long way off
				s.grants = m.d.renewals(m.link, "grants", m.host)
			}
			if u.Presence != nil {
				m.wake(ctx, u.Presence.ObservedAt, idle, resending)
			}
			if !send(ctx, out, u) {
				return
			}
		}
	}
}

// maxBatch bounds the deliveries that share one transaction.
const maxBatch = 128

// gather waits for one delivery and takes what else has arrived; false when ctx
// ended or the link closed.
func gather(ctx context.Context, s streams) ([]relay.Delivery, bool) {
	select {
	case del, ok := <-s.published.C():
		return arrived([]relay.Delivery{del}, s), ok
	case del, ok := <-s.renewals():
		return arrived([]relay.Delivery{del}, s), ok
	case <-ctx.Done():
		return nil, false
	}
}

// arrived adds what can be had without waiting, up to maxBatch.
func arrived(batch []relay.Delivery, s streams) []relay.Delivery {
	for len(batch) < maxBatch {
		var del relay.Delivery
		var ok bool
		select {
		case del, ok = <-s.published.C():
		case del, ok = <-s.renewals():
		default:
			return batch
		}
		if !ok {
			return batch // the next wait sees the end
		}
		batch = append(batch, del)
	}
	return batch
}

// wake resends the outbox when the host showed itself, at observed (host time),
// after the last silence.
func (m mailboxes) wake(ctx context.Context, observed int64, idle chan struct{}, resending *sync.WaitGroup) {
	last, waits, err := m.d.lastFailure(m.host)
	if err != nil || !waits || observed < m.d.inHostTime(last) {
		return
	}
	select {
	case <-idle:
	default:
		return
	}
	resending.Go(func() {
		defer func() { idle <- struct{}{} }()
		if err := m.d.Resend(ctx); err != nil {
			m.d.o.Log.Info().Err(err).Msg("outbox still waits")
		}
	})
}

// Refresh reads what the relay has stored of the host's summaries, presence and
// hints, of the states of own commands, and of a renewed grant when the one held
// is near its end, and returns when it has taken it all. It works while the host
// is away. RefreshPages reads the rest.
func (d *Device) Refresh(ctx context.Context) error {
	m, err := d.mailboxes()
	if err != nil {
		return err
	}
	return m.refresh(ctx, wantWords)
}

// RefreshCommands is Refresh for the states of own commands alone. An owner whose
// key is in the profile has these too; one whose key is held elsewhere has not,
// and it is an *OwnerError.
func (d *Device) RefreshCommands(ctx context.Context) error {
	m, err := d.ownStates()
	if err != nil {
		return err
	}
	return m.refresh(ctx, wantStates)
}

// RefreshPages reads the last pages that the relay has stored, and returns when
// it has taken them all; LastPage has them then. It works while the host is
// away. A page is up to 64 KiB, and at most 64 are asked for.
func (d *Device) RefreshPages(ctx context.Context) error {
	m, err := d.mailboxes()
	if err != nil {
		return err
	}
	return m.refresh(ctx, wantPages)
}

func (m mailboxes) refresh(ctx context.Context, want int) error {
	d := m.d
	kept, err := d.store.summaries(m.host)
	if err != nil {
		return err
	}
	from, err := m.cursors(kept)
	if err != nil {
		return err
	}
	s := m.subscribe(from, want)
	var endGrants <-chan struct{}
	if g, err := d.standing(); err == nil && d.hostNow() >= renewalFrom(g) && want&wantWords != 0 {
		s.grants = d.renewals(m.link, "stored-grants", m.host)
		endGrants = s.grants.EOSE()
	}
	defer s.close()
	var batch []relay.Delivery
	end := s.published.EOSE()
	for end != nil || endGrants != nil {
		var del relay.Delivery
		ok := true
		// Both are read at once: while one is not, the link delivers nothing.
		select {
		case del, ok = <-s.published.C():
			batch = append(batch, del)
		case del, ok = <-s.renewals():
			batch = append(batch, del)
		case <-end:
			end = nil
		case <-endGrants:
			endGrants = nil
		case <-ctx.Done():
			m.take(batch, nil) // what came is as good as ever
			return noAnswer(m.link.Health(), nil)
		}
		if !ok {
			return relay.ErrClosed
		}
		if len(batch) >= maxBatch {
			m.take(batch, nil)
			batch = nil
		}
	}
	for batch = arrived(batch, s); len(batch) > 0; batch = arrived(nil, s) {
		m.take(batch, nil)
	}
	return nil
}

// Known is the highest verified summary of a task that this device has seen,
// and whether there is one.
func (d *Device) Known(task nip.TaskID) (nip.Summary, bool, error) {
	g, err := d.standing()
	if err != nil {
		return nip.Summary{}, false, err
	}
	list, err := d.store.summaries(g.Host)
	i := slices.IndexFunc(list, func(s nip.Summary) bool { return s.Task == task })
	if err != nil || i < 0 {
		return nip.Summary{}, false, err
	}
	return list[i], true, nil
}
