package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

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
// lets it go.
//
// A Workspace may be used from many goroutines at the same time.
type Workspace struct {
	dir     string // absolute, links resolved
	alias   string // absolute, as it was given
	root    *os.Root
	guarded []guarded

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

const (
	maxPath  = 4096 // bytes of a path that is given
	maxSteps = 128  // folders that a path may go down
	maxLinks = 40   // links on the way, as most systems have it
)

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
	w := &Workspace{alias: alias}
	for _, p := range protect {
		k, err := openGuarded(p)
		if err != nil {
			w.Close()
			return nil, schema.Errorf(schema.InvalidConfig, "the protected folder %s cannot be opened", quoted(p)).
				With("cause", lastWords(err)).Cause(err)
		}
		w.guarded = append(w.guarded, k)
	}
	if w.dir, err = filepath.EvalSymlinks(alias); err == nil {
		w.root, err = os.OpenRoot(w.dir)
	}
	if err == nil {
		err = w.outsideGuarded()
	}
	if err != nil {
		w.Close()
		return nil, fileError(schema.ResourceMissing, dir, "cannot be opened as a folder", err)
	}
	return w, nil
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
	for _, k := range w.guarded {
		err = errors.Join(err, k.root.Close())
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

// A place is where a path has led: a name in an open folder. Whoever gets one
// closes it.
type place struct {
	dir  *os.Root
	name string      // in dir; "." for the workspace itself
	path string      // from the workspace, links resolved
	info fs.FileInfo // of the thing itself, never a link; nil if nothing is there
	open []*os.Root  // from the top down; the last is dir, unless that is the workspace's own
}

func (p *place) close() {
	for _, r := range p.open {
		r.Close()
	}
}

// A wish says what may be missing at the end of a path.
type wish int

const (
	existing   wish = iota // nothing
	perhapsNew             // the file and folders above it; nothing is made
	makeWay                // the file; folders above it are made
)

// find walks path and returns the place it leads to. If folders are missing
// and the wish is perhapsNew, the place has no dir.
func (w *Workspace) find(path string, want wish) (_ *place, err error) {
	todo, err := w.split(path)
	if err != nil {
		return nil, err
	}
	failed, what := schema.ReadFailed, "cannot be reached"
	if want != existing {
		failed = schema.WriteFailed
	}
	p := &place{dir: w.root}
	defer func() {
		if err != nil {
			p.close()
			err = fileError(failed, path, what, err)
		}
	}()
	var names []string // of the folders in p.open
	links := 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if name == ".." {
			if len(names) == 0 {
				return nil, outside(path)
			}
			names = names[:len(names)-1]
			p.up(w.root)
			continue
		}
		if sensitive(name) {
			return nil, protected(path, "has a sensitive name")
		}
		info, err := p.dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) && want != existing {
			for _, later := range todo {
				if later == ".." {
					return nil, err // there is no way up from what is not there
				}
				if sensitive(later) {
					return nil, protected(path, "has a sensitive name")
				}
			}
			if len(names)+len(todo) >= maxSteps {
				return nil, tooDeep()
			}
			if len(todo) == 0 {
				p.name, p.path = name, joinPath(names, name)
				return p, nil
			}
			if want == perhapsNew {
				p.close()
				return &place{path: joinPath(names, strings.Join(append([]string{name}, todo...), "/"))}, nil
			}
			if info, err = makeFolder(p.dir, name); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return nil, err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			if links++; links > maxLinks {
				return nil, syscall.ELOOP
			}
			target, err := p.dir.Readlink(name)
			if err != nil {
				return nil, err
			}
			if filepath.IsAbs(target) {
				rest, ok := w.inside(target)
				if !ok {
					return nil, outside(path)
				}
				for len(names) > 0 {
					names = names[:len(names)-1]
					p.up(w.root)
				}
				target = rest
			}
			todo = append(components(target), todo...)
			continue
		}
		if w.isGuarded(info) {
			return nil, protected(path, "leads into a protected folder")
		}
		if len(todo) == 0 {
			p.name, p.path, p.info = name, joinPath(names, name), info
			return p, nil
		}
		if !info.IsDir() {
			return nil, syscall.ENOTDIR
		}
		if len(names) >= maxSteps {
			return nil, tooDeep()
		}
		sub, err := openFolder(p.dir, name, info)
		if err != nil {
			return nil, err
		}
		p.open = append(p.open, sub)
		p.dir = sub
		names = append(names, name)
	}
	p.name, p.path = ".", joinPath(names, "")
	p.info, err = p.dir.Lstat(".")
	return p, err
}

// up goes to the folder above, which is root at the top.
func (p *place) up(root *os.Root) {
	last := len(p.open) - 1
	p.open[last].Close()
	p.open = p.open[:last]
	if p.dir = root; last > 0 {
		p.dir = p.open[last-1]
	}
}

// openFolder opens the folder name of dir, which was seen to be info. The "/."
// makes the system refuse anything but a folder before it opens it: opening a
// pipe would wait for a writer.
func openFolder(dir *os.Root, name string, info fs.FileInfo) (*os.Root, error) {
	sub, err := dir.OpenRoot(name + "/.")
	if err != nil {
		return nil, err
	}
	now, err := sub.Lstat(".")
	if err == nil && !os.SameFile(info, now) {
		err = errChanged
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// makeFolder makes a folder, durably. Somebody else may make it meanwhile.
func makeFolder(dir *os.Root, name string) (fs.FileInfo, error) {
	err := dir.Mkdir(name, 0o777) // less what the process's umask takes away
	if err == nil {
		err = syncFolder(dir)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return dir.Lstat(name)
}

var errChanged = errors.New("it was changed while it was opened")

// split gives the components of a path from the workspace. It refuses what is
// no path at all.
func (w *Workspace) split(path string) ([]string, error) {
	switch {
	case path == "":
		return nil, invalidArg("/path", "a path may not be empty")
	case len(path) > maxPath:
		return nil, invalidArg("/path", "the path is too long")
	case strings.ContainsRune(path, 0):
		return nil, outside(path) // the system would see only what stands before it
	}
	if filepath.IsAbs(path) {
		rest, ok := w.inside(path)
		if !ok {
			return nil, outside(path)
		}
		path = rest
	}
	return components(path), nil
}

// inside gives the rest of an absolute path after the workspace's own. It goes
// by the letter; what the rest may contain is checked on the way.
func (w *Workspace) inside(path string) (string, bool) {
	for _, base := range []string{w.dir, w.alias} {
		base = strings.TrimSuffix(base, "/")
		if rest, ok := strings.CutPrefix(path, base); ok && (rest == "" || rest[0] == '/') {
			return rest, true
		}
	}
	return "", false
}

// components splits at slashes and leaves out "" and ".", which lead nowhere.
func components(path string) []string {
	var list []string
	for c := range strings.SplitSeq(path, "/") {
		if c != "" && c != "." {
			list = append(list, c)
		}
	}
	return list
}

// joinPath is the path of name in the folder that names lead to; "." for neither.
func joinPath(names []string, name string) string {
	path := strings.Join(names, "/")
	switch {
	case path == "" && name == "":
		return "."
	case path == "" || name == "":
		return path + name
	}
	return path + "/" + name
}

func outside(path string) error {
	return schema.Errorf(schema.OutsideWorkspace, "%s leads out of the workspace", quoted(path)).
		With("path", shorten(path, maxShown))
}

func protected(path, why string) error {
	return schema.Errorf(schema.ProtectedPath, "%s %s", quoted(path), why).
		With("path", shorten(path, maxShown))
}

func tooDeep() error { return invalidArg("/path", "the path goes down too many folders") }
