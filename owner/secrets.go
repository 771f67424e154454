package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/saferead"
)

const (
	secretsSchema   = "holdfast.secrets.v1"
	secretsFile     = "secrets.json"
	maxSecretsBytes = 1 << 20
	maxSecretBytes  = 32<<10 - 256 // with its name it must fit one variable of the sandbox
)

// ReadSecrets reads HOME/secrets.json, the operator's names and values that a grant may pass to a turn by name. A
// missing file is an empty map. The file is private (0600, no link), closed and at most 1 MiB. Errors never hold a
// value.
func ReadSecrets(home string) (map[string]string, error) {
	b, err := saferead.Read(filepath.Join(home, secretsFile), maxSecretsBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read secrets: %w", err)
	}
	var d struct {
		V      jsontext.Value            `json:"v"`
		Values map[string]jsontext.Value `json:"values"`
	}
	// The decoder's own error can quote what it stumbled on, so it is not passed on.
	if jsonv2.Unmarshal(b, &d, jsonv2.RejectUnknownMembers(true)) != nil || string(d.V) != `"`+secretsSchema+`"` || d.Values == nil {
		return nil, fmt.Errorf("read secrets: %s is no %s; set each secret again", secretsFile, secretsSchema)
	}
	out := make(map[string]string, len(d.Values))
	for name, v := range d.Values {
		var s string
		if !variableName(name) || v.Kind() != '"' || jsonv2.Unmarshal(v, &s) != nil || len(s) > maxSecretBytes || strings.Contains(s, "\x00") {
			return nil, fmt.Errorf("read secrets: an entry of %s is no name with a text of at most %d bytes", secretsFile, maxSecretBytes)
		}
		out[name] = s
	}
	return out, nil
}

// secretEnvironment resolves the names of a grant. missing is the first name that is not set.
func secretEnvironment(home string, names []string) (env []string, missing string, err error) {
	if len(names) == 0 {
		return nil, "", nil
	}
	values, err := ReadSecrets(home)
	if err != nil {
		return nil, "", err
	}
	for _, name := range names {
		v, ok := values[name]
		if !ok {
			return nil, name, nil
		}
		env = append(env, name+"="+v)
	}
	return env, "", nil
}
