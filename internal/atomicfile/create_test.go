package atomicfile_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/atomicfile"
)

func TestCreate(t *testing.T) {
	failed := errors.New("no more")
	for _, row := range []struct {
		name, have string
		fail       error
		want       error
	}{
		{"new", "", nil, nil},
		{"there already", "mine", nil, fs.ErrExist},
		{"fails half way", "", failed, failed},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir() // 0755, as a person's own folder may be
			path := filepath.Join(dir, "f")
			files := 0
			if row.have != "" {
				files++
				if err := os.WriteFile(path, []byte(row.have), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			err := atomicfile.Create(path, func(w io.Writer) error {
				if _, err := os.Lstat(path); err == nil {
					t.Error("a part of it can be seen")
				}
				if _, err := io.WriteString(w, "text"); err != nil {
					return err
				}
				return row.fail
			})
			if !errors.Is(err, row.want) {
				t.Fatal(err)
			}
			want := row.have
			if row.want == nil {
				files, want = 1, "text"
				if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
					t.Fatal(fi, err)
				}
			}
			if b, _ := os.ReadFile(path); string(b) != want {
				t.Fatalf("%q", b)
			}
			if list, _ := os.ReadDir(dir); len(list) != files {
				t.Fatalf("%d files are left", len(list))
			}
		})
	}
	// Somebody who was quicker keeps what is theirs.
	path := filepath.Join(t.TempDir(), "f")
	err := atomicfile.Create(path, func(io.Writer) error { return os.WriteFile(path, []byte("theirs"), 0o600) })
	if b, _ := os.ReadFile(path); !errors.Is(err, fs.ErrExist) || string(b) != "theirs" {
		t.Fatalf("%v, %q", err, b)
	}
	t.Chdir(t.TempDir())
	if err := atomicfile.Create("here", func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
}
