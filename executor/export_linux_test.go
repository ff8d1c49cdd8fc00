package executor

import "errors"

// Walls is why there are none around commands here; nil if there are.
func Walls() error {
	w, err := tried()
	return errors.Join(w.why, err)
}

// ForgetHelper is as if Helper had not been called.
func ForgetHelper() { helperCalled.Store(false) }
