package journal_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// File systems for the images, with the least size that they take. The first
// is on every machine that has any.
var imageSystems = []struct {
	name, mkfs string
	args       []string
	megabytes  int
}{
	{"ext4", "mkfs.ext4", []string{"-q", "-F", "-b", "4096", "-J", "size=4"}, 24},
	{"xfs", "mkfs.xfs", []string{"-q", "-f"}, 320},
	{"btrfs", "mkfs.btrfs", []string{"-q", "-f"}, 128},
}

// imagesMissing says what keeps this machine from mounting images.
func imagesMissing() string {
	if os.Geteuid() != 0 {
		return "not root"
	}
	for _, dev := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(dev); err != nil {
			return "no " + dev
		}
	}
	return ""
}

// makeImage makes an empty file system in a file.
func makeImage(t *testing.T, path, mkfs string, args []string, megabytes int) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	must(t, f.Truncate(int64(megabytes)<<20))
	must(t, f.Close())
	journaltest.Run(t, mkfs, append(args, path)...)
}

// mounted mounts an image while f runs.
func mounted(t *testing.T, system, image string, f func(dir string)) error {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", system, "-o", "loop", image, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	defer func() {
		if t.Failed() { // writers may still be on it
			journaltest.Run(t, "umount", "--lazy", dir)
		} else {
			journaltest.Run(t, "umount", dir)
		}
	}()
	f(dir)
	return nil
}

// onDisk lets writers work on a real file system for a while, each killed in
// its turn, and then cuts the power n times. It returns how many cuts lost
// something that was acknowledged. synced says what is: "all", "nothing", "no log".
func onDisk(t *testing.T, seed uint64, try int, system, mkfs string, args []string, megabytes, n int, logged bool, synced string) (bad int) {
	t.Helper()
	noSync := synced != "all"
	r := journaltest.Rand(seed, system, logged, synced, try)
	image := filepath.Join(journaltest.TempDir(t), "image")
	makeImage(t, image, mkfs, args, megabytes)
	base, err := os.ReadFile(image)
	must(t, err)
	var now atomic.Pointer[journaltest.Storm]
	device := journaltest.MountDevice(t, base, func() bool { p := now.Load(); return p != nil && p.Unanswered() })
	var writers []*journaltest.Storm
	var from, to int64
	must(t, mounted(t, system, device.Path, func(dir string) {
		store, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
		must(t, err)
		defer store.Close()
		from = device.Position()
		for len(writers) < 3+n/40 {
			if noSync && len(writers) > 0 { // what the next one writes stays in the page cache
				journaltest.Run(t, "sync", "-f", dir)
			}
			s := journaltest.Stormer{Dir: store.Dir(), NoSync: synced == "nothing", NoLog: synced == "no log", Plain: !logged, Stamp: device.Position}
			if !noSync {
				s.Pad = r.IntN(3000)
			}
			p := journaltest.StartStormer(t, s)
			writers = append(writers, p)
			now.Store(p)
			p.Write("s1", false)
			p.WaitFor("ack", 1+r.IntN(20))
			p.Kill()
		}
		to = device.Position()
	}))
	device.Unmount(t)
	var counts, told, cuts, taken, unmountable int
	cut := func(img []byte, position int64, busy bool) {
		if t.Failed() {
			return
		}
		// A file of its own: a loop device that somebody still looks at would be
		// used again for the same one, with what the kernel remembers of the image
		// before, and a file system that seems to be clean is not recovered.
		taken++
		image := fmt.Sprintf("%s.%d", image, taken)
		must(t, os.WriteFile(image, img, 0o600))
		defer os.Remove(image)
		var acknowledged []schema.Head
		for _, p := range writers {
			acknowledged = append(acknowledged, p.HeadsUntil(position, "open", "ack")...)
		}
		err := mounted(t, system, image, func(dir string) {
			cuts++
			told = max(told, len(acknowledged))
			if busy {
				counts++
			}
			store, err := journal.OpenFiles(filepath.Join(dir, "store"), true)
			must(t, err)
			defer store.Close()
			if !logged {
				store = store.WithoutLog()
			}
			if noSync {
				if l, err := journaltest.Read(store, "s1", journal.ScanOptions{}); len(acknowledged) > 0 && (err != nil || l.FirstError != nil || len(l.Missing(acknowledged)) > 0) {
					bad++
				}
				return
			}
			after(t, store, acknowledged, func() string {
				journaltest.Keep(t, dir)
				return fmt.Sprintf("%s, cut at %d", system, position)
			})
		})
		if err != nil {
			t.Logf("%s, cut at %d: %v", system, position, err)
			unmountable++
		}
	}
	// A file system may need more of a disk than that sectors are whole; a cut
	// that it does not survive says nothing of steno, and another takes its
	// place.
	for at := []int64{to}; cuts < n && unmountable <= 20+n && !t.Failed(); at = nil {
		for len(at) < n-cuts {
			at = append(at, from+1+r.Int64N(to-from))
		}
		device.Cuts(r, at, cut)
	}
	if cuts < n && !t.Failed() {
		t.Errorf("%s: %d of %d images cannot be mounted", system, unmountable, cuts+unmountable)
	}
	journaltest.Tried("power on %s, commit log %t, synced is %s: %d cuts, %d of them count, %d lost something, %d could not be mounted, %d acknowledged records at the last, seed %d",
		system, logged, synced, cuts, counts, bad, unmountable, told, seed)
	return bad
}

func TestPowerCutOnRealFileSystems(t *testing.T) {
	if why := imagesMissing(); why != "" {
		journaltest.Tried("power on real file systems: SKIPPED: %s", why)
		return
	}
	seed := journaltest.Seed(t)
	for _, s := range imageSystems[:journaltest.Amount(1, 3, 3)] {
		if _, err := exec.LookPath(s.mkfs); err != nil {
			journaltest.Tried("power on %s: SKIPPED: no %s here", s.name, s.mkfs)
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			journaltest.Either(t, func(t *testing.T, logged bool) {
				cuts := func(try, n int, synced string) (bad int) {
					return onDisk(t, seed, try, s.name, s.mkfs, s.args, s.megabytes, n, logged, synced)
				}
				cuts(0, journaltest.Amount(3, 20, 100), "all")
				without := []string{"nothing"}
				if logged {
					without = append(without, "no log")
				}
				for _, synced := range without {
					// A kernel may store by itself all that was acknowledged,
					// though not time after time.
					bad := 0
					for try := 0; try < 20 && bad == 0 && !t.Failed(); try++ {
						bad = cuts(try, journaltest.Amount(4, 8, 20), synced)
					}
					if bad == 0 && !t.Failed() {
						t.Errorf("synced was %s, and nothing is missing after a power cut", synced)
					}
				}
			})
		})
	}
}
