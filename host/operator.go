package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/internal/saferead"
	"holdfast/nip"
	"holdfast/owner"
)

// The operator's verbs. They run in the resident host over its socket, or in
// the caller's process on a Core that it opened itself: the same functions.

// verb is one operator verb. emit is called once a document, for a stream verb
// once a line.
type verb func(ctx context.Context, c *Core, args json.RawMessage, emit func(any) error) error

var verbs = map[string]verb{
	"status":             verbStatus,
	"invite":             verbInvite,
	"enroll":             verbEnroll,
	"invitations.list":   verbInvitations,
	"invitations.cancel": verbInvitationCancel,
	"devices.list":       verbDevices,
	"devices.revoke":     verbRevoke,
	"workspace.list":     verbWorkspaces,
	"workspace.add":      verbWorkspaceAdd,
	"workspace.remove":   verbWorkspaceRemove,
	"policy.set":         verbPolicySet,
	"policy.off":         verbPolicyOff,
	"task.new":           verbTaskNew,
	"task.stop":          verbTaskStop,
	"task.apply":         verbTaskApply,
	"task.integrate":     verbTaskIntegrate,
	"task.start":         verbTaskStart,
	"task.archive":       verbTaskArchive,
	"task.restore":       verbTaskRestore,
	"task.recover":       verbTaskRecover,
	"task.check":         verbTaskCheck,
	"task.execute":       verbTaskExecute,
	"task.executed":      verbTaskExecuted,
	"secret.set":         verbSecretSet,
	"secret.remove":      verbSecretRemove,
	"journal.list":       verbJournalList,
	"journal.show":       verbJournalShow,
	"journal.tail":       verbJournalTail,
	"journal.check":      verbJournalCheck,
	"journal.dump":       verbJournalDump,
	"journal.resync":     verbJournalResync,
	"check":              verbCheck,
	"gc":                 verbGC,
	"backup":             verbBackup,
}

// Operate runs one verb on this Core. ErrUsage for unknown verbs and words.
func (c *Core) Operate(ctx context.Context, name string, args json.RawMessage, emit func(any) error) error {
	v, ok := verbs[name]
	if !ok {
		return fmt.Errorf("%w: this host knows no verb %q; it may be older than the command", ErrUsage, name)
	}
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	return v(ctx, c, args, emit)
}

func arguments(raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%w: %s", ErrUsage, err)
	}
	return nil
}

func verbStatus(ctx context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	s := Status{Host: c.self, Owner: c.owner, Relays: []RelayHealth{}, Tasks: map[string]int{}, Version: c.opts.Version}
	if h := c.serving; h != nil {
		s.Serving, s.Relays = true, h.transport.Relays()
	}
	err := c.db.View(func(tx *bbolt.Tx) error {
		recs, err := c.activeGrants(tx, c.now())
		if err != nil {
			return err
		}
		var of map[nip.RelayURL]int
		if s.Outbox, of, err = outboxWaits(tx); err != nil {
			return err
		}
		for i, r := range s.Relays {
			for _, name := range append([]nip.RelayURL{r.URL}, r.Also...) {
				s.Relays[i].Waiting += of[name]
			}
		}
		s.Devices = len(recs)
		now := c.now()
		s.Journal.Ahead = c.journal.Ahead(tx, now)
		s.Journal.Entries, s.Journal.Undecided, err = c.journal.Counts(tx)
		return err
	})
	if err != nil {
		return err
	}
	if s.Tasks, err = c.taskCounts(); err != nil {
		return err
	}
	p, _, err := loadPolicy(c.home)
	if s.Policy.Enabled = err == nil && p.Enabled; err != nil {
		s.Policy.Fault = err.Error()
	}
	s.Sandbox.Mechanism, s.Sandbox.Gaps = c.opts.Probe()
	s.Disk = c.disk(ctx)
	return emit(s)
}

// InviteArgs of "invite".
type InviteArgs struct {
	Rights nip.Rights   `json:"rights"`
	Days   int          `json:"days"`
	Relay  nip.RelayURL `json:"relay"` // "" is the primary relay of the serving host
}

// Invited is an invitation to show: the code is a secret until it is used.
type Invited struct {
	Invitation nip.InvitationID `json:"invitation"`
	Code       string           `json:"code"`
	ExpiresAt  int64            `json:"expires_at"`
	Relay      nip.RelayURL     `json:"relay"`
}

func verbInvite(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a InviteArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if a.Relay == "" {
		relay, err := c.primaryRelay()
		if err != nil {
			return err
		}
		a.Relay = relay
	}
	if h := c.serving; h != nil && !h.on(a.Relay) {
		return fmt.Errorf("%w: this host is not on %s; start it with --relay %s first", ErrUsage, a.Relay, a.Relay)
	}
	inv, code, err := c.NewInvitation(ctx, a.Rights, a.Days, a.Relay)
	if err != nil {
		return err
	}
	return emit(Invited{inv.ID, code, inv.ExpiresAt, inv.Relay})
}

