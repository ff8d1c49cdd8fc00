package lease_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"

	"steno/lease"
	"steno/schema"
)

// stored is a store's folder with the holders in it.
func stored(t *testing.T) (h *lease.Holders, dir string) {
	t.Helper()
	dir = t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	h = lease.NewHolders(root)
	t.Cleanup(func() { h.Close(); root.Close() })
	return h, dir
}

func TestABeatIsALineOfItsHolder(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	h, dir := stored(t)
	self := lease.Self("lease.test")
	lane := h.Join(self)
	place := filepath.Join(dir, "holders", self.ID)
	for name, want := range map[string]os.FileMode{filepath.Dir(place): 0o700, place: 0o700, filepath.Join(place, "beat"): 0o600} {
		fi, err := os.Stat(name)
		must(t, err)
		if fi.Mode().Perm() != want {
			t.Errorf("the mode of %s is %o", name, fi.Mode().Perm())
		}
	}
	b, err := os.ReadFile(filepath.Join(place, "beat"))
	must(t, err)
	if bytes.Count(b, []byte("\n")) != 1 || !bytes.HasSuffix(b, []byte("\n")) {
		t.Errorf("the beat is %q", b)
	}
	var said struct {
		Holder string `json:"holder"`
		BootID string `json:"boot_id"`
		TimeNS string `json:"time_namespace"`
		Nanos  int64  `json:"monotonic_ns"`
		Count  int    `json:"count"`
	}
	must(t, json.Unmarshal(b, &said))
	got := h.Beat(self.ID)
	if got == nil || said.Holder != self.ID || said.BootID != self.BootID || said.Count != 1 || got.Nanos != said.Nanos || got.TimeNS != said.TimeNS || !bytes.Equal(got.Line(), b) {
		t.Errorf("the beat says %s, and is read as %+v", b, got)
	}
	if ns, err := os.Readlink("/proc/self/ns/time"); err == nil && said.TimeNS != ns {
		t.Errorf("the time namespace is %s and not %s", said.TimeNS, ns)
	}
	longest := lease.Beat{Holder: strings.Repeat("x", 128), Clock: lease.Clock{BootID: self.BootID, TimeNS: "time:[18446744073709551615]", Nanos: 1<<63 - 1}, Count: 1<<64 - 1}
	if l := longest.Line(); !json.Valid(l) || len(l) != len(b) {
		t.Errorf("the longest beat is %s", l)
	}
	lane.Leave()
	if names := list(t, filepath.Dir(place)); len(names) > 0 {
		t.Errorf("a holder that is gone has left %v", names)
	}
	lane.Leave() // twice does no harm
}

// A file and a clock for all sessions of a process: it beats from the first to
// the last, and once more after it was away.
func TestAProcessBeatsOnceForAllItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, dir := stored(t)
		self := lease.Self("lease.test")
		var lanes []*lease.Lane
		for range 1000 {
			lanes = append(lanes, h.Join(self))
		}
		time.Sleep(10 * lease.Interval)
		synctest.Wait()
		if b := h.Beat(self.ID); b == nil || b.Count < 10 || b.Count > 11 {
			t.Errorf("after ten intervals the beat is %+v", b)
		}
		if n := len(list(t, filepath.Join(dir, "holders", self.ID))); n != 1 {
			t.Errorf("it has %d files", n)
		}
		for _, l := range lanes[1:] {
			l.Leave()
		}
		if h.Beat(self.ID) == nil {
			t.Error("it has stopped with a session left")
		}
		lanes[0].Leave()
		if h.Beat(self.ID) != nil {
			t.Error("it goes on with no session left")
		}
		again := h.Join(self)
		time.Sleep(lease.Interval)
		synctest.Wait()
		if b := h.Beat(self.ID); b == nil || b.Count != 2 {
			t.Errorf("the second time the beat is %+v", b)
		}
		h.Close()
		if names := list(t, filepath.Join(dir, "holders")); len(names) > 0 {
			t.Errorf("after the close there are %v", names)
		}
		again.Leave()
		h.Join(self).Leave() // a store that is closed has no beat, and does not mind
		if h.Beat(self.ID) != nil {
			t.Error("a store that is closed beats")
		}
	})
}

