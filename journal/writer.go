package journal

import (
	"context"
	"errors"

	"steno/lease"
	"steno/schema"
)

// A fileWriter extends a segment of [Files].
type fileWriter struct {
	store *Files
	dir   *lease.Dir
	slot  *lease.Slot
	lane  *lease.Lane
	swept bool
	log   bool // appends go through the commit log

	holders *lease.Holders
	holder  schema.Holder
}

func (w *fileWriter) Settle(_ context.Context, epoch uint64) (int64, error) {
	size, err := w.slot.Settle(epoch)
	if !errors.Is(err, schema.NotFound) {
		return size, err
	}
	r, err := w.store.readArchived(w.dir.Session(), epoch, err) // whose bytes are sure and stay as they are
	if err != nil {
		return 0, err
	}
	return r.p.size, r.Close()
}

func (w *fileWriter) Carry(_ context.Context, lines []byte) error { return w.slot.Carry(lines) }

func (w *fileWriter) Append(_ context.Context, lines []byte, last bool) (Outcome, error) {
	if err := w.slot.Append(lines, last); err != nil {
		if schema.AsError(err).Details["outcome"] == NotStored.String() {
			return NotStored, err
		}
		return Unknown, err
	}
	if !w.swept { // the seal is durable: what dead claimants left can go
		w.slot.Sweep()
		w.swept = true
	}
	return Stored, nil
}

func (w *fileWriter) Next(_ context.Context, header []byte, room int64) (Writer, error) {
	lane := w.holders.Join(w.holder)
	slot, dir, err := w.slot.Next(header, room)
	if err != nil {
		lane.Leave()
		return nil, err
	}
	slot.BeatIn(lane, w.log)
	return &fileWriter{store: w.store, dir: dir, slot: slot, lane: lane, log: w.log, holders: w.holders, holder: w.holder}, nil
}

func (w *fileWriter) Release() error {
	err := errors.Join(w.slot.Close(), w.dir.Close())
	w.lane.Leave() // last: while it holds the lock it beats
	return err
}

// plain is the reason of a file error without the path in it.
func plain(err error) string { return lease.Cause(err) }
