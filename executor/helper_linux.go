package executor

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
)

// Helper must be the first thing in main of a program that runs commands: bash,
// or the tools of [LoadTools]. Such a program starts itself once more for each
// command, to confine it, and Helper is where that process goes; it does not
// return there. In every other process it returns at once. In a program that
// does not call it every command is refused with kind bash_disabled.
func Helper() {
	helperCalled.Store(true)
	if len(os.Args) != 1 || os.Args[0] != helperName || os.Getpid() != 1 {
		return
	}
	// What is given up is given up by a thread, and what that thread starts.
	runtime.LockOSThread()
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	var r report
	var o orders
	text, err := os.ReadFile("/proc/self/fd/3")
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	var out []func() error
	if err == nil {
		out, err = o.putUp()
	}
	if err != nil {
		r.Wall = err.Error()
		var no syscall.Errno
		if errors.As(err, &no) {
			r.Errno = int(no)
		}
	} else if r.Closed = o.closed(); r.Closed == "" && o.Path != "" {
		r = o.start(out)
	}
	if text, err = json.Marshal(r); err == nil {
		_, _ = unix.Write(4, text) // if nobody listens there is nobody to tell
	}
	syscall.Exit(0) // and the kernel ends all that is left in here
}

// closed is the folder in which the command's user cannot work, "" if there is
// none. From here on this thread touches files as that user.
func (o *orders) closed() string {
	if o.As == nil {
		return ""
	}
	groups := append([]uint32{o.As.Gid}, o.As.Groups...)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&groups[0])), 0); errno != 0 {
		return o.Dir
	}
	_, err := unix.SetfsgidRetGid(int(o.As.Gid))
	if err == nil {
		_, err = unix.SetfsuidRetUid(int(o.As.Uid))
	}
	for _, dir := range []string{o.Dir, o.Temp} {
		if err != nil || unix.Faccessat2(unix.AT_FDCWD, dir, unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
			return dir
		}
	}
	return ""
}

// start runs the command to its end. out is what leaves the control groups, in
// which only the command is to be.
func (o *orders) start(out []func() error) report {
	// A signal that is handled is not handed on as ignored, and does not end us.
	// The first process of a namespace gets no other from inside.
	signal.Notify(make(chan os.Signal, 1))
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	attr := &syscall.SysProcAttr{Setpgid: true}
	if o.As != nil {
		attr.Credential = &syscall.Credential{Uid: o.As.Uid, Gid: o.As.Gid, Groups: o.As.Groups}
	}
	pid, err := syscall.ForkExec(o.Path, o.Argv, &syscall.ProcAttr{Dir: o.Dir, Env: o.Env, Files: []uintptr{0, 1, 2}, Sys: attr})
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.EINVAL
		}
		return report{Errno: int(errno)}
	}
	go func() { // who ends the command from outside knows this process only
		for range terms {
			_ = syscall.Kill(-pid, syscall.SIGTERM)
		}
	}()
	for _, leave := range out {
		if err := leave(); err != nil {
			return report{Wall: "a control group cannot be left: " + err.Error()}
		}
	}
	if n := o.Bounds.Memory; n > 0 {
		// Not before the start, which would bound this process, and it needs more. This
		// thread may not do it to another user's process: it has given that up.
		done := make(chan error)
		go func() { done <- unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: n, Max: n}, nil) }()
		if err := <-done; err != nil && err != unix.ESRCH {
			return report{Wall: "memory cannot be bounded: " + err.Error()}
		}
	}
	// Whoever loses its parent becomes our child.
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return report{Code: 255} // it cannot be: the command is our child
		case ended == pid && status.Signaled():
			return report{Signal: int(status.Signal())}
		case ended == pid && status.Exited():
			return report{Code: status.ExitStatus()}
		}
	}
}