func TestABeatComesBackWhereItIsTakenAway(t *testing.T) {
	for name, take := range map[string]func(holders, place string) error{
		"the file":             func(_, p string) error { return os.Remove(filepath.Join(p, "beat")) },
		"its folder":           func(_, p string) error { return os.RemoveAll(p) },
		"all folders":          func(h, _ string) error { return os.RemoveAll(h) },
		"another file instead": func(_, p string) error { return replace(filepath.Join(p, "beat"), os.WriteFile) },
		"a FIFO instead": func(_, p string) error {
			return replace(filepath.Join(p, "beat"), func(n string, _ []byte, m os.FileMode) error { return syscall.Mkfifo(n, 0o600) })
		},
		"a link instead": func(_, p string) error {
			return replace(filepath.Join(p, "beat"), func(n string, _ []byte, _ os.FileMode) error { return os.Symlink("/etc/passwd", n) })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, dir := stored(t)
			self := lease.Self("lease.test")
			defer h.Join(self).Leave()
			place := filepath.Join(dir, "holders", self.ID)
			must(t, take(filepath.Dir(place), place))
			if b := h.Beat(self.ID); b != nil {
				t.Errorf("%s: read as %+v", name, b)
			}
			time.Sleep(lease.Interval)
			synctest.Wait()
			if b := h.Beat(self.ID); b == nil || b.Count != 2 {
				t.Errorf("%s: afterwards the beat is %+v", name, b)
			}
		})
	}
}

func replace(name string, put func(string, []byte, os.FileMode) error) error {
	if err := os.Remove(name); err != nil {
		return err
	}
	return put(name, []byte("{}\n"), 0o600)
}

// What stands in the way is neither followed nor waited for, and the session is
// claimed all the same: others then see silence.
func TestWhatStandsInTheWayOfABeatHarmsNobody(t *testing.T) {
	for name, put := range map[string]func(dir, id string) error{
		"a file for the folder of all": func(d, _ string) error { return os.WriteFile(filepath.Join(d, "holders"), nil, 0o600) },
		"a link for the folder of all": func(d, _ string) error {
			return os.Symlink(filepath.Dir(d), filepath.Join(d, "holders"))
		},
		"a folder of all that others may write": func(d, _ string) error {
			return os.Chmod(mkdirAll(filepath.Join(d, "holders")), 0o777)
		},
		"a FIFO for the holder's folder": func(d, id string) error {
			return syscall.Mkfifo(filepath.Join(mkdirAll(filepath.Join(d, "holders")), id), 0o600)
		},
		"a link for the holder's folder": func(d, id string) error {
			return os.Symlink(mkdirAll(filepath.Join(d, "elsewhere")), filepath.Join(mkdirAll(filepath.Join(d, "holders")), id))
		},
		"a folder for the beat": func(d, id string) error {
			mkdirAll(filepath.Join(d, "holders", id, "beat", "x"))
			return nil
		},
	} {
		h, dir := stored(t)
		self := lease.Self("lease.test")
		must(t, put(dir, self.ID))
		before := tree(t, dir)
		lane := h.Join(self)
		if b := h.Beat(self.ID); b != nil {
			t.Errorf("%s: the beat is %+v", name, b)
		}
		lane.Leave()
		if after := tree(t, dir); after != before {
			t.Errorf("%s: there was\n%s, and is\n%s", name, before, after)
		}
	}
}

func mkdirAll(path string) string {
	if err := os.MkdirAll(path, 0o700); err != nil {
		panic(err)
	}
	return path
}

func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, p, fi.Mode())
		}
		return err
	}))
	return b.String()
}

func TestABeatThatIsNoneIsNotRead(t *testing.T) {
	h, dir := stored(t)
	good := lease.Beat{Holder: "h1", Clock: lease.Clock{BootID: "b", TimeNS: "t", Nanos: 5}, Count: 7}
	place := mkdirAll(filepath.Join(dir, "holders", "h1"))
	beat := filepath.Join(place, "beat")
	for name, put := range map[string]func() error{
		"nothing":           func() error { return nil },
		"empty":             func() error { return os.WriteFile(beat, nil, 0o600) },
		"short":             func() error { return os.WriteFile(beat, good.Line()[:100], 0o600) },
		"garbage":           func() error { return os.WriteFile(beat, bytes.Repeat([]byte("x"), 512), 0o600) },
		"of another holder": func() error { return os.WriteFile(beat, lease.Beat{Holder: "h2"}.Line(), 0o600) },
		"that others write": func() error { return os.Chmod(write(beat, good.Line()), 0o666) },
		"a link to one":     func() error { return os.Symlink(write(filepath.Join(dir, "real"), good.Line()), beat) },
		"with a second name": func() error {
			return os.Link(write(filepath.Join(dir, "second"), good.Line()), beat)
		},
		"a FIFO":   func() error { return syscall.Mkfifo(beat, 0o600) },
		"a folder": func() error { return os.Mkdir(beat, 0o700) },
		"a device": func() error { return syscall.Mknod(beat, syscall.S_IFCHR|0o600, 5) },
	} {
		must(t, os.RemoveAll(beat))
		if err := put(); err != nil && !(name == "a device" && os.Getuid() != 0) {
			t.Fatal(err)
		}
		if b := h.Beat("h1"); b != nil {
			t.Errorf("%s: read as %+v", name, b)
		}
	}
	must(t, os.RemoveAll(beat))
	write(beat, good.Line())
	if b := h.Beat("h1"); b == nil || *b != good {
		t.Errorf("a sound one is read as %+v", b)
	}
	for _, id := range []string{"", ".", "..", "../holders/h1", "h1/../h1", "x\x00"} {
		if b := h.Beat(id); b != nil {
			t.Errorf("the id %q leads to %+v", id, b)
		}
	}
}

