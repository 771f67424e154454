package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/atomicfile"
	"holdfast/owner"
)

var secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// SecretArgs of "secret.set" and "secret.remove". The value crosses the
// operator's socket, which is this user's alone, and is written to secrets.json;
// the journal, logs and errors have the name.
type SecretArgs struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

func verbSecretSet(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a SecretArgs
	if json.Unmarshal(raw, &a) != nil { // its error could quote the value
		return fmt.Errorf("%w: secret.set takes a name and a value", ErrUsage)
	}
	if !secretName.MatchString(a.Name) {
		return fmt.Errorf("%w: %q is no variable name", ErrUsage, a.Name)
	}
	if a.Value == "" || strings.ContainsRune(a.Value, 0) {
		return fmt.Errorf("%w: the value is empty or holds a NUL byte", ErrUsage)
	}
	return c.changeSecret(ctx, act{Kind: "secret.set", Name: a.Name}, func(m map[string]string) error {
		m[a.Name] = a.Value
		return nil
	}, emit)
}

func verbSecretRemove(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a SecretArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	return c.changeSecret(ctx, act{Kind: "secret.remove", Name: a.Name}, func(m map[string]string) error {
		if _, ok := m[a.Name]; !ok {
			return fmt.Errorf("%w: no secret %s", ErrNotFound, cut(a.Name, 128))
		}
		delete(m, a.Name)
		return nil
	}, emit)
}

// changeSecret rewrites secrets.json whole; the rename is the commit point.
func (c *Core) changeSecret(ctx context.Context, a act, change func(map[string]string) error, emit func(any) error) error {
	settings.Lock()
	defer settings.Unlock()
	m, err := owner.ReadSecrets(c.home)
	if errors.Is(err, os.ErrNotExist) {
		m, err = map[string]string{}, nil
	}
	if err == nil {
		err = change(m)
	}
	if err != nil {
		return err
	}
	out, err := jsonv2.Marshal(struct {
		V      string            `json:"v"`
		Values map[string]string `json:"values"`
	}{"holdfast.secrets.v1", m}, jsontext.WithIndent("  "), jsonv2.Deterministic(true))
	if err != nil {
		return errors.New("secrets cannot be encoded")
	}
	if err := c.do(ctx, a, a.Name, nil, func() (actEnd, error) {
		return actEnd{}, atomicfile.Write(filepath.Join(c.home, "secrets.json"), append(out, '\n'))
	}); err != nil {
		return err
	}
	names := []string{}
	for n := range m {
		names = append(names, n)
	}
	sort.Strings(names)
	return emit(map[string]any{"names": names})
}
