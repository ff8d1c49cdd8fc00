package lease

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Sizes of the files of a commit log, in bytes. The first is small, since most
// processes append little; each next one is twice as large.
const (
	firstLog = 1 << 20
	maxLog   = 32 << 20
	allLogs  = 256 << 20 // of all files, but for those that a failed sync keeps
)

// perSegment is how many bytes of a file there are at least for each segment
// that has lines in it, before it is used again: a sync of each is what it costs.
const perSegment = 64 << 10

// maxUnsynced bounds how much of a segment may be durable in the commit log
// alone, and so what a claimant has to copy; maxRecord what is logged at all:
// the sync of a segment is cheap beside the copy of more.
const (
	maxUnsynced = 2 << 20
	maxRecord   = 256 << 10
)

// A Log is the commit log of a process: one file for the appends of all its
// sessions, so that one sync serves all that arrive while the one before is
// under way. A line is written into its segment first, since a successor looks
// there; after a power cut, or a failed sync of the segment, whoever reads the
// segment lays the log over it.
//
// One goroutine, the committer, writes and syncs. Another, the keeper, syncs in
// the background the segments that have lines in a full file, and makes that
// file ready for use again: nothing is reused that is not durable where it
// belongs, or behind the durable seal of a successor. While no file is ready,
// appends wait.
//
// A log that fails is closed: the segments that have lines in it are synced
// before anybody is told. What comes next uses another file, or none: then each
// append syncs its segment, as it does without a log.
type Log struct {
	holders *Holders
	holder  string
	faults  *Faults
	above   *above         // nil if it could not be opened: then each slot looks for itself
	wake    chan struct{}  // pending is no longer empty
	done    sync.WaitGroup // of the two goroutines

	// Of the committer.
	current *logFile
	buf     []byte
	vain    int           // so many turns of gather in a row were too long
	alone   time.Duration // by the committer's clock: until then commits do without

	mu      sync.Mutex
	change  sync.Cond // of what follows
	closed  bool
	stopped bool // the committer has ended
	pending []entry
	batch   *commit    // of what is pending
	dir     *os.Root   // the holder's folder
	dirs    []*os.Root // all that it has been, to be closed in the end
	free    []*logFile
	full    []*logFile // waiting for the syncs of their segments, oldest first
	pinned  []*logFile // with lines that are nowhere else, until a successor has sealed
	look    bool       // the keeper is to look at those
	making  bool       // the keeper is to make a file
	broken  bool       // none could be made a moment ago
	next    int64      // size of the next file
	total   int64      // of all files but the pinned
}

// An entry is an append that is to be logged.
type entry struct {
	slot   *Slot
	offset int64
	lines  []byte
}

// A commit is what becomes of all entries that shared a sync.
type commit struct {
	done chan struct{}
	err  error
}

// errNoLog says that an append has to make its segment durable itself.
var errNoLog = errors.New("the commit log does not have it")

func newLog(holders *Holders, holder string, sessions *os.Root, faults *Faults) *Log {
	l := &Log{holders: holders, holder: holder, faults: faults, above: openAbove(sessions), wake: make(chan struct{}, 1),
		batch: &commit{done: make(chan struct{})}, next: firstLog}
	if faults != nil && faults.LogSize > 0 {
		l.next = faults.LogSize
	}
	l.change.L = &l.mu
	l.done.Add(2)
	go l.commits()
	go l.keep()
	return l
}

// append makes lines durable in the log that stand in a segment at an offset.
// After an error they are not, or may not be.
func (l *Log) append(s *Slot, offset int64, lines []byte) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errNoLog
	}
	l.pending = append(l.pending, entry{s, offset, lines})
	c, first := l.batch, len(l.pending) == 1
	l.mu.Unlock()
	if first {
		l.wakeUp()
	}
	<-c.done
	return c.err
}

