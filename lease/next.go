package lease

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"

	"steno/schema"
)

// Next claims the slot after this one for the same process, in the folder that
// this one is held in, whatever has become of this one's last write. room is
// how many bytes will follow the claim soon: where the file system can say so,
// a claim without room for them gets no name. The new slot has a folder of its
// own, which the caller closes; this one stays locked.
//
// AlreadyExists: another process has claimed that slot. SessionWriterLost: the
// segment or the folder is no longer at its name. LogWriteFailed, SyncFailed:
// nothing was claimed.
func (s *Slot) Next(header []byte, room int64) (*Slot, *Dir, error) {
	s.lane.begin() // a roll is a part of an append
	defer s.lane.end()
	if err := s.dir.enter(); err != nil {
		return nil, nil, err
	}
	defer s.dir.leave()
	if _, err := s.inPlace(view{fd: s.dir.fd()}); err != nil {
		return nil, nil, err
	}
	if err := s.onPath(false); err != nil {
		return nil, nil, err
	}
	d, err := s.dir.again()
	if err != nil {
		return nil, nil, err
	}
	next, err := d.claim(s.epoch+1, header, room)
	for try := 0; try < 10 && errors.Is(err, schema.AlreadyExists); try++ {
		// The Sweep of a former holder may find a claim in the instant before it is
		// locked. Nobody has the slot then.
		if _, e := d.root.Lstat(s.after); !errors.Is(e, fs.ErrNotExist) {
			break
		}
		next, err = d.claim(s.epoch+1, header, room)
	}
	if err != nil {
		d.Close()
		return nil, nil, err
	}
	next.doubtful = s.doubtful
	return next, d, nil
}

// again opens the same folder once more, wherever it is by now.
func (d *Dir) again() (*Dir, error) {
	root, err := d.root.OpenRoot(".")
	if err != nil {
		return nil, readFailed(d.name, err)
	}
	c := &Dir{parent: d.parent, name: d.name, path: d.path, root: root, info: d.info, node: d.node, faults: d.faults}
	if c.self, err = root.Open("."); err != nil {
		_ = c.letGo()
		return nil, readFailed(d.name, err)
	}
	return c, nil
}

// inPlace looks whether the segment is where we have it, in its folder.
func (s *Slot) inPlace(folder view) (size int64, err error) {
	if err := s.lookAt(folder.fd, folder.prefix+s.name); err != nil || seenNode(&s.seen) != s.node {
		return 0, s.lost("the segment is no longer at its name")
	}
	return s.seen.Size, nil
}

// onPath looks whether the folder is where we have it: by its whole path, so that
// a moved or deleted store is noticed too, or by its name where the commit log has
// looked at the rest.
func (s *Slot) onPath(logged bool) error {
	in, name := unix.AT_FDCWD, s.dir.path
	if logged && s.log.above != nil && s.log.above.root == s.dir.parent {
		s.log.above.using.RLock()
		defer s.log.above.using.RUnlock()
		if !s.log.above.closed {
			in, name = int(s.log.above.file.Fd()), s.dir.name
		}
	}
	if err := s.lookAt(in, name); err != nil || seenNode(&s.seen) != s.dir.node {
		return s.lost("the session's folder is no longer at its name")
	}
	return nil
}

// lookAt notes what stands at a name, which is not followed where it is a link.
func (s *Slot) lookAt(dir int, name string) error {
	for {
		if err := unix.Fstatat(dir, name, &s.seen, unix.AT_SYMLINK_NOFOLLOW); err != unix.EINTR {
			return err
		}
	}
}

func (s *Slot) lost(why string) error {
	return schema.Errorf(schema.SessionWriterLost, "session %s: %s", s.dir.name, why).
		With("session", s.dir.name).With("epoch", s.epoch).With("outcome", "unknown")
}

// IsFull reports whether an error says that there is no room on the disk, or
// none left for this user.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
