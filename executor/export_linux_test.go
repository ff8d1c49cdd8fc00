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
