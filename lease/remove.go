package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"steno/schema"
)

// What package journal has packed, or was told to remove, is taken out of a
// session's folder here. The newest segment always stays: it is the fence. An
// export has no newest segment in the folder, and leaves a mark instead.

// ErrRemoved is the cause of the NotFound that a removed session is.
var ErrRemoved = errors.New("the session was removed")

// Gone is NotFound for a session that was removed, nil for any other.
func (s Status) Gone(session string) error {
	if !s.Removed {
		return nil
	}
	return schema.Errorf(schema.NotFound, "session %s was removed", session).With("session", session).With("removed", true).Cause(ErrRemoved)
}

// A File is what stands under a name.
type File struct {
	Name string
	Size int64
}

// Blobs lists the folder of blobs, in order, whatever is there.
func (d *Dir) Blobs() (list []File, err error) {
	b, err := d.blobs()
	if errors.Is(err, schema.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer b.Close()
	f, err := b.Open(".")
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	slices.Sort(names)
	for _, name := range names {
		fi, err := b.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, readFailed(d.name, err)
		}
		list = append(list, File{name, fi.Size()})
	}
	return list, nil
}

// Idle is SessionWriterActive where a process that has lost the session still
// has one of its segments below an epoch open, and could yet write there.
func (d *Dir) Idle(below uint64) error {
	segments, err := d.Segments()
	if err != nil {
		return err
	}
	for _, g := range segments {
		if g.Epoch >= below {
			break
		}
		held, err := d.Held(g.Epoch)
		if err != nil {
			return err
		}
		if !held {
			continue
		}
		e := schema.Errorf(schema.SessionWriterActive, "a process that has lost session %s still has segment %06d of it open", d.name, g.Epoch).
			With("session", d.name).With("epoch", g.Epoch).With("next", "end that process, then try again")
		if ev, err := d.evidence(g.Epoch); err == nil && ev.Holder != nil {
			e.With("holder", ev.Holder.ID).With("host", ev.Holder.Host).With("pid", ev.Holder.PID).With("program", ev.Holder.Program)
		}
		return e
	}
	return nil
}

// Remove takes segments below this slot, and blobs, out of the folder, once it
// is sure that there is no successor. One that is not there is as good as
// removed.
func (s *Slot) Remove(segments []uint64, blobs []string) error {
	for _, epoch := range segments {
		if epoch >= s.epoch {
			return schema.Errorf(schema.Internal, "segment %06d of session %s is no older one", epoch, s.dir.name).With("session", s.dir.name)
		}
	}
	if err := s.Check(); err != nil {
		return err
	}
	return s.dir.Remove(segments, blobs)
}

// Remove is [Slot.Remove] for a session that nobody can write any more.
func (d *Dir) Remove(segments []uint64, blobs []string) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	gone := func(dir *os.Root, name string) error {
		if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return writeFailed(d.name, fmt.Sprintf("%s cannot be removed", name), err)
		}
		d.faults.at("removed")
		return nil
	}
	for _, epoch := range segments {
		if err := gone(d.root, segmentName(epoch)); err != nil {
			return err
		}
	}
	marks, err := d.numbers(archivedExt) // the segment that stays vouches for those below
	if err != nil {
		return err
	}
	for _, epoch := range marks {
		if err := gone(d.root, numbered(epoch, archivedExt)); err != nil {
			return err
		}
	}
	if len(blobs) > 0 {
		b, err := d.blobs()
		if errors.Is(err, schema.NotFound) {
			blobs = nil
		} else if err != nil {
			return err
		} else {
			defer b.Close()
		}
		for _, name := range blobs {
			if err := gone(b, name); err != nil {
				return err
			}
		}
	}
	// Names that come back after a power cut harm nobody, but their room should
	// be free for good.
	if err := d.faults.sync(d.self, d.self.Sync); err != nil {
		return schema.Errorf(schema.SyncFailed, "the folder of session %s cannot be synced: %s", d.name, Cause(err)).
			With("session", d.name).Cause(err)
	}
	return nil
}

// Faults for files that package journal writes: they are passed as those of a
// segment are. f may be nil.

// Synced syncs a file.
func (f *Faults) Synced(file *os.File) error { return f.sync(file, file.Sync) }

// Dropped drops the clean pages of a file, so that what is read next is what
// the disk has.
func (f *Faults) Dropped(file *os.File) error { return f.drop(file) }

// Passed tells a test that a point is passed.
func (f *Faults) Passed(point string) { f.at(point) }

// Archived is the number that [Dir.MarkArchived] has left in the folder, the
// highest if there are more; 0 for none.
func (d *Dir) Archived() (epoch uint64, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	epochs, err := d.numbers(archivedExt)
	if len(epochs) == 0 {
		return 0, err
	}
	return epochs[len(epochs)-1], nil
}

// MarkArchived leaves a durable mark in the folder that says that segment epoch,
// and what counts below it, was put into the archive of the session. It is an
// empty file: its name says all, and cannot be damaged without being lost.
func (d *Dir) MarkArchived(epoch uint64) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	f, err := d.root.OpenFile(numbered(epoch, archivedExt), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Chmod(0o600), f.Close()) // whatever the umask says
	}
	if err == nil {
		err = d.faults.sync(d.self, d.self.Sync)
	}
	if err != nil {
		return writeFailed(d.name, "what is in its archive cannot be noted", err)
	}
	return nil
}
