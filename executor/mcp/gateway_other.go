//go:build !linux

package mcp

import "syscall"

// endWithUs does nothing where the kernel offers nothing: a server ends when its
// standard input does.
func endWithUs(*syscall.SysProcAttr) {}
