package owner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadSecrets(t *testing.T) {
	for _, r := range []struct {
		name, text string
		want       map[string]string
		ok         bool
	}{
		{"two", `{"v":"holdfast.secrets.v1","values":{"A":"x","B_2":"y\nz"}}`, map[string]string{"A": "x", "B_2": "y\nz"}, true},
		{"none", `{"v":"holdfast.secrets.v1","values":{}}`, map[string]string{}, true},
		{"other version", `{"v":"holdfast.secrets.v2","values":{"A":"hunter2"}}`, nil, false},
		{"no values", `{"v":"holdfast.secrets.v1"}`, nil, false},
		{"unknown member", `{"v":"holdfast.secrets.v1","values":{"A":"hunter2"},"x":1}`, nil, false},
		{"duplicate name", `{"v":"holdfast.secrets.v1","values":{"A":"hunter2","A":"y"}}`, nil, false},
		{"number", `{"v":"holdfast.secrets.v1","values":{"A":1}}`, nil, false},
		{"bad name", `{"v":"holdfast.secrets.v1","values":{"A-B":"hunter2"}}`, nil, false},
		{"NUL", `{"v":"holdfast.secrets.v1","values":{"A":"hunter2\u0000"}}`, nil, false},
		{"too long", `{"v":"holdfast.secrets.v1","values":{"A":"` + strings.Repeat("x", maxSecretBytes+1) + `"}}`, nil, false},
		{"no JSON", `hunter2`, nil, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			home := t.TempDir()
			if err := os.Chmod(home, 0o700); err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(home, secretsFile), []byte(r.text))
			got, err := ReadSecrets(home)
			if (err == nil) != r.ok || len(got) != len(r.want) {
				t.Fatalf("ReadSecrets = %v, %v", got, err)
			}
			for k, v := range r.want {
				if got[k] != v {
					t.Fatalf("%s = %q", k, got[k])
				}
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("the error holds a value: %v", err)
			}
		})
	}
}

func TestReadSecretsFile(t *testing.T) {
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSecrets(home); err != nil || len(got) != 0 {
		t.Fatalf("missing file: %v, %v", got, err)
	}
	path := filepath.Join(home, secretsFile)
	writeFile(t, path, []byte(`{"v":"holdfast.secrets.v1","values":{}}`))
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecrets(home); err == nil {
		t.Fatal("a file open to the group was read")
	}
	other := filepath.Join(home, "other")
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecrets(home); err == nil {
		t.Fatal("a link was followed")
	}
}