func (l *Log) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// commits is the committer: it takes all that is pending, writes it, syncs, and
// tells those who wait.
func (l *Log) commits() {
	defer l.done.Done()
	var spare []entry
	born := time.Now()
	clock := func() time.Duration { return time.Since(born) }
	for {
		l.gather(clock)
		l.mu.Lock()
		entries, c := l.pending, l.batch
		if len(entries) > 0 {
			l.pending, l.batch = spare[:0], &commit{done: make(chan struct{})}
		}
		closed := l.closed
		l.mu.Unlock()
		switch {
		case len(entries) > 0:
			c.err = l.commit(entries)
			close(c.done)
			clear(entries)
			spare = entries
		case closed:
			l.retire()
			l.mu.Lock()
			l.stopped = true
			l.change.Broadcast()
			l.mu.Unlock()
			return
		default:
			<-l.wake
		}
	}
}

// gather lets those run that are about to append, for as long as each turn brings
// more of them: on a busy machine they would otherwise find the processors taken
// by one small commit after the other. Where one turn after the other takes long
// and brings too few, somebody computes, and for many times as long commits do
// without. A single one says nothing: another process may have had the processor.
func (l *Log) gather(clock func() time.Duration) {
	const maxTurns, each, long, row, pause = 8, time.Millisecond / 5, time.Millisecond, 4, 32
	began := clock()
	if began < l.alone {
		return
	}
	n := 0
	for range maxTurns {
		runtime.Gosched()
		l.mu.Lock()
		more := len(l.pending) - n
		l.mu.Unlock()
		now := clock()
		lost := now - began - time.Duration(more)*each
		if lost < long {
			l.vain = 0
		} else if l.vain++; l.vain >= row {
			l.alone = now + pause*lost
		}
		if n, began = n+more, now; more == 0 || lost >= long {
			return
		}
	}
}

func (l *Log) commit(entries []entry) error {
	l.buf = l.buf[:0]
	for i := range entries {
		e := &entries[i]
		if f := l.current; f != nil && f.place+int64(len(l.buf))+maxRecordLine+int64(len(e.lines)) > f.size {
			if len(l.buf) > 0 {
				if err := l.write(); err != nil {
					return err
				}
			}
			l.retire()
		}
		if l.current == nil && !l.take() {
			return errNoLog
		}
		f := l.current
		l.buf = appendRecord(l.buf, f.id, &record{generation: f.generation, place: f.place + int64(len(l.buf)), synced: f.synced,
			session: e.slot.dir.name, epoch: e.slot.epoch, offset: e.offset}, e.lines)
		f.ends[e.slot] = e.offset + int64(len(e.lines))
	}
	return l.write()
}

// write makes what is in the buffer durable.
func (l *Log) write() error {
	f := l.current
	n, err := l.faults.Written(f.file, l.buf)
	if err == nil {
		err = l.faults.sync(f.file, func() error { return dataSync(f.file) })
	}
	if err == nil && !(leads(f.path, nodeOf(f.info)) && (l.above == nil || leads(l.above.root.Name(), l.above.node))) {
		err = errForeign // a reader would not find it, or the slots must look for themselves
	}
	l.buf = l.buf[:0]
	if err != nil {
		settle(f)
		f.failed = true
		l.retire()
		return err
	}
	f.place += int64(n)
	f.synced = f.place
	return nil
}

// retire gives the file in use to the keeper.
func (l *Log) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		l.full = append(l.full, l.current)
		l.current = nil
		l.change.Broadcast()
	}
}

// take takes a file into use, and waits for one, unless none can be made at the
// moment.
func (l *Log) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.free) == 0 {
		if l.closed || l.broken {
			return false
		}
		l.making = true
		l.change.Broadcast()
		l.change.Wait()
	}
	l.current, l.free = l.free[0], l.free[1:]
	if len(l.free) == 0 { // so that one is ready when this one is full
		l.making = true
		l.change.Broadcast()
	}
	return true
}

// keep is the keeper.
func (l *Log) keep() {
	defer l.done.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.making && !l.closed && l.total+l.next <= allLogs:
			l.make()
		case len(l.full) > 0:
			f := l.full[0]
			l.full = l.full[1:]
			l.unlocked(func() { settle(f) })
			l.settled(f)
		case l.look:
			l.look = false
			l.lookAtPinned()
		case l.stopped:
			return
		default:
			l.change.Wait()
		}
	}
}

