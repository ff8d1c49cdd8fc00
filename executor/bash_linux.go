package executor

import "syscall"

// setDeathSignal has the kernel kill the command when this process dies, even
// by SIGKILL. It reaches the command itself and not what that has started.
func setDeathSignal(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
