package journal

import (
	"context"
	"errors"
	"io/fs"

	"steno/lease"
	"steno/schema"
)

// Remove takes a session away for good: its archive, its blobs, its checkpoint, and its
// segments but the newest, which says who removed it and why, and keeps its id
// from being given to another history. From the moment that is written every
// reader answers NotFound, and Open with Create AlreadyExists.
//
// A failure, a kill or a power cut leaves the session as it was, or removed with
// files left over; removing it again takes those away. NotFound: there is no
// such session, or nothing is left of it. What no writer may go on over is not
// removed either: CorruptLogLine, TailSuspect, UnsupportedSchemaVersion, which a
// repair mends first. SessionWriterActive, SessionWriterAmbiguous: another
// process has the session, or has lost it and lives. Otherwise errors are as in
// Open.
func (f *Files) Remove(ctx context.Context, session string, opt PackOptions) (Packed, error) {
	out := Packed{Session: session}
	if err := opt.check(session); err != nil {
		return out, err
	}
	if opt.Reason == "" {
		return out, schema.Errorf(schema.InvalidArgs, "a session is removed only with a reason").With("session", session)
	}
	s := NewScan(f, session, ScanOptions{Strict: true, State: opt.NewState()})
	for _, err := range s.Items(ctx) {
		if errors.Is(err, lease.ErrRemoved) {
			return f.removeRest(session, out, err, opt.DryRun)
		}
		if err != nil {
			return out, err
		}
	}
	h, err := f.holding(session)
	if err != nil {
		return out, err
	}
	defer h.dir.Close()
	if out.sum(s.Head, h); !s.Lease.Undecided {
		err = s.Lease.Err(session)
	}
	if err == nil {
		err = h.dir.Idle(s.top())
	}
	if err != nil || opt.DryRun {
		return out, err
	}
	j, err := f.lastWord(ctx, session, schema.ReasonRemoved, opt)
	if err != nil {
		return out, err
	}
	out.Epoch, out.Head = j.Epoch(), j.Head()
	err = j.writer.(*fileWriter).slot.Check()
	if err == nil {
		out.Freed, err = f.takeAway(session, j.Epoch())
	}
	if err != nil {
		err = schema.AsError(err).With("next", "the session is removed, and files of it are left; run it again: steno session rm "+session+" --reason WHY --apply")
	}
	return out, errors.Join(err, j.Close())
}

// removeRest takes away what a removal has left that did not live to. Nobody can
// write such a session, so no lease is needed for it.
func (f *Files) removeRest(session string, out Packed, gone error, dryRun bool) (Packed, error) {
	h, err := f.holding(session)
	if err != nil {
		return out, err
	}
	defer h.dir.Close()
	out.sum(schema.Head{}, h)
	top, err := removedIn(session, h)
	if err == nil {
		err = h.dir.Idle(top + 1) // who removes it is still at it
	}
	if err != nil {
		return out, err
	}
	if h.loose[0].Epoch == top && len(h.files) == 0 && h.index == nil && h.bad == nil {
		return out, gone
	}
	if !dryRun {
		out.Freed, err = f.takeAway(session, top)
	}
	return out, err
}

// removedIn is the segment that says that the session was removed. Above it may
// be a claim of somebody who came too late.
func removedIn(session string, h *holding) (uint64, error) {
	for i := len(h.loose) - 1; i >= 0; i-- {
		g := h.loose[i]
		file, err := h.dir.OpenSegment(g.Epoch)
		if err != nil {
			return 0, err
		}
		e, err := lease.ReadSegment(session, g.Epoch, file, g.Size)
		file.Close()
		if err != nil || e.Removed {
			return g.Epoch, err
		}
	}
	return 0, schema.Errorf(schema.NotFound, "session %s was removed", session).With("session", session)
}

// takeAway removes all that a session has below the segment that says so.
func (f *Files) takeAway(session string, top uint64) (freed int64, err error) {
	h, err := f.holding(session)
	if err != nil {
		return 0, err
	}
	defer h.dir.Close()
	if err := h.dir.RemoveCheckpoint(); err != nil { // first: what is left shows that the removal is not done
		return 0, err
	}
	if freed, err = f.removeArchive(session); err != nil {
		return 0, err
	}
	var epochs []uint64
	for _, g := range h.loose {
		if g.Epoch < top {
			epochs = append(epochs, g.Epoch)
			freed += g.Size
		}
	}
	var names []string
	for _, b := range h.files {
		names = append(names, b.Name)
		freed += b.Size
	}
	return freed, h.dir.Remove(epochs, names)
}

func (f *Files) removeArchive(session string) (freed int64, err error) {
	failed := func(err error) error {
		return schema.Errorf(schema.LogWriteFailed, "the archive of session %s cannot be removed: %s", session, plain(err)).With("session", session).Cause(err)
	}
	dir, err := f.archiveDir()
	if dir == nil || err != nil {
		if err != nil {
			err = failed(err)
		}
		return 0, err
	}
	defer dir.Close()
	if err := sweepPacks(dir, session); err != nil {
		return 0, failed(err)
	}
	if fi, err := dir.Lstat(session + archiveExt); err == nil {
		freed = fi.Size()
	}
	if err := dir.Remove(session + archiveExt); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, failed(err)
	}
	f.faults.Passed("removed")
	if err := f.syncDir(dir); err != nil {
		return 0, failed(err)
	}
	return freed, nil
}
