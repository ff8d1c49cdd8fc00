package lease

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"steno/schema"
)

// A slot keeps one descriptor, that of its segment, and as long as there are not
// too many slots in this process, two more of its folder, which spare each check
// a look for it. A folder that is not kept is opened by its path when it is
// needed, and must be the same one: then it has the same inode and, at its name,
// our own segment, which stays open and so cannot be anybody else's. A folder
// that was moved is not found, and its writer has lost.

var keptFolders atomic.Int64

// maxFiles is how many descriptors this process may have.
var maxFiles = func() int64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 256
	}
	return int64(min(limit.Cur, 1<<30))
}()

// maxKept is how many slots may keep their folders: they take a quarter of the
// descriptors.
var maxKept = maxFiles / 8

// MaxHeld is how many sessions this process can hold at once, by the descriptors
// that it may have: one for each session, which is half of them, a quarter for
// folders that stay open, and the rest for workspaces, connections and tools.
func MaxHeld() int { return int(max(1, maxFiles/2)) }

// enter makes sure that the folder is open, until leave.
func (d *Dir) enter() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.lean && d.users == 0:
		info, err := d.open()
		if errors.Is(err, fs.ErrNotExist) || err == nil && nodeOf(info) != d.node {
			_ = d.letGo()
			return schema.Errorf(schema.SessionWriterLost, "session %s: the session's folder is no longer at its name", d.name).
				With("session", d.name).With("outcome", "not_stored")
		}
		if err != nil {
			return err
		}
	case d.root == nil:
		return readFailed(d.name, fs.ErrClosed)
	}
	d.users++
	return nil
}

func (d *Dir) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users--; d.lean && d.users == 0 {
		_ = d.letGo()
	}
}

// open opens the folder by its name.
func (d *Dir) open() (info os.FileInfo, err error) {
	if d.root, err = d.parent.OpenRoot(d.name); err != nil {
		d.root = nil
		return nil, readFailed(d.name, err)
	}
	if d.self, err = d.root.Open("."); err == nil {
		info, err = d.self.Stat()
	}
	if err != nil {
		_ = d.letGo()
		return nil, readFailed(d.name, err)
	}
	return info, nil
}

func (d *Dir) letGo() (err error) {
	if d.root != nil {
		err = d.root.Close()
	}
	if d.self != nil {
		err = errors.Join(err, d.self.Close())
	}
	d.root, d.self = nil, nil
	return err
}

// rest lets the folder go, unless few enough slots keep theirs. From then on it
// is opened when it is needed.
func (s *Slot) rest() {
	d := s.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lean || s.keeps {
		return
	}
	if s.keeps = keptFolders.Add(1) <= maxKept; s.keeps {
		return
	}
	keptFolders.Add(-1)
	if d.lean = true; d.users == 0 {
		_ = d.letGo() // nothing was written by way of it that is not synced
	}
}

// forget ends what rest began.
func (s *Slot) forget() {
	if s.keeps {
		s.keeps = false
		keptFolders.Add(-1)
	}
}

// A view is how a check looks into a session's folder.
type view struct {
	fd     int    // of the folder, or of what prefix begins in
	prefix string // of names, where there is no descriptor of the folder
	opened bool   // for this check, by its path, so that it is known to lead there
}

func (v *view) close() {
	if v.opened {
		unix.Close(v.fd)
	}
}

// view gives a view of the folder for a check, which closes it. Where this process
// or the machine has no descriptor left, which says nothing of the session, the
// check looks by the folder's path: before it, and again afterwards, that must lead
// to the folder. Whoever has moved it away and back in between is not noticed.
func (s *Slot) view() (v view, err error) {
	d := s.dir
	if !d.lean {
		return view{fd: d.fd()}, nil
	}
	var fd int
	for {
		fd, err = unix.Open(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err == nil:
		v = view{fd: fd, opened: true}
		err = unix.Fstat(fd, &s.seen)
	case err == unix.EMFILE || err == unix.ENFILE:
		v = view{fd: unix.AT_FDCWD, prefix: d.path + "/"}
		err = s.lookAt(v.fd, d.path)
	}
	if err == nil && seenNode(&s.seen) != d.node {
		err = errForeign
	}
	if err != nil {
		v.close()
	}
	return v, err
}
