package journal_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// A scenario is a session in which everything goes wrong that a seed can think
// of, with the power cut after every step of it.
type scenario struct {
	t      *testing.T
	r      *rand.Rand
	store  *journal.Files
	faults *journaltest.Faults
	told   []schema.Head
	step   int // of the scenario, told when something is wrong

	over bool       // no more is cut
	mu   sync.Mutex // a commit log passes its points beside all else
	log  *rand.Rand // the choices there

	now     *journal.Journal // who has the session, if anybody
	zombies []*journal.Journal
	forced  bool // the newest claim was forced, or is not sealed: no force above it

	appends int // handed over and not answered
	cuts
}

// cuts are how often the power was cut, how often of these an append was handed
// over and not answered, and how often of those something was there that no
// sync had stored.
type cuts struct{ all, count, lossy int }

func (c cuts) String() string {
	return fmt.Sprintf("%d cuts, %d of them count, %d of those with something unsynced", c.all, c.count, c.lossy)
}

func (c *cuts) add(handed bool, bytes, names int) {
	if c.all++; handed {
		if c.count++; bytes+names > 0 {
			c.lossy++
		}
	}
}

// after checks what an image of the disk must hold, and that the session can
// be opened twice in a row from there. In memory when speed matters more.
func after(t *testing.T, store journal.Store, told []schema.Head, where func() string) {
	t.Helper()
	sound := func(when string) bool {
		l, err := journaltest.Read(store, "s1", journal.ScanOptions{Blobs: when == "before"})
		if err != nil {
			if len(told) > 0 || when != "before" {
				t.Errorf("%s: %s: %v", where(), when, err)
				return false
			}
			return true // there is no session yet
		}
		if gone := l.Missing(told); len(gone) > 0 {
			t.Errorf("%s: %s: acknowledged and not there: %v", where(), when, gone)
		}
		if l.FirstError != nil {
			t.Errorf("%s: %s: %v", where(), when, *l.FirstError)
		}
		return !t.Failed()
	}
	if !sound("before") {
		return
	}
	for _, when := range []string{"after the first opening", "after the second"} {
		j, err := journal.Open(ctx, store, "s1", journaltest.Options())
		if err != nil {
			t.Errorf("%s: %s: %v", where(), when, err)
			return
		}
		records, err := j.Append(ctx, journaltest.Note("goes on"))
		if err != nil {
			t.Errorf("%s: %s: %v", where(), when, err)
		}
		for _, r := range records {
			told = append(told[:len(told):len(told)], r.Head())
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		if !sound(when) {
			return
		}
	}
}

func (s *scenario) cut(point string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.t.Failed() {
		return
	}
	disk := s.faults.Disk(s.t, s.store)
	bytes, names := disk.Lost()
	s.cuts.add(s.appends > 0, bytes, names)
	r := s.r
	if s.log != nil {
		r = s.log
	}
	img := disk.Random(r)
	where := func() string {
		kept := img.Files(s.t)
		journaltest.Keep(s.t, kept.Dir())
		return fmt.Sprintf("step %d, at %s, %d bytes and %d names not synced", s.step, point, bytes, names)
	}
	if r.IntN(8) > 0 && !img.Logged() {
		after(s.t, img.Memory(), s.told, where)
		return
	}
	store, faults := journaltest.FaultyEither(img.Files(s.t), r.IntN(8) == 0)
	faults.LeaveOutSync() // the image itself need not last
	after(s.t, store, s.told, where)
}

func (s *scenario) tell(records ...journal.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.told = append(s.told, r.Head())
	}
}

func (s *scenario) tellHead(h schema.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, h)
}

func (s *scenario) hand(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.appends += n
}

// open opens the session, past a holder if force is set. What a fault makes of
// that is no matter, as long as the log is sound.
func (s *scenario) open(force bool) {
	opt := journaltest.Options()
	opt.Force, opt.Reason = force, "the test says so"
	j, err := journal.Open(ctx, s.store, "s1", opt)
	if err != nil {
		s.forced = true // perhaps; the next opening need not force
		return
	}
	s.tellHead(j.Head())
	s.now, s.forced = j, force
}