// on reports whether the host serves on a relay of that name.
func (h *Host) on(relay nip.RelayURL) bool {
	return slices.ContainsFunc(h.transport.Relays(), func(r RelayHealth) bool { return r.has(relay) })
}

// primaryRelay is the relay that devices are invited to.
func (c *Core) primaryRelay() (nip.RelayURL, error) {
	if h := c.serving; h != nil {
		if rs := h.transport.Relays(); len(rs) > 0 {
			return rs[0].URL, nil
		}
	}
	var stored nip.RelayURL
	err := c.db.View(func(tx *bbolt.Tx) error {
		stored = nip.RelayURL(tx.Bucket(bucketMeta).Get([]byte("relay")))
		return nil
	})
	if err == nil && stored == "" {
		err = fmt.Errorf("%w: no relay is known yet; start holdfast up, or name one with --relay", ErrUsage)
	}
	return stored, err
}

// LocalRelay returns the loopback name of the embedded relay as it was last
// served, "" before the first start.
func (c *Core) LocalRelay() (nip.RelayURL, error) {
	var stored nip.RelayURL
	err := c.db.View(func(tx *bbolt.Tx) error {
		m := tx.Bucket(bucketMeta)
		if stored = nip.RelayURL(m.Get([]byte("local_relay"))); stored == "" {
			stored = nip.RelayURL(m.Get([]byte("relay"))) // of a home that never had two names
		}
		return nil
	})
	return stored, err
}

// SetRelay keeps the names served, of which the first is for new devices and
// local is the embedded relay's on this computer ("" keeps the stored one). It
// counts the live grants that name a relay that is not served: they stop
// working, because a grant pins its relay byte for byte.
func (c *Core) SetRelay(ctx context.Context, served []nip.RelayURL, local nip.RelayURL) (stranded int, err error) {
	if len(served) == 0 {
		return 0, fmt.Errorf("%w: a host needs a relay", ErrUsage)
	}
	err = c.db.Update(ctx, func(tx *bbolt.Tx) error {
		stranded = 0
		recs, err := c.activeGrants(tx, c.now())
		if err != nil {
			return err
		}
		for _, r := range recs {
			if !slices.Contains(served, r.Grant.Relay) {
				stranded++
			}
		}
		m := tx.Bucket(bucketMeta)
		if local != "" {
			if err := m.Put([]byte("local_relay"), []byte(local)); err != nil {
				return err
			}
		}
		return m.Put([]byte("relay"), []byte(served[0]))
	})
	return stranded, err
}

func verbDevices(_ context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	var list []nip.DeviceEntry
	if err := c.db.View(func(tx *bbolt.Tx) (err error) {
		list, err = c.deviceEntries(tx, c.now())
		return err
	}); err != nil {
		return err
	}
	rows := make([]DeviceRow, 0, len(list))
	for _, e := range list {
		rows = append(rows, DeviceRow(e))
	}
	return emit(map[string]any{"devices": rows})
}

// DeviceRow is nip.DeviceEntry with the wire's member names.
type DeviceRow struct {
	Device    nip.PubKey  `json:"device"`
	Grant     nip.GrantID `json:"grant"`
	Rights    nip.Rights  `json:"rights"`
	Epoch     int64       `json:"epoch"`
	Origin    string      `json:"origin"`
	IssuedAt  int64       `json:"issued_at"`
	ExpiresAt int64       `json:"expires_at"`
	State     string      `json:"state"`
	LastSeen  *int64      `json:"last_seen"`
}

// RevokeArgs of "devices.revoke".
type RevokeArgs struct {
	Device nip.PubKey `json:"device"`
	Stop   bool       `json:"stop"`
}

func verbRevoke(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a RevokeArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	rev, err := c.Revoke(ctx, a.Device, a.Stop)
	if err != nil {
		return err
	}
	return emit(rev)
}

// WorkspaceRow is one label with what kind of root it names.
type WorkspaceRow struct {
	Label nip.Label `json:"label"`
	Path  string    `json:"path"`
	Kind  string    `json:"kind"`
}

func verbWorkspaces(_ context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	ws, err := loadWorkspaces(c.home)
	if err != nil {
		return err
	}
	rows := []WorkspaceRow{}
	for _, w := range ws.Workspaces {
		rows = append(rows, WorkspaceRow{w.Label, w.Path, w.kind()})
	}
	return emit(map[string]any{"workspaces": rows})
}

// WorkspaceArgs of "workspace.add" and "workspace.remove".
type WorkspaceArgs struct {
	Label nip.Label `json:"label"`
	Path  string    `json:"path"`
}

func verbWorkspaceAdd(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a WorkspaceArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	path, err := rootFor(c.home, a.Label, a.Path)
	if err != nil {
		return err
	}
	var w Workspace
	if err := c.do(ctx, act{Kind: "workspace.add", Name: string(a.Label), Want: path}, string(a.Label)+" is "+path, nil, func() (end actEnd, err error) {
		w, err = AddWorkspace(c.home, a.Label, path)
		return end, err
	}); err != nil {
		return err
	}
	return emit(WorkspaceRow{w.Label, w.Path, w.kind()})
}

