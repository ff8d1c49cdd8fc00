package lease_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"steno/journal/journaltest"
	"steno/lease"
)

// However long it takes to sweep what dead holders have left, the process
// beats: one of their folders here does not answer at all.
func TestAProcessBeatsWhileItSweeps(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		journaltest.Lacks(t, "root, who may mount")
	}
	h, dir := stored(t)
	silent := mkdirAll(filepath.Join(dir, "holders", "silent"))
	// A file system in user space that nobody serves.
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil {
		err = syscall.Mount("steno-test", silent, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40700,user_id=0,group_id=0", fd))
	}
	if err != nil {
		journaltest.Lacks(t, "the right to mount: "+err.Error())
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
		journaltest.Lacks(t, "a file system that sets room aside: "+err.Error())
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

// A store that is closed keeps nothing of itself open, so that its file system can
// be unmounted.
func TestAClosedLogKeepsNothingOpen(t *testing.T) {
	d, path := folder(t, nil)
	s := claim(t, d, 1)
	must(t, s.Append([]byte("seal\n"), false))
	dir := t.TempDir()
	store, err := os.OpenRoot(dir)
	must(t, err)
	holders := lease.NewHolders(store)
	lane := holders.Join(lease.Self("test"))
	s.BeatIn(lane, true)
	must(t, s.Append([]byte("one\n"), false))
	parent := filepath.Dir(path)
	open := func() (n int) {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, fd := range list {
			if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && (to == parent || strings.HasPrefix(to, dir)) {
				n++
			}
		}
		return n
	}
	before := open()
	must(t, s.Close())
	lane.Leave()
	holders.Close()
	must(t, store.Close())
	if after := open(); after > 1 || before <= after { // the test itself has the folder above the session open
		t.Errorf("%d descriptors were open, and %d still are", before, after)
	}
}

// A child that is being started has our descriptors until it becomes another
// program. What is given back meanwhile is not held by it.
func TestALockThatIsGivenBackIsNotInherited(t *testing.T) {
	d, path := folder(t, nil)
	b, _ := header(t, 1)
	s, err := d.Claim(1, b)
	must(t, err)
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	inherited := -1
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == filepath.Join(path, "000001.jsonl") {
			n, err := strconv.Atoi(fd.Name())
			must(t, err)
			inherited, err = unix.Dup(n)
			must(t, err)
		}
	}
	if inherited < 0 {
		t.Fatal("no descriptor of the segment is open")
	}
	defer unix.Close(inherited)
	if held, err := d.Held(1); err != nil || !held {
		t.Errorf("held: %t, %v", held, err)
	}
	must(t, s.Close())
	if held, err := d.Held(1); err != nil || held {
		t.Errorf("held after close: %t, %v", held, err)
	}
}
