package journaltest

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"steno/journal"
	"steno/lease"
)

// Points at which a writer can be interrupted. Those from Listed on are the
// ones that package lease names.
const (
	Write   = "write"   // before a write, that of the claim too
	Sync    = "sync"    // before a sync, of a segment or a folder
	Listed  = "listed"  // a listing has noted the size of a segment
	Claimed = "claimed" // the claim has its slot and is not sealed
	Written = "written" // lines are written and not synced
	Synced  = "synced"  // lines are synced and the successor not looked for
	Checked = "checked" // lines are recorded and nobody is told
	Renamed = "renamed" // an archive has its name, which is not synced
	Removed = "removed" // a file of a packed or removed session is gone
)

// ErrDisk is what a disk answers that a test has broken.
var ErrDisk = errors.New("the disk says no")

// Faults stands between a store and the kernel. Until it is told otherwise it
// lets everything through and only counts. Its methods may be called at any
// time and from any goroutine; a count that they take begins at the call.
type Faults struct {
	mu      sync.Mutex
	seen    map[string]int
	bytes   int
	actions map[string][]action
	each    func(point string)
	hold    *Hold
	full    bool
	free    int // bytes that still fit, if it is full
	noSync  bool
	noLog   bool // no sync of a commit log
	noFile  bool // only those
	noDrop  bool
	look    func() error // in place of the successor check
	files   []*synced
}

type action struct {
	at int // count of the point
	do func(f *os.File) error
}

// synced is what a disk must still have after a power cut.
type synced struct {
	info  os.FileInfo
	size  int64              // of a segment
	cache *[2]int64          // from where on, and up to where, only the page cache has it
	names map[string]bool    // of a folder
	told  map[*os.File]error // which descriptors know of a failure, and which are yet to be told

	// Of a file that is written in place: what the disk has, and where it may
	// have something else by now, since that was written and not synced.
	data  []byte
	dirty []span
}

// Faulty returns the same store with faults before it, and without a commit
// log, so that each append is one write and one sync.
func Faulty(f *journal.Files) (*journal.Files, *Faults) { return faulty(f.WithoutLog()) }

// FaultyLog returns the same store with faults before it, and a commit log of
// such small files that they are soon used again.
func FaultyLog(f *journal.Files) (*journal.Files, *Faults) { return faulty(f) }

// FaultyEither is FaultyLog or Faulty.
func FaultyEither(f *journal.Files, logged bool) (*journal.Files, *Faults) {
	if logged {
		return FaultyLog(f)
	}
	return Faulty(f)
}

// Either runs a test with a commit log and without.
func Either(t *testing.T, f func(t *testing.T, logged bool)) {
	t.Helper()
	t.Run("log", func(t *testing.T) { f(t, true) })
	t.Run("plain", func(t *testing.T) { f(t, false) })
}

func faulty(f *journal.Files) (*journal.Files, *Faults) {
	x := &Faults{seen: map[string]int{}, actions: map[string][]action{}}
	return f.WithFaults(&lease.Faults{Write: x.write, Sync: x.sync, Drop: x.drop, Check: x.check, At: func(point string) { x.pass(point, nil) }, LogSize: 8 << 10}), x
}

// pass counts a point and does what is to be done there, outside the lock.
func (x *Faults) pass(point string, f *os.File) (err error) {
	x.mu.Lock()
	x.seen[point]++
	var due []action
	for _, a := range x.actions[point] {
		if a.at == x.seen[point] {
			due = append(due, a)
		}
	}
	each := x.each
	x.mu.Unlock()
	if each != nil {
		each(point)
	}
	for _, a := range due {
		err = errors.Join(err, a.do(f))
	}
	return err
}

func (x *Faults) add(point string, n int, do func(f *os.File) error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.actions[point] = append(x.actions[point], action{x.seen[point] + n, do})
}

// Seen is how often a point was passed.
func (x *Faults) Seen(point string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen[point]
}

// Bytes is how many bytes were written.
func (x *Faults) Bytes() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bytes
}

// At calls f when a point is passed for the n-th time from now; 1 is the next.
func (x *Faults) At(point string, n int, f func()) {
	x.add(point, n, func(*os.File) error { f(); return nil })
}

// Each calls f whenever a point is passed, before anything else happens there.
func (x *Faults) Each(f func(point string)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.each = f
}

// FailWrite makes the n-th write store nothing and fail.
func (x *Faults) FailWrite(n int, err error) {
	x.add(Write, n, func(*os.File) error { return err })
}

// ShortWrite makes the n-th write store only its first bytes, with an error or,
// if err is nil, without a word.
func (x *Faults) ShortWrite(n, keep int, err error) {
	x.add(Write, n, func(*os.File) error { return &shortWrite{keep, err} })
}

type shortWrite struct {
	keep int
	err  error
}

func (*shortWrite) Error() string { return "short write" }

// FailSync makes the n-th sync fail. What was written stays readable, as it
// does in the page cache.
func (x *Faults) FailSync(n int, err error) {
	x.add(Sync, n, func(*os.File) error { return err })
}

// LoseSync makes the n-th sync fail and what it should have stored read as
// zeros from then on, as it does when the page cache is dropped. The next sync
// succeeds.
func (x *Faults) LoseSync(n int, err error) {
	x.add(Sync, n, func(f *os.File) error {
		fi, e := f.Stat()
		if e != nil {
			return e
		}
		x.mu.Lock()
		kept := x.kept(fi).size
		x.mu.Unlock()
		return errors.Join(err, f.Truncate(kept), f.Truncate(fi.Size()))
	})
}