func (s *scenario) append(j *journal.Journal) (ok bool) {
	notes := make([]journal.Entry, 1+s.r.IntN(3))
	for i := range notes {
		notes[i] = journaltest.Note(fmt.Sprintf("%0*d", 1+s.r.IntN(900), s.step))
	}
	if s.r.IntN(16) == 0 { // a value that becomes a blob; now and then one that is there already
		notes[0] = journaltest.Note(fmt.Sprintf("%0*d", 300<<10, s.r.IntN(3)))
	}
	s.hand(1)
	records, err := j.Append(ctx, notes...)
	s.hand(-1)
	s.tell(records...)
	return err == nil
}

func (s *scenario) close(j *journal.Journal) {
	if j != nil {
		if err := j.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

func (s *scenario) run(steps int) {
	s.faults.Each(s.cut)
	defer func() {
		for _, j := range append(s.zombies, s.now) {
			s.close(j)
		}
	}()
	for step := 1; step <= steps && !s.t.Failed(); step++ {
		s.mu.Lock()
		s.step = step
		s.mu.Unlock()
		if s.now == nil {
			s.open(false)
			continue
		}
		if s.log != nil { // one of those that a log has too, now and then
			switch n := 1 + s.r.IntN(3); s.r.IntN(40) {
			case 0:
				s.faults.FailLog(journaltest.LogWrite, n, journaltest.ErrDisk)
			case 1:
				s.faults.ShortLog(n, s.r.IntN(1200), journaltest.ErrDisk)
			case 2:
				s.faults.FailLog(journaltest.LogSync, n, journaltest.ErrDisk)
			case 3, 4:
				s.faults.CacheLog(n, journaltest.ErrDisk)
			case 5:
				s.faults.FailLog(journaltest.LogMake, n, journaltest.ErrDisk)
			case 6, 7:
				s.faults.CacheSync(n, journaltest.ErrDisk)
			}
		}
		switch op := s.r.IntN(16); op {
		default:
			if !s.append(s.now) {
				s.close(s.now)
				s.now = nil
			}
		case 0:
			if s.now.Release(ctx, "done") == nil {
				s.tellHead(s.now.Head())
			}
			s.now = nil
		case 1: // it dies, twice
			s.close(s.now)
			s.open(false)
			s.close(s.now)
			s.now = nil
		case 2:
			if !s.forced {
				s.zombies, s.now = append(s.zombies, s.now), nil
				s.open(true)
			}
		case 3, 4:
			for _, j := range s.zombies {
				s.append(j)
			}
		case 5:
			s.faults.FailWrite(1+s.r.IntN(3), journaltest.ErrDisk)
		case 6:
			s.faults.ShortWrite(1+s.r.IntN(3), s.r.IntN(1200), journaltest.ErrDisk)
		case 7:
			s.faults.FailSync(1+s.r.IntN(6), journaltest.ErrDisk)
		case 8:
			s.faults.LoseSync(1+s.r.IntN(6), journaltest.ErrDisk)
		case 9: // somebody claims and dies
			epoch := newest(s.t, s.store) + 1
			if w, err := s.store.Claim(ctx, "s1", epoch, header(s.t, "s1", epoch)); err == nil {
				if err := w.Release(); err != nil {
					s.t.Error(err)
				}
			}
			s.forced = true
		}
	}
	s.cut("the end")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true // images are removed before the store is closed
}

func TestPowerCutAnywhereInRandomScenarios(t *testing.T) {
	journaltest.Either(t, randomScenarios)
}

func randomScenarios(t *testing.T, logged bool) {
	seed := journaltest.Seed(t)
	// So many cuts in which an append could lose something; a scenario has some
	// 40 of them, and a poor one has none.
	least := journaltest.Amount(150, 1000, 5000)
	if logged { // of which every image is read from files
		least = journaltest.Amount(100, 500, 5000)
	}
	var told, n int
	var sum cuts
	t.Run("scenarios", func(t *testing.T) {
		for ; sum.lossy < least && n < 50+least/4 && !t.Failed(); n++ {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				s := &scenario{t: t, r: journaltest.Rand(seed, n)}
				files := journaltest.Files(t)
				journaltest.Keep(t, files.Dir())
				s.store, s.faults = journaltest.FaultyEither(files, logged)
				if logged {
					s.log = journaltest.Rand(seed, n, "log")
				}
				s.run(30)
				s.mu.Lock()
				defer s.mu.Unlock()
				told += len(s.told)
				sum = cuts{sum.all + s.all, sum.count + s.count, sum.lossy + s.lossy}
			})
		}
	})
	if sum.lossy < least && !t.Failed() {
		t.Errorf("in %d scenarios only %d cuts could lose anything", n, sum.lossy)
	}
	journaltest.Tried("power, in random scenarios, commit log %t: %d scenarios, %s, %d acknowledged records, seed %d", logged, n, sum, told, seed)
}

