package mcp

import "syscall"

// endWithUs has the kernel end a program when this process is killed.
func endWithUs(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }
