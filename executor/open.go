package executor

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"steno/schema"
)

// openRegular opens the regular file that path leads to, for reading. On
// success the caller closes both.
func (w *Workspace) openRegular(path string) (*os.File, *place, error) {
	p, err := w.find(path, existing)
	if err != nil {
		return nil, nil, err
	}
	f, err := w.openAt(p.dir, p.name, p.info, &storeFiles{w: w})
	if err != nil {
		p.close()
		return nil, nil, fileError(schema.ReadFailed, path, "cannot be read", err)
	}
	return f, p, nil
}

// openAt opens the file name of dir, which was seen to be info. Only regular
// files are opened: a pipe could wait for ever, a device could do anything.
func (w *Workspace) openAt(dir *os.Root, name string, info fs.FileInfo, store *storeFiles) (*os.File, error) {
	if !info.Mode().IsRegular() {
		return nil, notRegular(name, info)
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	switch {
	case err != nil:
	case !os.SameFile(info, now):
		err = errChanged
	case store.has(now):
		if err = protected(name, "is another name of a protected file"); noFiles(store.err) {
			err = store.err
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func notRegular(name string, info fs.FileInfo) *schema.Error {
	what := "a special file"
	switch m := info.Mode(); {
	case m.IsDir():
		what = "a folder"
	case m&fs.ModeNamedPipe != 0:
		what = "a named pipe"
	case m&fs.ModeSocket != 0:
		what = "a socket"
	case m&fs.ModeDevice != 0:
		what = "a device"
	}
	return schema.Errorf(schema.ReadFailed, "%s is %s, not a regular file", quoted(name), what).
		With("path", shorten(name, maxShown)).With("cause", "not a regular file")
}

// storeFiles answers whether a file is one of a protected folder under another
// name. It is made for one operation: it looks through the folders when it
// first meets a file of several names, which is rare, and then knows.
type storeFiles struct {
	w     *Workspace
	known map[inode]bool // of the files of several names there; nil until looked
	err   error
}

// has is true also if the protected folders cannot be looked through: a file
// that may be one of theirs is treated as one.
func (s *storeFiles) has(info fs.FileInfo) bool {
	if len(s.w.guarded) == 0 || linkCount(info) < 2 || !info.Mode().IsRegular() {
		return false
	}
	if s.known == nil {
		s.known = map[inode]bool{}
		for _, g := range s.w.guarded {
			if err := s.add(g.root); err != nil {
				s.err = err
				break
			}
		}
	}
	return s.err != nil || s.known[inodeOf(info)]
}

func (s *storeFiles) add(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	list, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, e := range list {
		info, err := dir.Lstat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // the store is at work
		}
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			sub, err := openFolder(dir, e.Name(), info)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			err = s.add(sub)
			sub.Close()
			if err != nil {
				return err
			}
		case linkCount(info) > 1:
			s.known[inodeOf(info)] = true
		}
	}
	return nil
}

// isBinary goes by what most tools go by: a zero byte near the beginning.
func isBinary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 }
