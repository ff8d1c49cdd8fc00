package lease

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"steno/schema"
)

// A Lane is the appends of one slot, with all that they take, as the beat of
// its process sees them.
type Lane struct {
	heart *heart
	moves atomic.Uint64 // odd while something is under way

	seen  uint64 // the last odd count that the heart saw, and how often in a row
	ticks int
}

// begin and end are all that an append pays for the beat. A nil Lane has none.
func (l *Lane) begin() {
	if l != nil {
		l.moves.Add(1)
	}
}

func (l *Lane) end() { l.begin() }

// move says that what is under way goes on.
func (l *Lane) move() {
	if l != nil {
		l.moves.Add(2)
	}
}

// stuck looks at a lane, once an Interval.
func (l *Lane) stuck() bool {
	n := l.moves.Load()
	if n%2 == 0 || n != l.seen {
		l.seen, l.ticks = n, 0
		return false
	}
	l.ticks++
	return time.Duration(l.ticks)*Interval >= Window
}

// Join makes this process beat as holder, from now until the last of its lanes
// has left or the Holders are closed. The first beat is written before Join
// returns, so that nobody sees a claim whose holder has none. A beat that
// cannot be written is tried again with the next one; until then others see
// silence, and may force the session, which is safe.
func (h *Holders) Join(holder schema.Holder) *Lane {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.hearts[holder.ID]
	if t == nil {
		t = &heart{all: h, beat: Beat{Holder: holder.ID}, lanes: map[*Lane]bool{}, stop: make(chan struct{}), done: make(chan struct{})}
		if h.closed || !schema.ValidSession(holder.ID) {
			return &Lane{heart: t}
		}
		h.hearts[holder.ID] = t
		t.tick()
		go t.run()
	}
	l := &Lane{heart: t}
	t.mu.Lock()
	t.lanes[l] = true
	t.mu.Unlock()
	return l
}

// Leave ends a lane. With the last one the beat ends, and its folder goes.
func (l *Lane) Leave() {
	t := l.heart
	h := t.all
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	delete(t.lanes, l)
	left := len(t.lanes)
	t.mu.Unlock()
	if left == 0 && h.hearts[t.beat.Holder] == t {
		h.end(t)
	}
}

// Close ends every beat of this process.
func (h *Holders) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, t := range h.hearts {
		h.end(t)
	}
	h.reading.Lock()
	defer h.reading.Unlock()
	for _, files := range h.logs {
		files.close()
	}
	clear(h.logs)
	h.recent = nil
}

func (h *Holders) end(t *heart) {
	delete(h.hearts, t.beat.Holder)
	close(t.stop)
	<-t.done
	if l := t.takeLog(); l != nil {
		l.close()
	}
	t.remove()
}

// commitLog gives the log that all lanes of a holder share, nil if the holder
// does not beat any more.
func (l *Lane) commitLog(d *Dir) *Log {
	t := l.heart
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.log == nil && t.lanes[l] {
		t.log = newLog(t.all, t.beat.Holder, d.parent, d.faults)
	}
	return t.log
}

func (t *heart) takeLog() (l *Log) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, t.log = t.log, nil
	clear(t.lanes)
	return l
}

// A heart is the beat of one holder.
type heart struct {
	all        *Holders
	stop, done chan struct{}

	mu    sync.Mutex
	lanes map[*Lane]bool
	log   *Log // nil until it is needed

	// Of Join, then of the goroutine, then of whoever ended it.
	beat Beat
	dir  *os.Root
	file *os.File // locked while the holder lives: that is how others know that it is dead
}

func (t *heart) run() {
	defer close(t.done)
	var beside sync.WaitGroup // however much there is to sweep, the beat goes on
	defer beside.Wait()
	beside.Go(func() { t.all.sweep(t.beat.Holder, t.stop) })
	var sweeping atomic.Bool
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-t.stop:
			return
		case <-tick.C:
			t.tick()
		}
		// Not at once: whoever takes over what a dead process held reads its
		// logs first, and then they can go.
		if n%sweepEvery == 0 && sweeping.CompareAndSwap(false, true) {
			beside.Go(func() {
				t.all.sweepLogs(t.stop)
				sweeping.Store(false)
			})
		}
	}
}

