package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Control groups bound what the processes of a command have together. They are
// used where this process may make some, without moving itself: below its own
// group or, in version 2, which wants no processes beside groups, next to it.

// A group is a control group of one command, and where its helper goes back to.
type group struct {
	Dir, Home string
	held      *os.File // its lock says that the process which made it lives
}

type groups []group

// parents are groups in which others can be made, zero if there is none.
type parents struct{ memory, processes group }

// groupParents finds them once, by a trial.
var groupParents = sync.OnceValue(func() (p parents) {
	w, err := tried()
	if err != nil || w.why != nil {
		return p
	}
	for _, want := range []struct {
		at *group
		of bounds
	}{{&p.memory, bounds{Memory: 64 << 20}}, {&p.processes, bounds{Processes: 64}}} {
		text, _ := os.ReadFile("/proc/self/cgroup") // without it there is none
		for _, in := range groupFolders(groupMount, string(text), want.of) {
			if g, err := newGroup(in, want.of); err == nil {
				if err = w.trial(groups{g}); errors.Join(err, groups{g}.remove()) == nil {
					*want.at = in
					sweepGroups(in.Dir)
					break
				}
			}
		}
	}
	return p
})

const (
	groupMount  = "/sys/fs/cgroup"
	groupPrefix = "steno-"
)

// groupFolders are the folders below mount where a group for b might be made by a
// process whose /proc/self/cgroup is text.
func groupFolders(mount, text string, b bounds) []group {
	controller := "pids"
	if b.Memory > 0 {
		controller = "memory"
	}
	_, err := os.Stat(filepath.Join(mount, "cgroup.controllers"))
	unified := err == nil
	for line := range strings.Lines(text) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) != 3 || slices.Contains(strings.Split(part[2], "/"), ".."): // outside of what is mounted here
		case unified && part[0] == "0":
			own := filepath.Join(mount, part[2])
			if own == mount {
				return []group{{Dir: own, Home: own}}
			}
			return []group{{Dir: own, Home: own}, {Dir: filepath.Dir(own), Home: own}}
		case !unified && part[1] == controller:
			own := filepath.Join(mount, controller)
			below := filepath.Join(own, part[2])
			return []group{{Dir: below, Home: below}, {Dir: own, Home: own}} // a container may see its own as the root
		}
	}
	return nil
}

// sweepGroups removes groups below a folder that nobody holds any more: those of
// executors that were killed. One in which something still runs stays.
func sweepGroups(in string) {
	left, _ := os.ReadDir(in)
	for _, e := range left {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), groupPrefix) {
			continue
		}
		dir := filepath.Join(in, e.Name())
		if f, err := os.Open(dir); err == nil {
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				_ = os.Remove(dir)
			}
			_ = f.Close()
		}
	}
}

// newGroup makes a group with bounds.
func newGroup(in group, b bounds) (g group, err error) {
	g.Home = in.Home
	for range 3 {
		if g.Dir, err = os.MkdirTemp(in.Dir, groupPrefix); err != nil {
			return group{}, err
		}
		if g.held, err = os.Open(g.Dir); err == nil {
			err = unix.Flock(int(g.held.Fd()), unix.LOCK_EX)
		}
		if err == nil {
			err = g.limit(b)
		}
		if err == nil {
			return g, nil
		}
		_, gone := os.Lstat(g.Dir)
		err = errors.Join(err, groups{g}.remove())
		if !errors.Is(gone, os.ErrNotExist) { // a sweep had taken it for one that was left
			break
		}
	}
	return group{}, err
}

// limit sets the bounds of a group.
func (g group) limit(b bounds) (err error) {
	if b.Memory > 0 {
		bound := strconv.FormatUint(b.Memory, 10)
		if err = setGroup(g.Dir, bound, "memory.max", "memory.limit_in_bytes"); err == nil {
			// Without this what is over the bound goes to the swap; not all have it.
			_ = setGroup(g.Dir, "0", "memory.swap.max")
			_ = setGroup(g.Dir, bound, "memory.memsw.limit_in_bytes")
		}
	}
	if err == nil && b.Processes > 0 {
		// The helper is in it until it has started the command.
		err = setGroup(g.Dir, strconv.FormatUint(b.Processes+helperThreads, 10), "pids.max")
	}
	return err
}

const helperThreads = 32

// setGroup writes to the first of the files that is there.
func setGroup(dir, value string, files ...string) error {
	err := os.ErrNotExist
	for _, name := range files {
		var f *os.File
		if f, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(value)
			return errors.Join(err, f.Close())
		}
	}
	return err
}

// groups makes those for a command.
func (w walls) groups(b bounds) (made groups, err error) {
	if b.Memory == 0 && b.Processes == 0 {
		return nil, nil
	}
	p := groupParents()
	type want struct {
		in group
		of bounds
	}
	list := []want{{p.memory, bounds{Memory: b.Memory}}, {p.processes, bounds{Processes: b.Processes}}}
	if p.memory == p.processes { // version 2: a process is in one group only
		list = []want{{p.memory, bounds{Memory: b.Memory, Processes: b.Processes}}}
	}
	for _, l := range list {
		if l.in == (group{}) || l.of == (bounds{}) {
			continue
		}
		g, err := newGroup(l.in, l.of)
		if err != nil {
			return nil, errors.Join(err, made.remove())
		}
		made = append(made, g)
	}
	return made, nil
}

// remove removes the groups. The last process of one that has ended may still be
// on its way out.
func (g groups) remove() (err error) {
	for _, dir := range g {
		for end := time.Now().Add(bashGrace); ; time.Sleep(time.Millisecond) {
			one := os.Remove(dir.Dir)
			if !errors.Is(one, unix.EBUSY) || time.Now().After(end) {
				err = errors.Join(err, one)
				break
			}
		}
		_ = dir.held.Close() // also of nil
	}
	return err
}

// reached says which bounds the command came up against.
func (g groups) reached() string {
	var list []string
	for _, dir := range g {
		for _, sign := range []struct{ file, key, what string }{
			{"memory.events", "oom_kill", "memory"}, {"memory.oom_control", "oom_kill", "memory"}, {"pids.events", "max", "processes"},
		} {
			text, _ := os.ReadFile(filepath.Join(dir.Dir, sign.file))
			for line := range strings.Lines(string(text)) {
				if n, is := strings.CutPrefix(strings.TrimSpace(line), sign.key+" "); is && n != "0" {
					list = append(list, sign.what)
				}
			}
		}
	}
	return strings.Join(list, " and ")
}

// join puts this process, and what it starts, into the control groups of its
// command. What it gives takes it out again, which works also behind the walls.
func (o *orders) join() (out []func() error, err error) {
	for _, g := range o.Groups {
		home, err := os.OpenFile(filepath.Join(g.Home, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("a control group cannot be opened: %w", err)
		}
		most, _ := os.OpenFile(filepath.Join(g.Dir, "pids.max"), os.O_WRONLY, 0) // not in one for memory
		if err := os.WriteFile(filepath.Join(g.Dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("a control group cannot be joined: %w", err)
		}
		out = append(out, func() error {
			_, err := home.WriteString("0")
			if err == nil && most != nil && o.Bounds.Processes > 0 {
				_, err = most.WriteString(strconv.FormatUint(o.Bounds.Processes, 10))
			}
			return err
		})
	}
	if len(out) == 0 {
		return nil, nil
	}
	// A command of root could leave them otherwise.
	return out, unix.Mount("tmpfs", groupMount, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k")
}
