//go:build !linux

package owner

import "context"

// notice calls changed("") every second until ctx ends.
func (s *Store) notice(ctx context.Context, only string, changed func(dir string)) {
	poll(ctx, changed)
}