// tick beats, unless a part of an append has stood still for the window: a process whose
// disk does not answer must not look as if all were well.
func (t *heart) tick() {
	t.mu.Lock()
	stuck := false
	for l := range t.lanes {
		stuck = l.stuck() || stuck // each is looked at
	}
	log := t.log
	t.mu.Unlock()
	if log != nil {
		log.tick()
	}
	if stuck {
		return
	}
	t.beat.Clock = here()
	t.beat.Count++
	if !t.write() {
		t.remove()
		for range 3 { // a sweeper may be at work in the same place
			if t.make() && t.write() {
				return
			}
			t.remove()
		}
	}
}

// write rewrites the file in place, if it is still at its name.
func (t *heart) write() bool {
	if t.file == nil {
		return false
	}
	if _, err := t.file.WriteAt(t.beat.Line(), 0); err != nil {
		return false
	}
	own, err := t.file.Stat()
	if err != nil {
		return false
	}
	at, err := t.all.store.Lstat("holders/" + t.beat.Holder + "/beat")
	return err == nil && os.SameFile(own, at)
}

// make makes the folder of this holder and the file in it. The id is new for
// every process, so whatever is there already is ours, or was put in our way.
func (t *heart) make() bool {
	if mkdir(t.all.store, "holders") != nil {
		return false
	}
	all, err := openFolder(t.all.store, "holders")
	if err != nil {
		return false
	}
	defer all.Close()
	if mkdir(all, t.beat.Holder) != nil {
		return false
	}
	if t.dir, err = openFolder(all, t.beat.Holder); err != nil {
		return false
	}
	_ = t.dir.Remove("beat")
	if t.file, err = t.dir.OpenFile("beat", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600); err != nil {
		return false
	}
	if t.file.Chmod(0o600) != nil {
		return false
	}
	ok, err := tryLock(t.file, exclusive)
	return ok && err == nil
}

func mkdir(in *os.Root, name string) error {
	err := in.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = in.Chmod(name, 0o700) // whatever the umask says
	}
	return err
}

// remove takes away what make made, as far as it came. What cannot be removed
// is swept by a later holder.
func (t *heart) remove() {
	if t.file != nil {
		own, err := t.file.Stat()
		if at, e := t.dir.Lstat("beat"); err == nil && e == nil && os.SameFile(own, at) {
			_ = t.dir.Remove("beat")
		}
		t.file.Close()
		t.file = nil
	}
	if t.dir != nil {
		t.dir.Close()
		t.dir = nil
		_ = t.all.store.Remove("holders/" + t.beat.Holder) // only if it is empty
	}
}

// sweep removes the beats of holders that are certainly dead: nobody holds
// their lock. What else is in their folders stays. own is looked after by its
// heart, and is never dead.
func (h *Holders) sweep(own string, stop <-chan struct{}) {
	all, err := openFolder(h.store, "holders")
	if err != nil {
		return
	}
	defer all.Close()
	f, err := all.Open(".")
	if err != nil {
		return
	}
	defer f.Close()
	if supported(f) != nil { // a free lock proves nothing here
		return
	}
	for {
		names, err := f.Readdirnames(100)
		for _, name := range names {
			select {
			case <-stop:
				return
			default:
			}
			if schema.ValidSession(name) && name != own {
				sweepOne(all, name)
			}
		}
		if err != nil { // the end, or a later holder tries again
			return
		}
	}
}

func sweepOne(all *os.Root, name string) {
	dir, err := openFolder(all, name)
	if err != nil {
		return
	}
	defer dir.Close()
	f, err := openPlain(dir, "beat")
	if errors.Is(err, fs.ErrNotExist) {
		_ = all.Remove(name)
	}
	if err != nil {
		return
	}
	defer f.Close()
	if ok, err := tryLock(f, shared); err == nil && ok {
		_ = dir.Remove("beat")
		_ = all.Remove(name)
	}
}
