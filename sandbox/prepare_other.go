//go:build !linux

package sandbox

// Prepared would be a start that was begun before its Spec was known. Nothing can
// be begun here: Start does all of it.
type Prepared struct{}

// Prepare begins nothing here.
func Prepare(Network, int, int64) *Prepared { return nil }

// Start is the package's Start.
func (*Prepared) Start(spec Spec) (*Process, error) {
	if err := spec.check(); err != nil {
		return nil, err
	}
	return launch(spec.withDefaults())
}

// Discard has nothing to end.
func (*Prepared) Discard() {}

// Ready has nothing to wait for.
func (*Prepared) Ready() {}
