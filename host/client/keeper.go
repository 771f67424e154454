package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"holdfast/host/client/remote"
	"holdfast/nip"
)

// bunkerFile keeps the remote signer of a profile whose key is held elsewhere.
const bunkerFile = "bunker.json"

const (
	// signerLife is how long one call to a key that is held elsewhere may last:
	// a person may have to find their telephone.
	signerLife = 3 * time.Minute
	// signerQuiet is how long such a call is silent before Options.Waiting.
	signerQuiet = 2 * time.Second
	// elsewhereLife is how long a relay connection lives whose every beginning
	// asks the signer.
	elsewhereLife = 15 * time.Minute
	// rememberedHosts is how many hosts' conversation keys an open profile keeps
	// in memory, beside its own key: to compute one is most of what an envelope
	// costs.
	rememberedHosts = 4
)

// InitBunker makes a profile whose key is kept by the remote signer of a
// bunker:// address (NIP-46), which it asks for its leave; ctx bounds that. The
// address holds a secret: it is kept in the profile, 0600, and stands in no
// error. Options.Loopback is the word for a plain relay of the bunker. A profile
// with a key of its own, or of another bunker, is refused.
func InitBunker(ctx context.Context, dir, address string, o Options) (*Device, error) {
	if err := makeProfile(dir); err != nil {
		return nil, err
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	if err := vacant(dir); err != nil {
		return nil, err
	}
	b, err := remote.Connect(ctx, address, remote.Options{Loopback: o.Loopback, Ask: o.Ask})
	if err != nil {
		return nil, &nip.KeeperError{Part: "connect", Err: err}
	}
	raw, err := b.Save()
	if err = errors.Join(err, b.Close()); err != nil {
		return nil, err
	}
	// Commit point: a crash before it leaves a bunker that knows a client which
	// is gone, and no profile; after it the profile is complete.
	err = newStore(dir).exclusive(func() error {
		if err := vacant(dir); err != nil {
			return err
		}
		return writeFile(dir, bunkerFile, raw)
	})
	if err != nil {
		return nil, err
	}
	return Open(dir, o)
}

// InitKey makes a profile for a key that exists already, such as a copy of the
// owner's. A profile with another key is refused.
func InitKey(dir string, key nip.SecretKey, o Options) (*Device, error) {
	if key.Public() == "" {
		return nil, errors.New("the key is not set")
	}
	d, err := initialise(dir, o, func() (nip.SecretKey, error) { return key, nil })
	if err != nil {
		return nil, err
	}
	if d.pub != key.Public() {
		return nil, errors.Join(fmt.Errorf("%w; use another profile", errHasKey), d.Close())
	}
	return d, nil
}

var errHasKey = errors.New("this profile has another key already")

// hasKey reports whether the profile has a key, here or elsewhere.
func hasKey(dir string) (bool, error) {
	for _, name := range []string{keyFile, bunkerFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// vacant refuses a profile that has a key, or lost the one that it had.
func vacant(dir string) error {
	has, err := hasKey(dir)
	if err != nil {
		return err
	}
	if has {
		return fmt.Errorf("%w; use another profile", errHasKey)
	}
	return notOrphaned(dir)
}

// notOrphaned refuses to give a new key to what was kept for another.
func notOrphaned(dir string) error {
	for _, name := range []string{oldAccessFile, hostsFolder} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%w: the key is missing beside %s; put it back or use another profile", ErrDamaged, name)
		}
	}
	return nil
}

// identify reads whose profile dir is: a key of its own, that of Options.Keeper,
// or that of the bunker kept there. secret is the zero key where it is held
// elsewhere, and close ends what was opened.
func identify(dir string, o Options) (secret nip.SecretKey, k nip.Keeper, end func() error, err error) {
	end = func() error { return nil }
	if o.Keeper != nil {
		if has, err := hasKey(dir); err != nil || has {
			return secret, nil, nil, errors.Join(err, errHasKey)
		}
		return secret, o.Keeper, end, nil
	}
	raw, err := readFile(dir, keyFile, 1024)
	if err == nil {
		if secret, err = nip.ParseSecretKey(strings.TrimSuffix(string(raw), "\n")); err != nil {
			return secret, nil, nil, fmt.Errorf("%w: %s is not a key", ErrDamaged, keyFile)
		}
		ring := nip.NewKeyring(secret, rememberedHosts)
		return secret, ring, func() error { ring.Close(); return nil }, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return secret, nil, nil, err
	}
	raw, err = readFile(dir, bunkerFile, remote.MaxSaved)
	if errors.Is(err, os.ErrNotExist) {
		return secret, nil, nil, ErrNoKey
	}
	if err != nil {
		return secret, nil, nil, err
	}
	b, err := remote.Resume(raw, remote.Options{Ask: o.Ask})
	if errors.Is(err, remote.ErrNewer) {
		return secret, nil, nil, fmt.Errorf("%w: %w", ErrNewer, err)
	}
	if err != nil {
		return secret, nil, nil, fmt.Errorf("%w: %s: %w", ErrDamaged, bunkerFile, err)
	}
	return secret, b, b.Close, nil
}

// patient bounds the calls to a key that is held elsewhere and says when one
// takes long.
type patient struct {
	nip.Keeper
	waiting func()
}

func (k patient) Sign(ctx context.Context, ev *nip.Event) error {
	return k.during(ctx, func(ctx context.Context) error { return k.Keeper.Sign(ctx, ev) })
}

func (k patient) Encrypt(ctx context.Context, peer nip.PubKey, text string) (payload string, err error) {
	err = k.during(ctx, func(ctx context.Context) (err error) {
		payload, err = k.Keeper.Encrypt(ctx, peer, text)
		return err
	})
	return payload, err
}

func (k patient) Decrypt(ctx context.Context, peer nip.PubKey, payload string) (text string, err error) {
	err = k.during(ctx, func(ctx context.Context) (err error) {
		text, err = k.Keeper.Decrypt(ctx, peer, payload)
		return err
	})
	return text, err
}

func (k patient) during(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, signerLife)
	defer cancel()
	if k.waiting != nil {
		defer time.AfterFunc(signerQuiet, k.waiting).Stop()
	}
	return call(ctx)
}

// elsewhere reports whether the secret is not in this process.
func (d *Device) elsewhere() bool { return d.key.Public() == "" }

// KeyElsewhere reports whether a signer outside of this process holds the key.
// Each request then asks it to encrypt and to sign, and each reply to decrypt;
// a person may have to agree each time.
func (d *Device) KeyElsewhere() bool { return d.elsewhere() }

// unsigned reports that a request was never sent because the key's holder did
// not do its part.
func unsigned(err error) bool {
	var k *nip.KeeperError
	return errors.As(err, &k) && !errors.Is(err, ErrNoAnswer)
}
