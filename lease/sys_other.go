//go:build !linux

package lease

import (
	"errors"
	"os"

	"github.com/gofrs/flock"
)

const openNonblock = 0

// maxLinks: a claim has two names for the moment in which it is published.
const maxLinks = 2

// lockOf locks by path, since there is no /proc, and makes sure that the path
// leads to the file that is open.
func lockOf(f *os.File) (*flock.Flock, error) {
	path := f.Name() // below the folder that is held open, by its name then
	there, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if here, err := f.Stat(); err != nil || !os.SameFile(here, there) {
		return nil, errForeign
	}
	return flock.New(path, flock.SetFlag(os.O_RDONLY)), nil
}

// publish gives a claim its name by a link, which fails if the slot is taken.
func publish(d *Dir, tmp, name string) error {
	if err := d.root.Link(tmp, name); err != nil {
		return err
	}
	return d.root.Remove(tmp)
}

// monotonic: without a boot id no clock is compared with another.
func monotonic() int64 { return 0 }

func exchange(*os.Root, string, string) error { return errors.ErrUnsupported }

func dropPages(*os.File) error { return nil }

func reserve(*os.File, int64, int64) error { return nil }

func dataSync(f *os.File) error { return f.Sync() }

func supported(*os.File) error { return nil }