// Every step of a session of three epochs and a claim that died, and after
// each every state that the disk may be in.
func TestPowerCutAtEveryStepInEveryWay(t *testing.T) {
	journaltest.Either(t, everyStep)
}

func everyStep(t *testing.T, logged bool) {
	store, faults := journaltest.FaultyEither(journaltest.Files(t), logged)
	step, each := journaltest.Amount(197, 29, 5), 1
	if logged { // of which every image is read from files: not all of them then
		step, each = journaltest.Amount(1009, 499, 97), journaltest.Amount(97, 47, 5)
	}
	var mu sync.Mutex // a commit log passes its points beside all else
	var told []schema.Head
	var sum cuts
	var steps, images int
	handed := false
	faults.Each(func(point string) {
		mu.Lock()
		defer mu.Unlock()
		steps++
		disk := faults.Disk(t, store)
		bytes, names := disk.Lost()
		disk.All(step, func(img journaltest.Image) {
			if images++; t.Failed() || images%each != 0 {
				return
			}
			sum.add(handed, bytes, names)
			where := func() string {
				kept := img.Files(t)
				journaltest.Keep(t, kept.Dir())
				return fmt.Sprintf("step %d, at %s", steps, point)
			}
			if !img.Logged() {
				after(t, img.Memory(), told, where)
				return
			}
			files := img.Files(t)
			store, faults := journaltest.Faulty(files)
			faults.LeaveOutSync() // the image itself need not last
			after(t, store, told, where)
			must(t, files.Close())
			must(t, os.RemoveAll(files.Dir()))
		})
	})
	hand := func(now bool) {
		mu.Lock()
		defer mu.Unlock()
		handed = now
	}
	write := func(j *journal.Journal, notes ...journal.Entry) {
		hand(true)
		records, _ := j.Append(ctx, notes...)
		hand(false)
		mu.Lock()
		defer mu.Unlock()
		for _, r := range records {
			told = append(told, r.Head())
		}
	}
	open := func() *journal.Journal {
		j, err := journal.Open(ctx, store, "s1", journaltest.Options())
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		told = append(told, j.Head())
		return j
	}
	j := open()
	write(j, journaltest.Note("a"), journaltest.Note("b"))
	write(j, journaltest.Note("c"))
	faults.FailLog(journaltest.LogSync, 1, journaltest.ErrDisk)
	faults.LoseSync(1, journaltest.ErrDisk)
	write(j, journaltest.Note("its sync fails"))
	if logged { // of whose lines the disk has none yet
		write(j, journaltest.Note("in the next file"))
	}
	must(t, j.Close())
	faults.FailSync(5, journaltest.ErrDisk) // of its seal
	if j, err := journal.Open(ctx, store, "s1", journaltest.Options()); err == nil {
		must(t, j.Close())
	}
	claimAndDie(t, store, "s1", newest(t, store)+1)
	j = open()
	write(j, journaltest.Note("d"))
	must(t, j.Release(ctx, "done"))
	mu.Lock()
	told = append(told, j.Head())
	mu.Unlock()
	faults.Each(nil)
	mu.Lock()
	defer mu.Unlock()
	if least := 40; steps < least {
		t.Errorf("there were only %d steps", steps)
	}
	journaltest.Tried("power, at every step of three epochs, commit log %t: %d steps, %s, every file end that is a multiple of %d, each %d. of those", logged, steps, sum, step, each)
}

func newest(t *testing.T, store journal.Store) uint64 {
	t.Helper()
	segments, err := store.Segments(ctx, "s1")
	if err != nil {
		t.Fatal(err)
	}
	return segments[len(segments)-1].Epoch
}
