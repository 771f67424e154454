package sandbox_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// many is how much of something a test does: by default little, or what an environment variable says.
func many(t testing.TB, variable string, normal int) int {
	v := os.Getenv(variable)
	if v == "" {
		return normal
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number", variable, v)
	}
	return n
}

// sow makes empty files, 100 in a folder.
func sow(t testing.TB, dir string, files int) {
	t.Helper()
	for i := range files {
		in := fmt.Sprintf("%s/%d/%d", dir, i/10_000, i/100)
		if i%100 == 0 {
			must(t, os.MkdirAll(in, 0o755))
		}
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", in, i), nil, 0o644))
	}
}
