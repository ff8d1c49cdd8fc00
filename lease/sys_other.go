//go:build !linux

package lease

import (
	"errors"
	"os"
)

const openNonblock = 0

// maxLinks: a claim has two names for the moment in which it is published.
const maxLinks = 2

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

// fileUser is whom the files belong to that this process makes.
func fileUser() uint32 { return uint32(os.Geteuid()) }
