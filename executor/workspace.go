package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"steno/schema"
)

// A Workspace is the folder that a session's file tools work in. It is the one
// gate for every path they are given:
//
//   - A path is relative to the folder, or absolute and inside it. What leaves
//     it, by "..", by an absolute path or by a link, is outside_workspace. Links
//     that stay inside are followed.
//   - Sensitive names (keys, credentials, .env files, …) are protected_path,
//     wherever they stand in the path or in a link on its way.
//   - The protected folders, steno's own store above all, are protected_path and
//     do not show in listings. They are told by device and inode at every step,
//     so another spelling, a link or a second mount does not get around it.
//   - Only regular files are read and written. A file of several names (hard
//     links) is read unless one of them lies in a protected folder, and is never
//     written.
//
// A path is walked folder by folder with open handles, and what is opened in the
// end is compared with what was checked: renaming things meanwhile makes a tool
// fail, but does not make it leave.
//
// The gate binds the file tools. A command can go where the operating system
// lets it go; the protected folders are hidden from it where that can be done,
// see [Helper].
//
// A Workspace may be used from many goroutines at the same time.
type Workspace struct {
	dir     string // absolute, links resolved
	alias   string // absolute, as it was given
	root    *os.Root
	guarded []guarded
	shared  bool // guarded is the executor's

	// mu is held while a tool changes a file, so that an edit does not lose what
	// another call of the same process has just written. It is held during I/O
	// and is the only lock then.
	mu sync.Mutex
}

// guarded is a protected folder.
type guarded struct {
	root *os.Root
	info fs.FileInfo
}

// OpenWorkspace opens the folder dir and keeps its tools away from the folders
// in protect, wherever these are. The caller closes it when no tool uses it any
// more.
//
// Kind resource_missing says that dir is not a folder that can be opened,
// protected_path that it lies in a protected folder, invalid_config that one of
// protect is not there: what is not there cannot be told by its inode.
func OpenWorkspace(dir string, protect ...string) (*Workspace, error) {
	alias, err := filepath.Abs(dir)
	if err != nil {
		return nil, fileError(schema.ReadFailed, dir, "cannot be opened", err)
	}
	guarded, err := guard(protect)
	if err != nil {
		return nil, err
	}
	return openWorkspace(&Workspace{alias: alias, guarded: guarded})
}

// openWorkspace opens the folder of a workspace that knows its alias and what is
// guarded.
func openWorkspace(w *Workspace) (_ *Workspace, err error) {
	if w.dir, err = filepath.EvalSymlinks(w.alias); err == nil {
		w.root, err = os.OpenRoot(w.dir)
	}
	if err == nil {
		err = w.outsideGuarded()
	}
	if err != nil {
		w.Close()
		return nil, fileError(schema.ResourceMissing, w.alias, "cannot be opened as a folder", err)
	}
	return w, nil
}

// guard opens the folders that are to be protected.
func guard(protect []string) (list []guarded, err error) {
	for _, p := range protect {
		k, err := openGuarded(p)
		if err != nil {
			_ = letGo(list)
			if noFiles(err) {
				return nil, tooManyFiles(err)
			}
			return nil, schema.Errorf(schema.InvalidConfig, "the protected folder %s cannot be opened", quoted(p)).
				With("cause", lastWords(err)).Cause(err)
		}
		list = append(list, k)
	}
	return list, nil
}

func letGo(list []guarded) (err error) {
	for _, k := range list {
		err = errors.Join(err, k.root.Close())
	}
	return err
}

func openGuarded(dir string) (guarded, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return guarded{}, err
	}
	info, err := root.Stat(".")
	if err != nil {
		root.Close()
		return guarded{}, err
	}
	return guarded{root, info}, nil
}

// outsideGuarded refuses a workspace that is a protected folder or lies in one.
func (w *Workspace) outsideGuarded() error {
	for dir := w.dir; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if w.isGuarded(info) {
			return schema.Errorf(schema.ProtectedPath, "a workspace may not lie in a protected folder")
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// Close gives the handles back. Tools that are still running fail.
func (w *Workspace) Close() error {
	var err error
	if w.root != nil {
		err = w.root.Close()
	}
	if !w.shared {
		err = errors.Join(err, letGo(w.guarded))
	}
	return err
}

// Dir is the absolute path of the folder, links resolved.
func (w *Workspace) Dir() string { return w.dir }

func (w *Workspace) isGuarded(info fs.FileInfo) bool {
	for _, k := range w.guarded {
		if os.SameFile(k.info, info) {
			return true
		}
	}
	return false
}
