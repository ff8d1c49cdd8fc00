package executor

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gofrs/flock"

	"steno/executor/redact"
	"steno/schema"
)

// Commands says how commands are run: bash, and the tools of a file. The zero
// value runs them as the user of this process, which may write where that user
// may.
type Commands struct {
	// Writable are folders in which commands may write, besides the workspace and
	// a folder of their own for temporary files; nil lets them write anywhere. It
	// takes Landlock, and commands are refused where there is none.
	Writable []string
	// User is whom commands run as, by name or number; this process must be root.
	// It takes walls, see [Helper], and commands are refused where there are none.
	User string
	// Env are the names of variables that tools get besides the usual few.
	Env []string

	as *credential // of User
}

// A credential is a user as the kernel knows it.
type credential struct {
	Uid, Gid   uint32
	Groups     []uint32
	name, home string
}

// Builtin is [Builtin] with a bash that runs its commands in this way.
func (c Commands) Builtin() []Tool { return append(fileTools(), bashTool(c)) }

// Secrets are the values of Env, for [redact.Rules]; as of other variables those
// that could be words are left out.
func (c Commands) Secrets() (list []redact.Secret) {
	for _, name := range c.Env {
		if v := os.Getenv(name); redact.LooksSecret(v) {
			list = append(list, redact.Secret{Name: name, Value: v})
		}
	}
	return list
}

// Own gives a folder to the user that commands run as, if that is another one.
func (c Commands) Own(dir string) error {
	if c.as == nil {
		return nil
	}
	return os.Chown(dir, int(c.as.Uid), int(c.as.Gid))
}

// settle looks the user up, and whether the folders are there.
func (c *Commands) settle() error {
	bad := func(format string, args ...any) *schema.Error {
		return schema.Errorf(schema.InvalidConfig, "commands: "+format, args...)
	}
	if !hasWalls && (c.User != "" || c.Writable != nil) {
		return bad("user and writable are for Linux").With("next", "leave them out on this system")
	}
	for i, dir := range c.Writable {
		if !filepath.IsAbs(dir) {
			return bad("%s of writable is not absolute", quoted(dir))
		}
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return bad("%s of writable is not there: %s", quoted(dir), lastWords(err)).With("next", "make it, or leave it out").Cause(err)
		}
		c.Writable[i] = real
	}
	if c.User == "" {
		return nil
	}
	if os.Geteuid() != 0 {
		return bad("user %s: only root can run commands as another user", quoted(c.User)).
			With("next", "start this process as root, or leave user out")
	}
	u, err := user.Lookup(c.User)
	if err != nil {
		u, err = user.LookupId(c.User)
	}
	if err != nil {
		return bad("there is no user %s", quoted(c.User)).With("next", "make it, or name another one").Cause(err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		return bad("the groups of user %s cannot be found out", quoted(c.User)).Cause(err)
	}
	c.as = &credential{name: u.Username, home: u.HomeDir}
	ids := append([]string{u.Uid, u.Gid}, groups...)
	numbers := make([]uint32, len(ids))
	for i, id := range ids {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return bad("user %s has the id %s, which is no number", quoted(c.User), quoted(id))
		}
		numbers[i] = uint32(n)
	}
	c.as.Uid, c.as.Gid, c.as.Groups = numbers[0], numbers[1], numbers[2:]
	if c.as.Uid == 0 {
		return bad("user %s is root, whom this process is already", quoted(c.User)).With("next", "name a user who owns little")
	}
	return nil
}

const tempPrefix = "steno-tmp-"

// tempDir makes the folder for temporary files of one command. Its lock says
// that the command's process lives: what processes have left that were killed
// is removed by those that come.
func (c *Commands) tempDir() (dir string, held *flock.Flock, err error) {
	sweepTemp()
	for range 10 {
		if dir, err = os.MkdirTemp("", tempPrefix); err != nil {
			return "", nil, err
		}
		held = flock.New(dir, flock.SetFlag(os.O_RDONLY))
		ok, err := held.TryLock()
		if noFiles(err) { // others could sweep it, which only looks unlocked
			_, _ = held.Close(), os.Remove(dir)
			return "", nil, err
		}
		if _, gone := os.Lstat(dir); gone == nil && (ok || err != nil) { // where nothing can be locked nothing is swept
			break
		}
		// A sweep has taken it for one that was left.
		_ = held.Close()
		dir, held = "", nil
	}
	if held == nil {
		return "", nil, errors.New("somebody removes it again and again")
	}
	if c.as != nil {
		err = os.Chown(dir, int(c.as.Uid), int(c.as.Gid))
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // Landlock goes by where it leads
	}
	return dir, held, err
}

// sweepTemp removes, once, folders that nobody holds any more. Those of others
// cannot be, and stay.
var sweepTemp = sync.OnceFunc(func() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	for _, dir := range left {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
			continue
		}
		held := flock.New(dir, flock.SetFlag(os.O_RDONLY))
		if ok, err := held.TryLock(); ok && err == nil {
			_ = removeTemp(dir)
		}
		_ = held.Close()
	}
})

// removeTemp removes it with what is in it. A command may have made folders that
// their owner may not change.
func removeTemp(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// A folder is given to the function before it is read.
	_ = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			_ = root.Chmod(path, 0o700) // if it fails, what is below stays
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// environment is what a command gets because of the user it runs as.
func (c *Commands) environment(env []string, temp string) []string {
	env = append(env, "TMPDIR="+temp)
	if c.as == nil {
		return env
	}
	env = slices.DeleteFunc(env, func(entry string) bool {
		return strings.HasPrefix(entry, "HOME=") || strings.HasPrefix(entry, "USER=")
	})
	return append(env, "HOME="+c.as.home, "USER="+c.as.name)
}