// unlocked does something without mu, which the caller holds.
func (l *Log) unlocked(f func()) {
	l.mu.Unlock()
	defer l.mu.Lock()
	f()
}

// make makes a file. The caller holds mu.
func (l *Log) make() {
	var f *logFile
	var err error
	dir, size := l.dir, l.next
	l.unlocked(func() {
		if dir == nil || !l.holders.leadsTo(l.holder, dir) { // somebody has taken it away
			dir, err = l.folder()
		}
		if err == nil {
			if f, err = newLogFile(dir, size, l.faults); err == nil {
				f.path = filepath.Join(l.holders.store.Name(), "holders", l.holder, f.name)
			}
		}
	})
	if l.making = false; dir != nil && dir != l.dir {
		l.dir, l.dirs = dir, append(l.dirs, dir)
	}
	l.change.Broadcast()
	if err != nil {
		l.broken = true // until the next beat
		return
	}
	l.free = append(l.free, f)
	l.total += f.size
	if l.faults == nil || l.faults.LogSize == 0 {
		l.next = min(2*size, maxLog)
	}
}

// folder makes the folder of the holder, with a name that lasts.
func (l *Log) folder() (*os.Root, error) {
	if err := mkdir(l.holders.store, "holders"); err != nil {
		return nil, err
	}
	all, err := openFolder(l.holders.store, "holders")
	if err != nil {
		return nil, err
	}
	defer all.Close()
	if err := mkdir(all, l.holder); err != nil {
		return nil, err
	}
	for _, in := range []*os.Root{all, l.holders.store} {
		if err := syncFolder(in, l.faults); err != nil {
			return nil, err
		}
	}
	return openFolder(all, l.holder)
}

// settled puts a file where it belongs now that its segments were synced, as
// far as they could. The caller holds mu.
func (l *Log) settled(f *logFile) {
	defer l.change.Broadcast()
	small := f.size < maxLog && (l.faults == nil || l.faults.LogSize == 0) && f.size/int64(max(1, len(f.ends))) < perSegment
	for s, end := range f.ends {
		if s.synced.Load() >= end {
			delete(f.ends, s)
		}
	}
	switch {
	case len(f.ends) > 0:
		l.total -= f.size // another may take its place
		l.pinned = append(l.pinned, f)
	case f.failed || small || f.again() != nil:
		l.total -= f.size
		l.making = l.making || small
		l.unlocked(f.remove)
	default:
		l.free = append(l.free, f)
	}
}

// tick is called at every beat: it lets the keeper look whether what is pinned
// is still needed, and try anew to make a file.
func (l *Log) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = false
	if len(l.pinned) > 0 {
		l.look = true
		l.change.Broadcast()
	}
}

func (l *Log) lookAtPinned() {
	list := l.pinned
	l.pinned = nil
	for _, f := range list {
		l.unlocked(func() {
			for s := range f.ends {
				if l.holders.superseded(s.dir.name, s.epoch, l.faults) {
					delete(f.ends, s)
				}
			}
		})
		if len(f.ends) == 0 {
			l.unlocked(f.remove)
		} else {
			l.pinned = append(l.pinned, f)
		}
	}
}

// settle syncs every segment that has lines in a file.
func settle(f *logFile) {
	var work sync.WaitGroup
	turns := make(chan struct{}, 8) // the journal of a file system takes several into one of its commits
	for s, end := range f.ends {
		if s.synced.Load() < end {
			turns <- struct{}{}
			work.Go(func() {
				_ = s.settle() // the slot keeps the error
				<-turns
			})
		}
	}
	work.Wait()
}

// close ends the log. What every segment has is removed; the rest stays for
// those who read.
func (l *Log) close() {
	l.mu.Lock()
	l.closed = true
	l.change.Broadcast()
	l.mu.Unlock()
	l.wakeUp()
	l.done.Wait()
	for _, f := range l.free {
		f.remove()
	}
	for _, f := range l.pinned {
		f.close()
	}
	for _, dir := range l.dirs {
		dir.Close()
	}
	if l.above != nil {
		l.above.close()
	}
}
