package lease

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	exclusive = unix.LOCK_EX
	shared    = unix.LOCK_SH
)

// tryLock takes the flock(2) of a file that is open, without waiting: false if
// somebody else's is in the way. It belongs to what was opened, not to a path,
// and goes with the last descriptor of that, so it is given back by closing the
// file.
func tryLock(f *os.File, how int) (ok bool, err error) {
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err {
		case nil:
			return true, nil
		case unix.EWOULDBLOCK:
			return false, nil
		case unix.EINTR:
		default:
			return false, err
		}
	}
}

// unlock gives a lock back whose file stays open.
func unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