// CacheSync makes the n-th sync fail and leaves what it should have stored in
// the page cache alone, as the kernel does: it can be read, the next sync
// answers success, and it is gone when the pages are dropped, or with the power.
// Who had written or synced by another descriptor before hears of it too, once.
func (x *Faults) CacheSync(n int, err error) {
	x.add(Sync, n, func(f *os.File) error {
		fi, e := f.Stat()
		if e != nil {
			return e
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		k := x.kept(fi)
		if k.size < fi.Size() {
			k.cache = &[2]int64{k.size, fi.Size()}
		}
		for g := range k.told {
			k.told[g] = err
		}
		k.told[f] = nil
		return err
	})
}

// LeaveOutDrop makes every dropping of pages from now on do nothing.
func (x *Faults) LeaveOutDrop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.noDrop = true
}

// drop makes what only the page cache had read as zeros. Whether the file is
// as long as before after a power cut is not sure.
func (x *Faults) drop(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept(fi)
	if x.noDrop || k.cache == nil {
		return nil
	}
	// By its name, since a file that is settled is open for reading.
	w, err := os.OpenFile(f.Name(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = w.WriteAt(make([]byte, k.cache[1]-k.cache[0]), k.cache[0])
	k.size, k.cache = k.cache[0], nil
	return errors.Join(err, w.Close())
}

// Fill leaves room for so many bytes on the disk: a write stores what fits and
// fails. Empty makes room again.
func (x *Faults) Fill(free int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.full, x.free = true, free
}

// Empty ends Fill.
func (x *Faults) Empty() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.full = false
}

// LeaveOutSync makes every sync from now on answer success and do nothing.
func (x *Faults) LeaveOutSync() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.noSync = true
}

// LeaveOutCheck makes every successor check from now on find nothing.
func (x *Faults) LeaveOutCheck() { x.ReplaceCheck(func() error { return nil }) }

// ReplaceCheck puts another check in the place of every successor check from
// now on.
func (x *Faults) ReplaceCheck(look func() error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.look = look
}

// A Hold keeps syncs waiting.
type Hold struct {
	waiting, released chan struct{}
	first, last       sync.Once
}

// Waiting is closed once a sync is waiting.
func (h *Hold) Waiting() <-chan struct{} { return h.waiting }

// Release lets all syncs go on. It may be called twice.
func (h *Hold) Release() { h.last.Do(func() { close(h.released) }) }

// HoldSync makes every sync from now on wait for its Release, at the latest
// until the test ends.
func (x *Faults) HoldSync(t testing.TB) *Hold {
	h := &Hold{waiting: make(chan struct{}), released: make(chan struct{})}
	t.Cleanup(h.Release)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.hold = h
	return h
}

func (x *Faults) write(f *os.File, b []byte) (n int, err error) {
	short := (*shortWrite)(nil)
	point := x.point(Write, f)
	if err := x.pass(point, f); errors.As(err, &short) {
		b = b[:min(short.keep, len(b))]
	} else if err != nil {
		return 0, err
	}
	if err := x.mark(f, len(b), point != Write); err != nil {
		return 0, err
	}
	x.mu.Lock()
	full := x.full && point != LogWrite && len(b) > x.free
	if full {
		b = b[:x.free]
	}
	if x.full && point != LogWrite {
		x.free -= len(b)
	}
	x.mu.Unlock()
	n, err = f.Write(b)
	if full && err == nil {
		err = syscall.ENOSPC
	}
	x.mu.Lock()
	x.bytes += n
	x.mu.Unlock()
	if short != nil && err == nil {
		err = short.err
	}
	return n, err
}

func (x *Faults) sync(f *os.File) error {
	x.mu.Lock()
	noSync, noLog, noFile, hold := x.noSync, x.noLog, x.noFile, x.hold
	x.mu.Unlock()
	if noSync {
		return nil
	}
	point := x.point(Sync, f)
	if err := x.pass(point, f); err != nil || point == LogSync && noLog || point == Sync && noFile {
		return err
	}
	if err := x.owed(f); err != nil {
		return err
	}
	if hold != nil {
		hold.first.Do(func() { close(hold.waiting) })
		<-hold.released
	}
	// What is noted before the sync is the least that is durable after it.
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	names := map[string]bool{}
	if fi.IsDir() {
		list, err := os.ReadDir(f.Name())
		if err != nil {
			return err
		}
		for _, e := range list {
			names[e.Name()] = true
		}
	}
	var dirty []span
	var written [][]byte
	if point != Sync && !fi.IsDir() {
		x.mu.Lock()
		dirty = slices.Clone(x.kept(fi).dirty)
		x.mu.Unlock()
		for _, s := range dirty {
			b := make([]byte, s.to-s.from)
			n, err := f.ReadAt(b, s.from)
			if err != nil && err != io.EOF {
				return err
			}
			written = append(written, b[:n])
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept(fi)
	k.size, k.names = fi.Size(), names
	k.stored(dirty, written)
	return nil
}

func (x *Faults) kept(fi os.FileInfo) *synced {
	for _, k := range x.files {
		if os.SameFile(k.info, fi) {
			return k
		}
	}
	k := &synced{info: fi, told: map[*os.File]error{}}
	x.files = append(x.files, k)
	return k
}

func (x *Faults) check(real func() error) error {
	x.mu.Lock()
	look := x.look
	x.mu.Unlock()
	if look != nil {
		return look()
	}
	return real()
}
