package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/btcsuite/btcd/btcec/v2"
	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/nbd-wtf/go-nostr/nip44"
	"go.etcd.io/bbolt"
)

// What one command that takes effect cannot do without, counted from the data
// path. A signature is verified where an event enters a process: the request at
// the relay, the reply at the device. The host opens the request, seals and
// signs the reply, and the device opens that. What the device seals and signs
// is made before the clock starts.
const (
	floorVerify = 2
	floorSign   = 1
	floorOpen   = 2
	floorSeal   = 1
	// On disk, one after the other: the relay commits the request; the host
	// commits it with its decision; the command's identity and the task's log
	// each gain a synced frame; the host commits the outcome with the reply; the
	// relay commits the reply.
	floorCommit = 4
	floorAppend = 2
)

// floorCrypto does the cryptography alone, with the libraries that the wire is
// made of and nothing of ours around them. Not for two goroutines.
type floorCrypto struct {
	key          *btcec.PrivateKey
	pub          []byte
	secret, peer string
	hash         [32]byte
	sig          *schnorr.Signature
	plain, box   string
}

func newFloorCrypto() (*floorCrypto, error) {
	key, err := btcec.NewPrivateKey()
	if err != nil {
		return nil, err
	}
	other, err := btcec.NewPrivateKey()
	if err != nil {
		return nil, err
	}
	f := &floorCrypto{
		key: key, pub: schnorr.SerializePubKey(key.PubKey()), secret: hex.EncodeToString(key.Serialize()), peer: hex.EncodeToString(schnorr.SerializePubKey(other.PubKey())),
		hash: sha256.Sum256([]byte("an event")), plain: strings.Repeat("x", 1100), // as long as a command's request
	}
	if f.sig, err = schnorr.Sign(key, f.hash[:], schnorr.FastSign()); err != nil {
		return nil, err
	}
	f.box, err = f.seal()
	return f, err
}

func (f *floorCrypto) seal() (string, error) {
	k, err := nip44.GenerateConversationKey(f.peer, f.secret)
	if err != nil {
		return "", err
	}
	return nip44.Encrypt(f.plain, k)
}

// command is the cryptography of one command.
func (f *floorCrypto) command() error {
	for range floorVerify {
		pub, err := schnorr.ParsePubKey(f.pub)
		if err != nil || !f.sig.Verify(f.hash[:], pub) {
			return errors.New("a signature of the floor does not hold")
		}
	}
	for range floorOpen {
		k, err := nip44.GenerateConversationKey(f.peer, f.secret)
		if err != nil {
			return err
		}
		if _, err := nip44.Decrypt(f.box, k); err != nil {
			return err
		}
	}
	for range floorSeal {
		if _, err := f.seal(); err != nil {
			return err
		}
	}
	for range floorSign {
		if _, err := schnorr.Sign(f.key, f.hash[:], schnorr.FastSign()); err != nil {
			return err
		}
	}
	return nil
}

// floorRate is how many commands a second all processors could do if there were
// nothing but the cryptography, and the processor time of one in milliseconds.
func floorRate(d time.Duration) (perSecond, cpu float64, err error) {
	var all sync.WaitGroup
	var count, failed atomic.Int64
	began, used := time.Now(), cpuTime()
	for range runtime.GOMAXPROCS(0) {
		f, err := newFloorCrypto()
		if err != nil {
			return 0, 0, err
		}
		all.Go(func() {
			for time.Since(began) < d {
				if f.command() != nil {
					failed.Add(1)
					return
				}
				count.Add(1)
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		return 0, 0, errors.New("the floor's cryptography failed")
	}
	n := float64(max(count.Load(), 1))
	return n / time.Since(began).Seconds(), millis(cpuTime()-used) / n, nil
}

// floorDisk does the commits and the synced appends alone.
type floorDisk struct {
	db  *bbolt.DB
	log *os.File
}

func (b *bench) newFloorDisk() (*floorDisk, error) {
	db, err := bbolt.Open(filepath.Join(b.dir, "floor.db"), 0o600, nil)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(b.dir, "floor.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &floorDisk{db, log}, nil
}

// command is one commit or append after the other, each as small as can be.
func (f *floorDisk) command() error {
	for range floorCommit {
		err := f.db.Update(func(tx *bbolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("events"))
			if err != nil {
				return err
			}
			key := make([]byte, 32)
			rand.Read(key) // never fails: crypto/rand
			return bucket.Put(key, make([]byte, 2048))
		})
		if err != nil {
			return err
		}
	}
	for range floorAppend {
		if _, err := f.log.Write(make([]byte, 300)); err != nil {
			return err
		}
		if err := f.log.Sync(); err != nil {
			return err
		}
	}
	return nil
}

func (f *floorDisk) close() error { return errors.Join(f.db.Close(), f.log.Close()) }
