package lease_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"steno/lease"
)

// However long it takes to sweep what dead holders have left, the process
// beats: one of their folders here does not answer at all.
func TestAProcessBeatsWhileItSweeps(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs the right to mount")
	}
	h, dir := stored(t)
	silent := mkdirAll(filepath.Join(dir, "holders", "silent"))
	// A file system in user space that nobody serves.
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil {
		err = syscall.Mount("steno-test", silent, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40700,user_id=0,group_id=0", fd))
	}
	if err != nil {
		t.Skip("a container without the right to mount: ", err)
	}
	answer := func() { // with an error, from now on
		if fd >= 0 {
			must(t, syscall.Close(fd))
			fd = -1
		}
	}
	t.Cleanup(func() { answer(); must(t, syscall.Unmount(silent, syscall.MNT_DETACH)) })
	self := lease.Self("lease.test")
	lane := h.Join(self)
	for end := time.Now().Add(30 * time.Second); h.Beat(self.ID).Count < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it sweeps, and does not beat")
		}
	}
	answer()
	lane.Leave()
}

// The room for what follows a claim is set aside with it, where that can be.
func TestARollHasItsRoom(t *testing.T) {
	const room = 1 << 20
	d, path := folder(t, nil)
	f, err := os.Create(filepath.Join(filepath.Dir(path), "try"))
	must(t, err)
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 1, 0, room); err != nil { // FALLOC_FL_KEEP_SIZE
		t.Skip("no room can be set aside here: ", err)
	}
	s := claim(t, d, 1)
	must(t, s.Append([]byte("seal\n"), false))
	next, folder, err := s.Next([]byte("claim\n"), room)
	must(t, err)
	defer folder.Close()
	defer next.Close()
	fi, err := os.Stat(filepath.Join(path, "000002.jsonl"))
	must(t, err)
	if has := fi.Sys().(*syscall.Stat_t).Blocks * 512; has < room || fi.Size() != 6 {
		t.Errorf("a claim of %d bytes has %d bytes on the disk, want %d", fi.Size(), has, room)
	}
}
