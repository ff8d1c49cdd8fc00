package executor

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsyscall "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// lockOut takes from this thread, and what it starts, the disks under their
// names in /dev, which root could read and write past every folder, and the
// abstract sockets and processes outside. Mounts cannot be changed any more
// either. It does as much of that as the kernel's Landlock can, nothing where
// there is none; no_new_privs must be set.
//
// Where bound says so, nothing can be written but below the folders of writable,
// and to devices that are no disks.
//
// Landlock only allows, so all that is to stay is named.
func lockOut(bound bool, writable []string) error {
	top, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	rules := []landlock.Rule{
		landlock.PathAccess(llsyscall.AccessFSReadDir, "/"), // of all folders, also in /dev
	}
	var dirs, files []string
	for _, e := range top {
		path := "/" + e.Name()
		info, err := os.Stat(path) // a link counts as what it leads to
		switch {
		case err != nil, path == "/dev":
		case info.IsDir():
			dirs = append(dirs, path)
		default:
			files = append(files, path)
		}
	}
	err = filepath.WalkDir("/dev", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // gone, or not ours to look at: then it stays closed
		case path == "/dev/shm", path == "/dev/pts", path == "/dev/mqueue", path == "/dev/hugepages":
			dirs = append(dirs, path)
			return fs.SkipDir
		case e.Type()&fs.ModeCharDevice != 0, e.Type()&fs.ModeSocket != 0:
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if bound {
		rules = append(rules,
			landlock.RODirs(dirs...).IgnoreIfMissing(),
			landlock.ROFiles(files...).IgnoreIfMissing())
		dirs = append(writable, "/dev/pts")
		files = slices.DeleteFunc(files, func(path string) bool { return !strings.HasPrefix(path, "/dev/") })
	}
	rules = append(rules,
		landlock.RWDirs(dirs...).WithRefer().WithIoctlDev().IgnoreIfMissing(),
		landlock.RWFiles(files...).WithIoctlDev().IgnoreIfMissing(),
		landlock.PathAccess(llsyscall.AccessFSExecute, files...).IgnoreIfMissing())
	// Nothing about networks: what is not handled is not refused.
	cfg := landlock.Config{HandledAccessFS: landlock.V5.HandledAccessFS, Scoped: landlock.V6.Scoped}
	fd, flags, err := cfg.BestEffort().NewRulesetFD(rules...)
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	return llsyscall.LandlockRestrictSelf(fd, flags)
}
