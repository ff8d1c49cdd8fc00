//go:build !linux

package main

import "golang.org/x/sys/unix"

// forgetTyped throws away what was typed and not yet read.
func forgetTyped(fd int) { _ = unix.IoctlSetPointerInt(fd, unix.TIOCFLUSH, 1) }
