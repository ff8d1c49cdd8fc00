package executor

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"steno/schema"

	"github.com/go-json-experiment/json"
	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Walls around a command: a process of this program, the helper, is process 1
// of a PID namespace and alone in a mount namespace. There it covers the
// protected folders and lays a /proc of its own, gives up what root could tear
// that down with, and starts the command. So the command sees no process of
// outside and none of the folders, and ends with the helper, wherever its
// children went.
//
// What a machine does not let a process do is found out once, by a trial. Where
// there are no walls a command has a process group of its own and nothing else.

// orders are what a helper is to do.
type orders struct {
	Path, Dir string // the command; nothing is started if there is no path
	Argv, Env []string
	Hide      []hidden
	Processes int // the most at a time, 0 if that cannot be bounded
	Landlock  bool
	Writable  []string // and nothing else, where Bound says so
	Bound     bool
	As        *credential // whom to run the command as, if not as ourselves
	Temp      string
	Groups    groups // control groups that the command is put into
	Bounds    bounds
}

// A hidden folder is covered, if it is still the one that was meant.
type hidden struct {
	Path        string
	Dev, Number uint64
}

// A report is what a helper has to say in the end.
type report struct {
	Wall   string // what could not be put up; the command was not started then
	Closed string // a folder in which the user cannot work; nor then
	Errno  int    // why the command was not started, or the wall not put up
	Code   int
	Signal int
}

// A wall is what is around one command.
type wall struct {
	said   *os.File
	read   *report
	groups groups
}

// down takes away what is left of it.
func (w *wall) down() {
	if w != nil {
		_ = w.groups.remove() // what stays is for a later process to sweep
	}
}

// walls are what this machine lets us put up, as it was found out.
type walls struct {
	why       error   // there are none
	flags     uintptr // of clone(2)
	processes int
	landlock  int // its version, 0 if there is none
}

var known struct {
	sync.Mutex
	walls *walls // nil before a trial has told
}

// tried finds out once what this machine lets us put up. An error says that it
// could not be found out now: for want of memory, say, which must not take the
// walls away for as long as this process lives.
func tried() (walls, error) {
	known.Lock()
	defer known.Unlock()
	if known.walls != nil {
		return *known.walls, nil
	}
	most := 0
	if boundsProcesses() {
		// Compilers and tests run some threads for each processor.
		most = max(1024, 256*runtime.NumCPU())
	}
	version, err := llsyscall.LandlockGetABIVersion()
	if err != nil {
		version = 0
	}
	var w walls
	for _, lock := range slices.Compact([]int{version, 0}) {
		for _, more := range []uintptr{0, unix.CLONE_NEWUSER} {
			w = walls{flags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | more, processes: most, landlock: lock}
			w.why = w.trial(nil)
			if w.why == nil {
				known.walls = &w
				return w, nil
			}
			if !refused(w.why) {
				return walls{}, w.why
			}
		}
	}
	known.walls = &w
	return w, nil
}

// refused reports whether a trial says that this machine does not let us. All else
// may pass: a folder that is not there, a helper that was killed, want of memory.
func refused(err error) bool {
	for _, never := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP} {
		if errors.Is(err, never) {
			return true
		}
	}
	var ended *exec.ExitError
	if errors.As(err, &ended) { // a filter of system calls may end who asks
		status, is := ended.Sys().(syscall.WaitStatus)
		return is && status.Signaled() && status.Signal() == unix.SIGSYS
	}
	if errors.Is(err, unix.ENOSPC) { // so many namespaces are in use, or none are to be had
		for _, kind := range []string{"pid", "mnt", "user"} {
			if text, err := os.ReadFile("/proc/sys/user/max_" + kind + "_namespaces"); err == nil && strings.TrimSpace(string(text)) == "0" {
				return true
			}
		}
	}
	return false
}

// trial puts up the walls around nothing.
func (w walls) trial(in groups) error {
	place, err := hide(os.TempDir())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, helperPath)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	p := &pipes{}
	defer p.close()
	runtime.LockOSThread() // see runGroup
	defer runtime.UnlockOSThread()
	wall, err := w.around(cmd, orders{Hide: []hidden{place}, Processes: w.processes, Landlock: w.landlock > 0, Groups: in}, p)
	if err != nil {
		return err
	}
	err = cmd.Run()
	p.started()
	if err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	if wall.report() == nil {
		return errors.New("the helper has said nothing")
	}
	return wall.failed()
}

// helperCalled says that this program would become a helper.
var helperCalled atomic.Bool

// around has cmd run within walls. Kind bash_disabled says that there could be
// some, and are not.
func around(cmd *exec.Cmd, c command, call *Invocation, p *pipes, temp string) (*wall, error) {
	if !helperCalled.Load() {
		return nil, schema.Errorf(schema.BashDisabled, "this program cannot confine commands, so it runs none").
			With("next", "its main must call executor.Helper first of all")
	}
	w, err := tried()
	if err != nil {
		return nil, schema.Errorf(schema.BashDisabled, "whether commands can be confined cannot be found out now").
			With("next", "try again later: the machine is short of something").Cause(err)
	}
	call.tellWalls(w, c.how)
	if w.why != nil || call.bare {
		if c.how.as != nil || c.how.Writable != nil {
			return nil, notSo(w.why)
		}
		// The kernel kills the command when this process dies, even by SIGKILL.
		// That reaches the command itself and not what it has started.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		return nil, nil
	}
	if err := w.able(c.how); err != nil {
		return nil, notSo(err)
	}
	o := orders{Path: cmd.Path, Argv: cmd.Args, Dir: cmd.Dir, Env: cmd.Env, Processes: w.processes, Landlock: w.landlock > 0, Bounds: c.bounds,
		As: c.how.as, Temp: temp}
	if c.how.Writable != nil {
		o.Bound, o.Writable = true, append([]string{cmd.Dir, temp}, c.how.Writable...)
	}
	for _, g := range call.Workspace.guarded {
		at := inodeOf(g.info)
		o.Hide = append(o.Hide, hidden{g.root.Name(), at.device, at.number})
	}
	if o.Groups, err = w.groups(c.bounds); err != nil {
		return nil, schema.Errorf(schema.BashDisabled, "the limits of the command cannot be set").
			With("next", "try again later: the machine is short of something").Cause(err)
	}
	if c.bounds.Memory > 0 && groupParents().memory != (group{}) {
		o.Bounds.Memory = 0 // all have it together
	}
	if n := int(c.bounds.Processes); n > 0 && o.Processes > 0 {
		o.Processes = min(o.Processes, max(n, leastProcesses))
	}
	made, err := w.around(cmd, o, p)
	if err != nil {
		_ = o.Groups.remove()
		return nil, err
	}
	made.groups = o.Groups
	return made, nil
}

