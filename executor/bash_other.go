//go:build unix && !linux

package executor

import "syscall"

// setDeathSignal does nothing: this system has no such signal, and a command
// outlives a process that is killed.
func setDeathSignal(*syscall.SysProcAttr) {}
