package sandbox

import (
	"fmt"
	"os"
	"testing"
)

// BenchmarkScan looks at a tree of 100,000 files, 100 in a folder.
func BenchmarkScan(b *testing.B) {
	dir := b.TempDir()
	for i := range 100_000 {
		in := fmt.Sprintf("%s/%d/%d", dir, i/10_000, i/100)
		if i%100 == 0 {
			if err := os.MkdirAll(in, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(fmt.Sprintf("%s/%d", in, i), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	p := &pinned{}
	defer p.close()
	src, err := p.look(dir, true)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if n, err := scan(src, nil); err != nil || n.Names != 101_010 {
			b.Fatal(n, err)
		}
	}
}
