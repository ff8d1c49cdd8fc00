package executor

import "errors"

// Walls is why there are none around commands here; nil if there are.
func Walls() error {
	w, err := tried()
	return errors.Join(w.why, err)
}

// ForgetHelper is as if Helper had not been called.
func ForgetHelper() { helperCalled.Store(false) }

// GroupParents are the folders in which control groups of commands are made.
func GroupParents() []string {
	p := groupParents()
	return []string{p.memory.Dir, p.processes.Dir}
}

// WithoutGroups is as on a machine where no control groups can be made, until
// back is called. No command may run meanwhile but those of the test.
func WithoutGroups() (back func()) {
	found := groupParents
	groupParents = func() parents { return parents{} }
	return func() { groupParents = found }
}

// ForgetWalls is as if no command had run yet, until back is called. No other
// may run meanwhile.
func ForgetWalls() (back func()) {
	known.Lock()
	defer known.Unlock()
	was := known.walls
	known.walls = nil
	return func() {
		known.Lock()
		defer known.Unlock()
		known.walls = was
	}
}

// GroupFolders are those of groupFolders, each with where its helper goes back to.
func GroupFolders(mount, text string, memory bool) (list [][2]string) {
	b := bounds{Processes: 1}
	if memory {
		b = bounds{Memory: 1}
	}
	for _, g := range groupFolders(mount, text, b) {
		list = append(list, [2]string{g.Dir, g.Home})
	}
	return list
}

// LimitGroup sets the bounds of a group, and Reached says which were.
func LimitGroup(dir string, memory, processes uint64) error {
	return group{Dir: dir}.limit(bounds{Memory: memory, Processes: processes})
}
func Reached(dir string) string { return groups{{Dir: dir}}.reached() }

// NewGroup makes a control group, in which the walls around nothing are tried.
// remove removes it, and left leaves it as the end of this process would.
func NewGroup(in string, memory uint64) (dir string, try, remove func() error, left func(), err error) {
	g, err := newGroup(group{Dir: in, Home: in}, bounds{Memory: memory})
	if err != nil {
		return "", nil, nil, nil, err
	}
	w, err := tried()
	return g.Dir, func() error { return w.trial(groups{g}) }, groups{g}.remove, func() { _ = g.held.Close() }, errors.Join(w.why, err)
}

func SweepGroups(in string) { sweepGroups(in) }