// putUp puts up the walls around this process, and gives what takes it out of the
// control groups of its command.
func (o *orders) putUp() (out []func() error, err error) {
	wrong := func(what string, err error) ([]func() error, error) { return nil, fmt.Errorf("%s: %w", what, err) }
	// Nothing of what is mounted here shows outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return wrong("mounts cannot be made private", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return wrong("/proc cannot be mounted", err)
	}
	if out, err = o.join(); err != nil {
		return nil, err
	}
	for _, h := range o.Hide {
		if err := h.cover(); err != nil {
			return wrong("a protected folder cannot be covered", err)
		}
	}
	if o.Processes > 0 {
		if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(o.Processes)), 0); err != nil {
			return wrong("the number of processes cannot be bounded", err)
		}
	}
	// Short of memory, the kernel takes the command and not its executor.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	for _, path := range settings {
		if err := shut(path); err != nil {
			return wrong("settings of the kernel cannot be shut", err)
		}
	}
	if err := o.bound(); err != nil {
		return wrong("a process cannot be bounded", err)
	}
	if err := giveUp(); err != nil {
		return wrong("rights cannot be given up", err)
	}
	if !o.Landlock {
		return out, nil
	}
	if err := lockOut(o.Bound, o.Writable); err != nil {
		return wrong("Landlock refuses its rules", err)
	}
	return out, nil
}

// settings are where root could change how the kernel treats everybody: have it
// start a program outside when one crashes here, say.
var settings = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/sys"}

// shut lays what is at path over itself, read-only. Who has opened something
// there before can still write it.
func shut(path string) error {
	err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
	if err == unix.ENOENT { // not every kernel has all
		return nil
	}
	if err == nil {
		err = unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	}
	if err == unix.ENOSYS { // before Linux 5.12: without what is mounted below it
		err = unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	return err
}

// bound sets the bounds of this process, which all that it starts have too.
func (o *orders) bound() error {
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	for what, n := range map[int]uint64{unix.RLIMIT_CPU: o.Bounds.CPU, unix.RLIMIT_FSIZE: o.Bounds.FileSize, unix.RLIMIT_NOFILE: o.Bounds.Files} {
		if n == 0 {
			continue
		}
		var has syscall.Rlimit
		if err := syscall.Getrlimit(what, &has); err != nil {
			return err
		}
		most := min(n, has.Max)
		bound := syscall.Rlimit{Cur: most, Max: most}
		if what == unix.RLIMIT_CPU {
			bound.Max = min(n+1, has.Max) // the signal that says why comes first
		}
		if err := syscall.Setrlimit(what, &bound); err != nil {
			return err
		}
	}
	return nil
}

// cover lays an empty folder over h.
func (h hidden) cover() error {
	fd, err := unix.Open(h.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != h.Dev || st.Ino != h.Number {
		return fmt.Errorf("another folder has taken its place")
	}
	return unix.Mount("tmpfs", "/proc/self/fd/"+strconv.Itoa(fd), "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k")
}

// kept are the capabilities that root keeps in a command: what it takes to work
// with files of other owners. All others could undo the walls or reach around
// them.
var kept = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_NET_BIND_SERVICE,
}

// giveUp gives up what this thread can do beyond that, for all that it starts.
func giveUp() error {
	var keep uint64
	for _, c := range kept {
		keep |= 1 << c
	}
	for c := uintptr(0); c <= 63; c++ {
		if keep>>c&1 == 1 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			break // there are no more
		} else if err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	// No program gives what is not here: neither set-uid nor by its file.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	// Under no_new_privs a program has no more than its starter had.
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	if err := unix.Capget(&head, &has[0]); err != nil {
		return err
	}
	for i := range has {
		has[i].Permitted &= uint32(keep >> (32 * i))
		has[i].Effective, has[i].Inheritable = has[i].Permitted, 0
	}
	if err := unix.Capset(&head, &has[0]); err != nil {
		return err
	}
	// Other threads of this process still have all: nobody may reach into it.
	return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
