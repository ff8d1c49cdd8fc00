package lease

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"steno/schema"
)

const openNonblock = unix.O_NONBLOCK

// maxLinks: a claim is published by a rename and never has a second name.
const maxLinks = 1

// publish gives a claim its name, in one step that fails if the slot is taken.
func publish(d *Dir, tmp, name string) error {
	fd := d.fd()
	err := unix.Renameat2(fd, tmp, fd, name, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) {
		return schema.Errorf(schema.LeaseStoreUnsupported, "this file system cannot rename without replacing").With("session", d.name).Cause(err)
	}
	return err
}

// monotonic is the clock of beats. It does not count the time that the machine
// sleeps, as CLOCK_BOOTTIME would.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return -1 // no beat is by this clock
	}
	return t.Nano()
}

// exchange swaps the names of two files in a folder in one step.
func exchange(dir *os.Root, a, b string) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Renameat2(int(d.Fd()), a, int(d.Fd()), b, unix.RENAME_EXCHANGE)
}

func dropPages(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

func dataSync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// reserve sets room aside behind what a file holds; its size stays.
func reserve(f *os.File, from, room int64) error {
	if room <= 0 {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, from, room)
}

// remote file systems: the proof needs one kernel's name table and page cache
// (magic numbers from statfs(2), linux/magic.h and, where they are in neither,
// stat.c of GNU coreutils).
var remote = map[int64]string{
	0x6969: "NFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB2",
	0x01021997: "9p", 0x65735546: "FUSE", 0x00C36400: "Ceph", 0x5346414F: "AFS", 0x6B414653: "AFS", 0x19830326: "FhGFS",
	0x0BD00BD0: "Lustre", 0x47504653: "GPFS", 0x01161970: "GFS2", 0x7461636F: "OCFS2", 0x73757245: "Coda",
	0x20030528: "OrangeFS", 0x786F4256: "vboxsf", 0xBACBACBC: "vmhgfs",
}

func supported(dir *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return schema.Errorf(schema.LeaseStoreUnsupported, "the file system cannot be identified").Cause(err)
	}
	if name, bad := remote[int64(st.Type)&0xFFFFFFFF]; bad {
		return schema.Errorf(schema.LeaseStoreUnsupported, "the store is on %s, where locks and names of one machine are not those of another", name)
	}
	return nil
}

// fileUser is whom the files belong to that this thread makes.
func fileUser() uint32 {
	uid, err := unix.SetfsuidRetUid(-1) // which changes nothing
	if err != nil {
		uid = os.Geteuid()
	}
	return uint32(uid)
}
