package executor

// Walls is why there are none around commands here; nil if there are.
func Walls() error { return tried().why }

// ForgetHelper is as if Helper had not been called.
func ForgetHelper() { helperCalled.Store(false) }
