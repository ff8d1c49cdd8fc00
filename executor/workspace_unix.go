//go:build unix

package executor

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// openFlags keep an open from waiting for the other end of a pipe or a line,
// should one have taken the file's place since it was looked at.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOFOLLOW

// inode tells a file from all others of this machine, whatever it is called.
type inode struct{ device, number uint64 }

func inodeOf(info fs.FileInfo) inode {
	st := info.Sys().(*syscall.Stat_t)
	return inode{uint64(st.Dev), uint64(st.Ino)}
}

// linkCount is how many names (hard links) a file has.
func linkCount(info fs.FileInfo) uint64 {
	return uint64(info.Sys().(*syscall.Stat_t).Nlink)
}

// keepOwner gives f the owner of the file that it will replace, as far as this
// process may. A file that ends up as ours is still the right file.
func keepOwner(f *os.File, old fs.FileInfo) {
	st := old.Sys().(*syscall.Stat_t)
	now, err := f.Stat()
	if err != nil {
		return
	}
	if mine := now.Sys().(*syscall.Stat_t); mine.Uid != st.Uid || mine.Gid != st.Gid {
		_ = f.Chown(int(st.Uid), int(st.Gid))
	}
}

// syncFolder makes the names in dir durable.
func syncFolder(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return syncNames(f)
}

// syncNames makes the names in a folder that is open durable. Some file systems
// cannot, and say so with EINVAL; they have nothing to make durable.
func syncNames(f *os.File) error {
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
