package executor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"steno/schema"
)

const (
	maxPath  = 4096 // bytes of a path that is given
	maxSteps = 128  // folders that a path may go down
	maxLinks = 40   // links on the way, as most systems have it
)

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

// find walks path and returns the place it leads to. If folders are missing and
// the wish is perhapsNew, the place's dir is the last one that is there.
func (w *Workspace) find(path string, want wish) (*place, error) {
	ahead, err := w.split(path)
	if err != nil {
		return nil, err
	}
	k := walk{w: w, given: path, want: want, ahead: ahead, at: &place{dir: w.root}}
	for err == nil && k.at.name == "" {
		err = k.step()
	}
	if err != nil {
		k.at.close()
		failed := schema.ReadFailed
		if want != existing {
			failed = schema.WriteFailed
		}
		return nil, fileError(failed, path, "cannot be reached", err)
	}
	return k.at, nil
}

// A walk is on its way along a path.
type walk struct {
	w     *Workspace
	given string // the path, for errors
	want  wish
	ahead []string // components that lie ahead
	names []string // of the folders in at.open
	links int      // followed so far
	at    *place   // it has a name when the walk is over
}

// step takes the next component.
func (k *walk) step() (err error) {
	if len(k.ahead) == 0 {
		k.at.name, k.at.path = ".", joinPath(k.names, "")
		k.at.info, err = k.at.dir.Lstat(".")
		return err
	}
	name := k.ahead[0]
	k.ahead = k.ahead[1:]
	if name == ".." {
		return k.up()
	}
	if sensitive(name) {
		return protected(k.given, "has a sensitive name")
	}
	info, err := k.at.dir.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) && k.want != existing {
		if refused := k.beyond(err); refused != nil {
			return refused
		}
		if len(k.ahead) == 0 || k.want == perhapsNew {
			k.arrive(append([]string{name}, k.ahead...), nil)
			return nil
		}
		info, err = makeFolder(k.at.dir, name)
	}
	switch {
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return k.follow(name)
	case k.w.isGuarded(info):
		return schema.AsError(protected(k.given, "leads into a protected folder")).Cause(errEvidence)
	case len(k.ahead) == 0:
		k.arrive([]string{name}, info)
		return nil
	case !info.IsDir():
		return syscall.ENOTDIR
	}
	return k.down(name, info)
}

// arrive ends the walk at rest, seen from the open folder.
func (k *walk) arrive(rest []string, info fs.FileInfo) {
	k.at.name = rest[len(rest)-1]
	k.at.path = joinPath(k.names, strings.Join(rest, "/"))
	k.at.info = info
}

// beyond checks the components after one that is not there, before anything is
// made for a path that will be refused.
func (k *walk) beyond(missing error) error {
	switch {
	case slices.Contains(k.ahead, ".."):
		return missing // there is no way up from what is not there
	case slices.ContainsFunc(k.ahead, sensitive):
		return protected(k.given, "has a sensitive name")
	case len(k.names)+len(k.ahead) >= maxSteps:
		return tooDeep()
	}
	return nil
}

// follow puts a link's target in its place.
func (k *walk) follow(name string) error {
	if k.links++; k.links > maxLinks {
		return syscall.ELOOP
	}
	target, err := k.at.dir.Readlink(name)
	if err != nil {
		return err
	}
	if filepath.IsAbs(target) {
		rest, ok := k.w.inside(target)
		if !ok {
			return outside(k.given)
		}
		for len(k.names) > 0 {
			if err := k.up(); err != nil {
				return err
			}
		}
		target = rest
	}
	k.ahead = append(components(target), k.ahead...)
	return nil
}

func (k *walk) down(name string, info fs.FileInfo) error {
	if len(k.names) >= maxSteps {
		return tooDeep()
	}
	sub, err := openFolder(k.at.dir, name, info)
	if err != nil {
		return err
	}
	k.at.open, k.at.dir = append(k.at.open, sub), sub
	k.names = append(k.names, name)
	return nil
}

// up goes back to the folder that the walk came from: the handle, whatever is
// called by its name now.
func (k *walk) up() error {
	last := len(k.names) - 1
	if last < 0 {
		return outside(k.given)
	}
	k.at.open[last].Close()
	k.at.open, k.names = k.at.open[:last], k.names[:last]
	if k.at.dir = k.w.root; last > 0 {
		k.at.dir = k.at.open[last-1]
	}
	return nil
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
