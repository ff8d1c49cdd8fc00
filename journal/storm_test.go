package journal_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

// In a storm real processes write, and are killed, stopped and superseded at
// random instants. What they have said is what somebody was told. A kill or a
// stop counts only if an append was under way: handed over and not answered.

// totals are what all storms together have tried.
type totals struct {
	sync.Mutex
	sessions, told, kills, killsCount, stops, stopsCount, forced, views int
}

// A storm goes over one session.
type storm struct {
	t     *testing.T
	store *journal.Files
	plain func() bool // whether the next process has no commit log
	live  []*journaltest.Storm
	all   []*journaltest.Storm
}

func (s *storm) start(force bool) {
	p := journaltest.StartStormer(s.t, journaltest.Stormer{Dir: s.store.Dir(), Again: true, Plain: s.plain()})
	s.live, s.all = append(s.live, p), append(s.all, p)
	p.Write("s1", force)
}

// holder is the place among the living of one that appends, the first if none
// does.
func (s *storm) holder() int {
	for i, p := range s.live {
		if p.Unanswered() {
			return i
		}
	}
	return 0
}

// progress waits until somebody has appended.
func (s *storm) progress() {
	s.t.Helper()
	before := make([]uint64, len(s.live))
	for i, p := range s.live {
		before[i] = p.Handed()
	}
	for late := time.Now().Add(journaltest.Deadline); ; time.Sleep(100 * time.Microsecond) {
		for i, p := range s.live {
			if p.Handed() > before[i]+1 {
				return
			}
		}
		if time.Now().After(late) {
			s.t.Fatal("nobody writes any more")
		}
	}
}

func (s *storm) over(seed uint64, n, rounds int, total *totals) {
	t, r := s.t, journaltest.Rand(seed, "storm", n)
	plain := journaltest.Rand(seed, "plain", n)
	s.plain = func() bool { return plain.IntN(3) == 0 }
	pause := func(most int) { time.Sleep(time.Duration(r.IntN(most)) * time.Microsecond) }
	view := journaltest.Start(t, "viewer", journaltest.Viewer{Dir: s.store.Dir(), Session: "s1"})
	s.start(false)
	s.start(false)
	var sum totals
	polite := 0 // take-overs since the last forced one: to force twice in a row takes its time
	for range rounds {
		s.progress()
		pause(2000)
		i := s.holder()
		p := s.live[i]
		if r.IntN(3) > 0 {
			p.Kill()
			sum.kills++
			if p.Unanswered() {
				sum.killsCount++
			}
			s.live = append(s.live[:i:i], s.live[i+1:]...)
			polite++
			if len(s.live) < 2 {
				s.start(false)
			}
			continue
		}
		p.Stop()
		sum.stops++
		if p.Unanswered() {
			sum.stopsCount++
		}
		if r.IntN(2) == 0 {
			view.Stop()
		}
		if polite > 1 {
			s.start(true)
			polite = 0
			sum.forced++
			pause(20000) // it may claim meanwhile, or later
		}
		pause(3000)
		p.Continue()
		view.Continue()
	}
	for _, p := range s.live {
		p.Kill()
	}
	view.Kill()
	var told []schema.Head
	for _, p := range s.all {
		told = append(told, p.Acknowledged()...)
	}
	l := journaltest.Verify(t, s.store, "s1")
	if gone := l.Missing(told); len(gone) > 0 {
		t.Errorf("%d of %d acknowledged are not there: %v", len(gone), len(told), gone[0])
	}
	views := view.Heads("view")
	if gone := l.Missing(views); len(gone) > 0 {
		t.Errorf("%d of %d views of a reader are no beginning of the log: %v", len(gone), len(views), gone[0])
	}
	for _, line := range view.Lines() {
		if strings.HasPrefix(line, "bad ") {
			t.Error("a reader saw:", line)
			break
		}
	}
	journaltest.Append(t, journaltest.Open(t, s.store, "s1"), journaltest.Note("goes on"))
	total.Lock()
	defer total.Unlock()
	total.sessions++
	total.told += len(told)
	total.kills += sum.kills
	total.killsCount += sum.killsCount
	total.stops += sum.stops
	total.stopsCount += sum.stopsCount
	total.forced += sum.forced
	total.views += len(views)
}

