package host

import (
	"context"
	"errors"
	"os"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
)

// putArtifact is artifact.put: one piece of a picture. A piece goes where the
// last one ended; one that is held already, byte for byte, is answered with
// where the picture stands, so a device that lost count sends its first piece
// again. Every other place, and another size or media type under the same
// digest, is conflict. What is not proven whole by its digest is used by nobody.
//
// The piece is synced in its file first and counted by its row after that: a
// crash in between means that it never came, and the device's next try writes
// the same place.
func (h *Host) putArtifact(ctx context.Context, k *call, op nip.ArtifactPut) error {
	h.uploading.Lock()
	defer h.uploading.Unlock()
	d, err := openUploads(h.home)
	if err != nil {
		return h.cannot(ctx, k, err)
	}
	defer d.Close()
	p, code, err := h.takePiece(d, k, op)
	if err == nil && code == "" && !p.counted {
		code, err = h.countPiece(ctx, k, &p)
	}
	switch {
	case errors.Is(err, errLostStanding):
		return h.refuseStanding(k)
	case errors.Is(err, commands.ErrConflict), errors.Is(err, commands.ErrPruned):
		code = nip.Conflict // the request ID is another picture's in the journal
	case err != nil:
		return h.cannot(ctx, k, err)
	}
	if p.spoilt {
		// Without a row the file is nothing; tidyUploads would take it too.
		err := d.Remove(p.file())
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			h.log.Error().Err(err).Msg("an upload that does not hold could not be removed")
		}
	}
	if code != "" {
		return h.answerOnce(k, nip.Reply{Refusal: &nip.Refusal{Code: code}})
	}
	return h.answerOnce(k, nip.Reply{Outcome: p.progress()})
}

// piece is a picture after a piece was written, and what is left to do.
type piece struct {
	uploadRow
	counted bool // the row says so already: nothing to commit
	spoilt  bool // all bytes are there, and they are not what the digest names
}

// takePiece holds the piece against what is there and writes it. It changes no
// row. A code means that nothing was written.
func (h *Host) takePiece(d *saferead.Dir, k *call, op nip.ArtifactPut) (p piece, code nip.Code, err error) {
	now := h.now()
	p.uploadRow = uploadRow{Device: k.opened.Signer, Digest: op.Digest, MediaType: op.MediaType, Size: op.Size, BegunAt: now}
	known, room := false, false
	if err := h.db.View(func(tx *bbolt.Tx) error {
		lost, err := h.standing(tx, k.who.sender, nip.Operate, now)
		if err == nil && lost != "" {
			err = errLostStanding
		}
		if err != nil {
			return err
		}
		var have uploadRow
		if known, err = getJSON(tx, bucketUploads, p.key(), &have); err != nil {
			return err
		}
		if known = known && !have.over(now); known {
			p.uploadRow = have
		}
		room, err = uploadRoom(tx, &p.uploadRow, now)
		return err
	}); err != nil {
		return p, "", err
	}
	if known && (p.Size != op.Size || p.MediaType != op.MediaType) {
		return p, nip.Conflict, nil
	}
	var f atomicfile.File
	if known {
		f, err = openUpload(d, &p.uploadRow)
		if errors.Is(err, os.ErrNotExist) { // taken away by somebody: the picture begins again
			known, err = false, nil
			p.Received, p.CompleteAt, p.BegunAt = 0, 0, now
		}
	}
	if !known && err == nil {
		switch {
		case op.Offset != 0:
			return p, nip.Conflict, nil
		case !room:
			return p, nip.Bounds, nil
		}
		f, err = beginUpload(d, &p.uploadRow)
	}
	if err != nil {
		return p, "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end := op.Offset + int64(len(op.Data))
	switch {
	case end <= p.Received:
		same, err := holdsPiece(f, op.Offset, op.Data)
		if err != nil || !same {
			return p, nip.Conflict, err
		}
		p.counted = true
		return p, "", nil
	case op.Offset != p.Received:
		return p, nip.Conflict, nil
	}
	if _, err := f.WriteAt(op.Data, op.Offset); err != nil {
		return p, "", err
	}
	if err := f.Sync(); err != nil { // before the row counts it
		return p, "", err
	}
	if p.Received = end; end < p.Size {
		return p, "", nil
	}
	whole, err := p.whole(f)
	if p.spoilt = !whole; whole {
		p.CompleteAt = now
	}
	return p, "", err
}

// countPiece is the commit point: after it the piece is the host's, and the last
// one makes the picture whole. One whose bytes are not what its digest names
// leaves no row, so that the device can begin again.
func (h *Host) countPiece(ctx context.Context, k *call, p *piece) (nip.Code, error) {
	var refusal *nip.Refusal
	if p.spoilt {
		refusal = &nip.Refusal{Code: nip.Conflict}
	}
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := h.now()
		lost, err := h.standing(tx, k.who.sender, nip.Operate, now)
		if err == nil && lost != "" {
			err = errLostStanding
		}
		if err != nil {
			return err
		}
		if p.spoilt || p.CompleteAt != 0 {
			if err := h.note(tx, k, "", "picture "+string(p.Digest), refusal, 0, now); err != nil {
				return err
			}
		}
		if p.spoilt {
			return dropUploadRows(tx, func(u *uploadRow) bool { return u.key() == p.key() })
		}
		return putJSON(tx, bucketUploads, p.key(), p.uploadRow)
	})
	if err != nil {
		p.spoilt = false // its row stays, and so does its file
		return "", err
	}
	if refusal != nil {
		return refusal.Code, nil
	}
	return "", nil
}
