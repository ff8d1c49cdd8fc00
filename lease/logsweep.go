package lease

import (
	"bytes"
	"os"
)

// sweepEvery is how many beats lie between two looks for the logs of the dead.
const sweepEvery = 30

// leadsTo reports whether the path of a holder's folder leads to dir.
func (h *Holders) leadsTo(holder string, dir *os.Root) bool {
	own, err := dir.Stat(".")
	if err != nil {
		return false
	}
	at, err := h.store.Lstat("holders/" + holder)
	return err == nil && os.SameFile(own, at)
}

// superseded reports whether a segment is behind a durable seal that nobody can
// overlook, so that no log adds anything to it any more. That is one in the
// newest slot: who has claimed a slot behind a seal may have looked before it was
// written, and goes on from this segment with what the log has of it.
func (h *Holders) superseded(session string, epoch uint64, faults *Faults) bool {
	d, err := h.session(session, faults)
	if err != nil { // it may be away for a while: moved, or on a volume that is not mounted
		return false
	}
	defer d.Close()
	newest := func() uint64 {
		list, err := d.Segments()
		if err != nil || len(list) == 0 {
			return 0
		}
		return list[len(list)-1].Epoch
	}
	sealed := func(epoch uint64) bool {
		e, err := d.evidence(epoch)
		return err == nil && e.Sealed
	}
	top := newest()
	if top <= epoch || !sealed(top) {
		return false
	}
	// It may have been seen in the page cache alone.
	if _, err := d.Settle(top); err != nil || !sealed(top) {
		return false
	}
	return newest() == top // who claims behind it from now on sees it
}

func (h *Holders) session(session string, faults *Faults) (*Dir, error) {
	all, err := h.store.OpenRoot("sessions")
	if err != nil {
		return nil, readFailed(session, err)
	}
	defer all.Close()
	return Open(all, session, faults)
}

// sweepLogs removes the files of the logs of dead holders that nobody needs any
// more: all that is in them stands in its segment, on the disk, or its session
// has another writer's seal.
func (h *Holders) sweepLogs(stop <-chan struct{}) {
	all, err := openFolder(h.store, "holders")
	if err != nil {
		return
	}
	defer all.Close()
	names, err := list(all)
	if err != nil {
		return
	}
	for _, holder := range names {
		files, err := h.logFiles(holder)
		if err != nil {
			continue
		}
		dir, err := openFolder(all, holder)
		if err != nil {
			continue
		}
		for name, x := range files {
			select {
			case <-stop:
			default:
				// With its lock held nobody begins to use it meanwhile, and who is
				// making it sees that it is not his.
				if x.lock() && h.unneeded(x, stop) {
					_ = dir.Remove(name)
				}
			}
			x.file.Close()
		}
		dir.Close()
		if len(files) > 0 {
			_ = all.Remove(holder) // only if it is empty
		}
	}
}

// dead reports whether nobody holds the lock of a file.
func (x *logIndex) dead() bool {
	if x.locked {
		return true
	}
	ok, err := tryLock(x.file, shared)
	return ok && err == nil && unlock(x.file) == nil
}

// lock takes the lock of a dead holder's file, until it is closed.
func (x *logIndex) lock() bool {
	ok, err := tryLock(x.file, shared)
	x.locked = ok && err == nil
	return x.locked
}

func (h *Holders) unneeded(x *logIndex, stop <-chan struct{}) bool {
	if x.read() != nil {
		return false
	}
	for of, extents := range x.extents {
		select {
		case <-stop:
			return false
		default:
		}
		if !h.inSegment(of, extents) && !h.superseded(of.session, of.epoch, nil) {
			return false
		}
	}
	return true
}

// inSegment reports whether what a log has of a segment stands there on the
// disk.
func (h *Holders) inSegment(of epochOf, extents []extent) bool {
	d, err := h.session(of.session, nil)
	if err != nil {
		return false
	}
	defer d.Close()
	if _, err := d.Settle(of.epoch); err != nil {
		return false
	}
	f, err := d.OpenSegment(of.epoch)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, e := range extents {
		own, laid := make([]byte, e.bytes), make([]byte, e.bytes)
		if _, err := f.ReadAt(own, e.offset); err != nil {
			return false
		}
		if _, err := e.in.file.ReadAt(laid, e.place); err != nil || !bytes.Equal(own, laid) {
			return false
		}
	}
	return true
}