func write(name string, b []byte) string {
	if err := os.WriteFile(name, b, 0o600); err != nil {
		panic(err)
	}
	return name
}

// What dead holders have left is removed by the next one: what is locked, or is
// no beat, stays.
func TestTheNextHolderSweepsDeadOnes(t *testing.T) {
	h, dir := stored(t)
	holders := filepath.Join(dir, "holders")
	for n := range 250 {
		write(filepath.Join(mkdirAll(filepath.Join(holders, fmt.Sprint("dead", n))), "beat"), lease.Beat{Holder: "x"}.Line())
	}
	mkdirAll(filepath.Join(holders, "empty"))
	alive := flock.New(write(filepath.Join(mkdirAll(filepath.Join(holders, "alive")), "beat"), nil))
	if ok, err := alive.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	defer alive.Close()
	write(filepath.Join(mkdirAll(filepath.Join(holders, "logs")), "1.log"), nil)
	write(filepath.Join(holders, "logs", "beat"), nil)
	must(t, syscall.Mkfifo(filepath.Join(mkdirAll(filepath.Join(holders, "fifo")), "beat"), 0o600))
	must(t, os.Symlink(mkdirAll(filepath.Join(dir, "away")), filepath.Join(holders, "link")))
	write(filepath.Join(dir, "away", "beat"), nil)
	write(filepath.Join(holders, "file"), nil)
	self := lease.Self("lease.test")
	lane := h.Join(self)
	want := "alive/beat fifo/beat file link logs/1.log " + self.ID + "/beat"
	left := ""
	for end := time.Now().Add(30 * time.Second); left != want && time.Now().Before(end); time.Sleep(time.Millisecond) {
		var names []string
		for _, top := range list(t, holders) {
			if fi, err := os.Lstat(filepath.Join(holders, top)); err != nil || !fi.IsDir() {
				names = append(names, top)
				continue
			}
			entries, err := os.ReadDir(filepath.Join(holders, top)) // it may be gone by now
			if err == nil && len(entries) == 0 {
				names = append(names, top)
			}
			for _, e := range entries {
				names = append(names, top+"/"+e.Name())
			}
		}
		left = sorted(names, self.ID)
	}
	if left != want {
		t.Errorf("left are %s; want %s", left, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "away", "beat")); err != nil {
		t.Errorf("behind the link: %v", err)
	}
	lane.Leave()
}

// sorted joins names in their order, with our own at the end.
func sorted(names []string, self string) string {
	var out, own []string
	for _, n := range names {
		if strings.HasPrefix(n, self) {
			own = append(own, n)
		} else {
			out = append(out, n)
		}
	}
	return strings.Join(append(out, own...), " ")
}

func TestReadingALeaseNeedsNoHoldersFolderAndMakesNone(t *testing.T) {
	d, path := folder(t, nil)
	slot := claim(t, d, 1)
	must(t, slot.Append(event("s1", 1, schema.TypeNote), false))
	root, err := os.OpenRoot(filepath.Dir(path))
	must(t, err)
	defer root.Close()
	before := tree(t, filepath.Dir(path))
	st, err := d.Status(lease.NewHolders(root))
	if err != nil || st.State != lease.Active || !st.Undecided {
		t.Errorf("%+v, %v", st, err)
	}
	if after := tree(t, filepath.Dir(path)); after != before {
		t.Errorf("it has made\n%s", after)
	}
}

// A holder keeps the lock of its beat whatever the garbage collector does, and
// that is what keeps the next one from sweeping it.
func TestALivingHolderIsNotSwept(t *testing.T) {
	h, dir := stored(t)
	alive, next := lease.Self("lease.test"), lease.Self("lease.test")
	defer h.Join(alive).Leave()
	before := h.Beat(alive.ID)
	mkdirAll(filepath.Join(dir, "holders", "dead"))
	for range 5 {
		runtime.GC()
	}
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	other := lease.NewHolders(root)
	defer other.Close()
	other.Join(next)
	for end := time.Now().Add(30 * time.Second); len(list(t, filepath.Join(dir, "holders"))) > 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("what is dead is not swept")
		}
	}
	other.Close() // ends the sweep
	if after := h.Beat(alive.ID); after == nil || after.Count < before.Count || after.Count > before.Count+1 {
		t.Errorf("the beat was %+v and is %+v", before, after)
	}
	if names := list(t, filepath.Join(dir, "holders")); len(names) != 1 {
		t.Errorf("there are %v", names)
	}
	runtime.KeepAlive(h)
}
