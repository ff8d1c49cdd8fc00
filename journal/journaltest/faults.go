package journaltest

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
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

// Those of a commit log, which come from goroutines of its own.
const (
	LogWrite = "log write" // before a write, that of zeros too
	LogSync  = "log sync"  // before a sync of a file or of a folder of holders
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
	size  int64           // of a segment
	cache *[2]int64       // from where on, and up to where, only the page cache has it
	names map[string]bool // of a folder

	// Of a file that is written in place: what the disk has, and where it may
	// have something else by now, since that was written and not synced.
	data  []byte
	dirty []span
}

type span struct{ from, to int64 }

// ofLog reports whether a file or folder is one of a commit log, whose files are
// written in place.
func ofLog(f *os.File) bool {
	return strings.Contains(f.Name(), "/holders/") || strings.HasSuffix(f.Name(), "/holders")
}

// Faulty returns the same store with faults before it, and without a commit
// log, so that each append is one write and one sync.
func Faulty(f *journal.Files) (*journal.Files, *Faults) { return FaultyLog(f.WithoutLog()) }

// FaultyLog returns the same store with faults before it. With a commit log its
// writes and syncs pass here, too.
func FaultyLog(f *journal.Files) (*journal.Files, *Faults) {
	x := &Faults{seen: map[string]int{}, actions: map[string][]action{}}
	return f.WithFaults(&lease.Faults{Write: x.write, Sync: x.sync, Drop: x.drop, Check: x.check, At: func(point string) { x.pass(point, nil) }}), x
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

// FailLog makes the n-th write, or sync, of a commit log fail. What was written
// stays readable.
func (x *Faults) FailLog(point string, n int, err error) {
	x.add(point, n, func(*os.File) error { return err })
}

// ShortLog makes the n-th write of a commit log store only its first bytes.
func (x *Faults) ShortLog(n, keep int, err error) {
	x.add(LogWrite, n, func(*os.File) error { return &shortWrite{keep, err} })
}

// CacheLog makes the n-th sync of a commit log fail, and the disk keep what it
// had: the page cache shows what was written, and no later sync stores it.
func (x *Faults) CacheLog(n int, err error) {
	x.add(LogSync, n, func(f *os.File) error {
		fi, e := f.Stat()
		if e != nil {
			return e
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.kept(fi).dirty = nil
		return err
	})
}

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
func (x *Faults) CacheSync(n int, err error) {
	x.add(Sync, n, func(f *os.File) error {
		fi, e := f.Stat()
		if e != nil {
			return e
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if k := x.kept(fi); k.size < fi.Size() {
			k.cache = &[2]int64{k.size, fi.Size()}
		}
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
	point, inPlace, over := Write, ofLog(f), false
	if inPlace {
		point = LogWrite
	}
	if err := x.pass(point, f); errors.As(err, &short) {
		b = b[:min(short.keep, len(b))]
	} else if err != nil {
		return 0, err
	}
	if inPlace {
		if over, err = x.mark(f, len(b)); err != nil {
			return 0, err
		}
	}
	x.mu.Lock()
	full := x.full && !over && len(b) > x.free
	if full {
		b = b[:x.free]
	}
	if x.full && !over {
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

// mark notes that so many bytes are about to be written where a file is, and
// reports whether there is room for them in it.
func (x *Faults) mark(f *os.File, n int) (over bool, err error) {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return false, err
	}
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.kept(fi)
	k.dirty = append(k.dirty, span{at, at + int64(n)})
	return at+int64(n) <= fi.Size(), nil
}

// stored notes that a sync has stored what was dirty when it began.
func (k *synced) stored(was []span, b [][]byte) {
	for i, s := range was {
		if end := s.from + int64(len(b[i])); int64(len(k.data)) < end {
			k.data = append(k.data, make([]byte, end-int64(len(k.data)))...)
		}
		copy(k.data[s.from:], b[i])
	}
	k.dirty = k.dirty[min(len(was), len(k.dirty)):]
}

func (x *Faults) sync(f *os.File) error {
	x.mu.Lock()
	noSync, hold := x.noSync, x.hold
	x.mu.Unlock()
	if noSync {
		return nil
	}
	point, inPlace := Sync, ofLog(f)
	if inPlace {
		point = LogSync
	}
	if err := x.pass(point, f); err != nil {
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
	if inPlace && !fi.IsDir() {
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
	k := &synced{info: fi}
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