func TestStormOfKillsAndStops(t *testing.T) {
	seed := journaltest.Seed(t)
	least := journaltest.Amount(10, 150, 2200) // kills that count
	var total totals
	for n := 0; total.killsCount < least && !t.Failed(); n += 2 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for i := range 2 {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					t.Parallel()
					s := &storm{t: t, store: journaltest.Files(t)}
					journaltest.Keep(t, s.store.Dir())
					s.over(seed, n+i, min(least, 40), &total)
				})
			}
		})
	}
	journaltest.Tried("storm, one process in three without a commit log: %d sessions, %d kills, %d of them count, %d stops, %d count, %d forced take-overs, %d reader views, %d acknowledged records, seed %d",
		total.sessions, total.kills, total.killsCount, total.stops, total.stopsCount, total.forced, total.views, total.told, seed)
}

// superseded lets one child write into one session after another. Each is
// taken from it while it writes, and, if it is to be stopped, while it stands;
// what it then says must be true.
type superseded struct {
	t     *testing.T
	store *journal.Files
	child *journaltest.Storm

	rounds, count, told, lost, surplus int
}

func supersede(t *testing.T, noCheck, logged bool) *superseded {
	s := &superseded{t: t, store: journaltest.Files(t)}
	journaltest.Keep(t, s.store.Dir())
	s.child = journaltest.StartStormer(t, journaltest.Stormer{Dir: s.store.Dir(), NoCheck: noCheck, Plain: !logged})
	return s
}

func (s *superseded) round(session string, stop bool, wait time.Duration, noCheck bool) {
	t, c := s.t, s.child
	c.Write(session, false)
	for began := c.Handed(); c.Handed() < began+3; {
		time.Sleep(50 * time.Microsecond)
	}
	time.Sleep(wait)
	if stop {
		c.Stop()
	}
	s.rounds++
	if c.Unanswered() {
		s.count++
	}
	opt := journaltest.Options()
	opt.Force, opt.Reason = true, "the test says so"
	next, err := journal.Open(ctx, s.store, session, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	told := []schema.Head{next.Head()}
	told = append(told, journaltest.Append(t, next, journaltest.Note("mine"))[0].Head())
	if stop {
		c.Continue()
	}
	if noCheck {
		for began := c.Handed(); c.Handed() < began+3; {
			time.Sleep(50 * time.Microsecond)
		}
		c.Kill()
		told = append(told, c.Acknowledged()...)
	} else {
		lines := c.Take("end")
		for _, line := range lines {
			first, rest, _ := strings.Cut(line, " ")
			if first == "end" {
				if err := schema.ParseEnvelope([]byte(rest)); !errors.Is(err, schema.SessionWriterLost) {
					t.Errorf("the superseded writer ended in %v", err)
				}
				continue
			}
			h, err := schema.ParseHead(rest)
			if err != nil {
				t.Fatal(err)
			}
			told = append(told, h)
		}
	}
	told = append(told, journaltest.Append(t, next, journaltest.Note("undisturbed"))[0].Head())
	l := journaltest.Verify(t, s.store, session)
	s.lost += len(l.Missing(told))
	s.told += len(told)
	s.surplus += l.Count(schema.Surplus) + l.Count(schema.TornTail)
}

func TestStormOfZombies(t *testing.T) {
	seed := journaltest.Seed(t)
	journaltest.Either(t, func(t *testing.T, logged bool) {
		for _, stop := range []bool{true, false} {
			name := map[bool]string{true: "stopped", false: "living"}[stop]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := journaltest.Rand(seed, name, logged)
				least := journaltest.Amount(10, 250, 1100)
				s := supersede(t, false, logged)
				for n := 0; s.count < least && !t.Failed(); n++ {
					s.round(fmt.Sprint("s", n), stop, time.Duration(r.IntN(300))*time.Microsecond, false)
					if s.lost > 0 {
						t.Errorf("round %d: acknowledged and not there: %d", n, s.lost)
					}
				}
				journaltest.Tried("superseded while %s, commit log %t: %d rounds, %d of them count, %d left surplus, %d acknowledged records, seed %d",
					name, logged, s.rounds, s.count, s.surplus, s.told, seed)
			})
		}
	})
}

// Without the check before the answer the same rounds must lose something.
func TestStormNoticesAMissingCheck(t *testing.T) {
	journaltest.Either(t, func(t *testing.T, logged bool) {
		for _, stop := range []bool{true, false} {
			// Whether one is lost in a round is a matter of who is faster, so it has
			// several.
			var s *superseded
			for n := 0; n < 20 && (n == 0 || s.lost == 0); n++ {
				s = supersede(t, true, logged)
				s.round("s1", stop, 0, true)
			}
			if s.lost == 0 {
				t.Errorf("stopped %t: nothing is lost without the check", stop)
			}
			journaltest.Tried("superseded without the check, commit log %t: %d of %d acknowledged records are not in the log", logged, s.lost, s.told)
		}
	})
}