// notSo is kind bash_disabled: commands are not to run otherwise than as Commands
// says.
func notSo(why error) error {
	return schema.Errorf(schema.BashDisabled, "commands are to be confined as the tools file says, and this machine cannot do that: %v", why).
		With("next", "run this on a machine that can, or take user and writable out of commands")
}

// leastProcesses is the lowest bound that a PID namespace takes.
const leastProcesses = 301

// able says what of how these walls cannot do.
func (w walls) able(how Commands) error {
	switch {
	case how.Writable != nil && w.landlock < 3: // 3 knows of truncating
		return errors.New("writable takes Landlock 3, of Linux 6.2")
	case how.as != nil && w.flags&unix.CLONE_NEWUSER != 0:
		return errors.New("user takes namespaces of root, and this one may make only its own")
	}
	return nil
}

const (
	helperName = "steno-helper"
	helperPath = "/proc/self/exe"
)

// around makes cmd the helper that carries out o.
func (w walls) around(cmd *exec.Cmd, o orders, p *pipes) (*wall, error) {
	if cmd.Err != nil { // there is no such program
		return nil, cmd.Err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(helperName, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	told := os.NewFile(uintptr(fd), helperName)
	p.its = append(p.its, told)
	if _, err := told.WriteAt(text, 0); err != nil {
		return nil, err
	}
	said, say, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.ours, p.its = append(p.ours, said), append(p.its, say)
	cmd.Path, cmd.Args, cmd.Dir, cmd.Env = helperPath, []string{helperName}, "/", []string{"GOMAXPROCS=2"}
	cmd.ExtraFiles = []*os.File{told, say}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: w.flags}
	if w.flags&unix.CLONE_NEWUSER != 0 {
		uid, gid := os.Geteuid(), os.Getegid()
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
	}
	return &wall{said: said}, nil
}

// report is what the helper said before it ended; nil if it said nothing.
func (w *wall) report() *report {
	if w.read == nil {
		text, err := io.ReadAll(w.said)
		var r report
		if err != nil || json.Unmarshal(text, &r) != nil {
			return nil
		}
		w.read = &r
	}
	return w.read
}

// failed is why a helper that has ended did not start its command. It is called
// once the helper's end of the pipe is closed here.
func (w *wall) failed() error {
	r := w.report()
	switch {
	case r == nil:
		return nil
	case r.Closed != "":
		return schema.Errorf(schema.BashDisabled, "the user of commands cannot work in %s", quoted(r.Closed)).
			With("next", "give the folder to that user (chown -R), and let the user pass through the folders above it")
	case r.Wall != "":
		return schema.Errorf(schema.BashDisabled, "the walls around commands cannot be put up: %s", r.Wall).
			With("next", "look whether the store is still where it was when its executor began").Cause(syscall.Errno(r.Errno))
	case r.Errno != 0:
		return syscall.Errno(r.Errno)
	}
	return nil
}

// ended tells how the command ended, if its helper has seen that.
func (w *wall) ended(res *outcome) bool {
	r := w.report()
	if r == nil {
		return false
	}
	res.reached = w.groups.reached()
	if res.code = r.Code; r.Signal != 0 {
		res.code, res.signal = 128+r.Signal, syscall.Signal(r.Signal).String()
	}
	return true
}

// hide is what tells a helper of a folder.
func hide(dir string) (hidden, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return hidden{}, err
	}
	at := inodeOf(info)
	return hidden{dir, at.device, at.number}, nil
}

// boundsProcesses reports whether kernel.pid_max is of a PID namespace: from
// Linux 6.14 on. Before, it is the whole machine's, and nothing for us to touch.
func boundsProcesses() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	major, minor := version(unix.ByteSliceToString(u.Release[:]))
	return major > 6 || major == 6 && minor >= 14
}

func version(release string) (major, minor int) {
	for i, part := range []*int{&major, &minor} {
		for len(release) > 0 && '0' <= release[0] && release[0] <= '9' {
			*part = *part*10 + int(release[0]-'0')
			release = release[1:]
		}
		if i == 0 && len(release) > 0 {
			release = release[1:] // the dot
		}
	}
	return major, minor
}

// tellWalls says once in the log of an executor what is around commands.
func (call *Invocation) tellWalls(w walls, how Commands) {
	if call.of == nil {
		return
	}
	x := call.of.x
	x.wallsTold.Do(func() {
		level := slog.LevelInfo
		if w.why != nil {
			level = slog.LevelWarn
		}
		x.log.Log(x.ctx, level, "commands are confined", "by", confinement(how, bounds{}))
	})
}