func verbWorkspaceRemove(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a WorkspaceArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if why := labelFault(a.Label); why != "" {
		return fmt.Errorf("%w: no workspace %q", ErrNotFound, a.Label)
	}
	if err := c.do(ctx, act{Kind: "workspace.remove", Name: string(a.Label)}, string(a.Label), nil, func() (actEnd, error) {
		return actEnd{}, RemoveWorkspace(c.home, a.Label)
	}); err != nil {
		return err
	}
	return emit(map[string]any{"removed": a.Label})
}

func verbPolicySet(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	settings.Lock()
	defer settings.Unlock()
	p, err := checkedPolicy(c.home, raw)
	if err == nil {
		err = c.keepPolicy(ctx, "policy.set", p)
	}
	if err != nil {
		return err
	}
	return c.policyChanged(p, emit)
}

func verbPolicyOff(ctx context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	settings.Lock()
	defer settings.Unlock()
	p, _, err := loadPolicy(c.home)
	if err != nil {
		return err
	}
	p.Enabled = false
	if len(p.Rules) > 0 {
		if err := c.keepPolicy(ctx, "policy.off", p); err != nil {
			return err
		}
	}
	return c.policyChanged(p, emit)
}

// keepPolicy journals the policy's digest, which names in execution grants what
// a turn was admitted by, and writes it.
func (c *Core) keepPolicy(ctx context.Context, kind string, p Policy) error {
	out, err := policyFile(p)
	if err != nil {
		return err
	}
	digest := nip.DigestOf(out)
	return c.do(ctx, act{Kind: kind, Want: string(digest)}, string(digest), nil, func() (actEnd, error) {
		return actEnd{}, writePolicy(c.home, p)
	})
}

// policyChanged wakes the starter and names the turns that the change does not
// touch: a running turn keeps the grant it was admitted with.
func (c *Core) policyChanged(p Policy, emit func(any) error) error {
	running := []owner.TaskID{}
	ids, err := c.openTasks()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if t, err := c.store.Get(id); err == nil && (t.Status == owner.Running || t.Status == owner.CancelRequested) {
			running = append(running, id)
		}
	}
	if h := c.serving; h != nil {
		h.starter.wake()
	}
	return emit(map[string]any{"policy": p, "running": running})
}

// ShowPolicy reads the policy as it stands.
func ShowPolicy(home string) (Policy, error) {
	p, _, err := loadPolicy(home)
	return p, err
}

// verbCheck verifies every durable file, read-only.
func verbCheck(_ context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	type row struct {
		Path   string `json:"path"`
		OK     bool   `json:"ok"`
		Detail string `json:"detail"`
	}
	rows := []row{}
	var n uint64
	err := c.db.View(func(tx *bbolt.Tx) (err error) {
		n, err = c.journal.Check(tx)
		return err
	})
	detail := fmt.Sprintf("journal chain of %d records holds", n)
	if err != nil {
		detail = err.Error()
	}
	rows = append(rows, row{"host.db", err == nil, detail})
	report := func(path string, ok bool, detail string) { rows = append(rows, row{path, ok, detail}) }
	if err := c.store.Check(report); err != nil {
		rows = append(rows, row{"tasks", false, err.Error()})
	}
	if err := c.checkUploads(report); err != nil {
		rows = append(rows, row{uploadFolder, false, err.Error()})
	}
	if _, _, err := loadPolicy(c.home); err != nil {
		rows = append(rows, row{"policy.json", false, err.Error()})
	}
	if _, err := loadWorkspaces(c.home); err != nil {
		rows = append(rows, row{"workspaces.json", false, err.Error()})
	}
	if _, err := owner.ReadSecrets(c.home); err != nil {
		rows = append(rows, row{"secrets.json", false, err.Error()})
	}
	if c.opts.Check != nil {
		c.opts.Check(report)
	}
	return emit(map[string]any{"stores": rows})
}

// ErrorCode is the operator protocol's word for an error, so that a verb ends
// with the same exit code whether a host serves or not.
func ErrorCode(err error) string {
	var refused *owner.Error
	switch {
	case errors.Is(err, ErrUsage):
		return "usage"
	case errors.Is(err, ErrNotFound):
		return "not_found"
	case errors.As(err, &refused):
		return refused.Code
	case errors.Is(err, commit.ErrNewer), errors.Is(err, owner.ErrNewer):
		return "newer"
	case Damaged(err):
		return "damaged"
	}
	return "failed"
}

// Damaged reports whether a store is not what was written, or may not be
// trusted before it was opened again.
func Damaged(err error) bool {
	for _, e := range []error{
		commit.ErrCorrupt, commit.ErrPoisoned, owner.ErrCorrupt, owner.ErrUnsafe, owner.ErrReopen, commands.ErrChain, saferead.ErrUnsafe,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
