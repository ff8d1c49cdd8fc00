package lease_test

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"steno/lease"
	"steno/schema"
)

// seen is evidence as most of these tests have it: a sealed segment of a holder
// on this machine, whose beat is by our clock.
func seen(change func(*lease.Evidence)) lease.Evidence {
	clock := lease.Clock{BootID: "boot", TimeNS: "time:[1]", Nanos: int64(24 * time.Hour)}
	e := lease.Evidence{Epoch: 2, Holder: &schema.Holder{ID: "h1", Host: "here", BootID: "boot", PID: 7, Program: "p"},
		Sealed: true, Host: "here", Here: clock, Beat: &lease.Beat{Holder: "h1", Clock: clock, Count: 9}}
	change(&e)
	return e
}

func age(e *lease.Evidence, d time.Duration) { e.Beat.Nanos = e.Here.Nanos - int64(d) }

func TestS3TheStateFollowsFromTheEvidence(t *testing.T) {
	type ev = *lease.Evidence
	const (
		active    = schema.SessionWriterActive
		stale     = schema.SessionWriterStale
		ambiguous = schema.SessionWriterAmbiguous
	)
	for _, c := range []struct {
		name      string
		change    func(e ev)
		state     lease.State
		kind      schema.Kind
		undecided bool
	}{
		{"no segment", func(e ev) { *e = lease.Evidence{} }, lease.Available, "", false},
		{"released", func(e ev) { e.Released = true }, lease.Available, "", false},
		{"released, and its holder beats on for other sessions", func(e ev) { e.Released = true; e.Moved = true }, lease.Available, "", false},
		{"released a moment ago, the lock still held", func(e ev) { e.Released, e.Held = true, true }, lease.Active, active, false},

		{"held, a young beat", func(e ev) { e.Held = true; age(e, 800*time.Millisecond) }, lease.Active, active, false},
		{"held, a beat just inside the window", func(e ev) { e.Held = true; age(e, lease.Window-1) }, lease.Active, active, false},
		{"held, a beat as old as the window", func(e ev) { e.Held = true; age(e, lease.Window) }, lease.Ambiguous, ambiguous, false},
		{"held, an old beat: stopped, hung", func(e ev) { e.Held = true; age(e, 8*time.Hour) }, lease.Ambiguous, ambiguous, false},
		{"held, an old beat that has moved: it woke up", func(e ev) { e.Held = true; age(e, 8*time.Hour); e.Moved = true }, lease.Active, active, false},
		{"our pid and start time in the claim mean nothing", func(e ev) {
			e.Held = true
			h := lease.Self("p")
			h.ID = "h1"
			e.Holder = &h
			age(e, 8*time.Hour)
		}, lease.Ambiguous, ambiguous, false},

		{"held, another time namespace", func(e ev) { e.Held = true; e.Beat.TimeNS = "time:[2]"; age(e, 8*time.Hour) }, lease.Active, active, true},
		{"held, another boot", func(e ev) { e.Held = true; e.Beat.BootID = "other" }, lease.Active, active, true},
		{"held, no boot id on either side", func(e ev) { e.Held = true; e.Beat.BootID, e.Here.BootID = "", "" }, lease.Active, active, true},
		{"held, a beat from the future", func(e ev) { e.Held = true; age(e, -time.Second) }, lease.Active, active, true},
		{"held, a beat of before the clock began", func(e ev) { e.Held = true; e.Beat.Nanos = -1 }, lease.Active, active, true},
		{"held, no beat", func(e ev) { e.Held = true; e.Beat = nil }, lease.Active, active, true},
		{"held, another holder's beat", func(e ev) { e.Held = true; e.Beat.Holder = "h2" }, lease.Active, active, true},
		{"the same, watched in vain", func(e ev) { e.Held = true; e.Beat.Holder = "h2"; e.Watched = lease.Window }, lease.Ambiguous, ambiguous, false},
		{"no beat, watched in vain", func(e ev) { e.Held = true; e.Beat = nil; e.Watched = lease.Window }, lease.Ambiguous, ambiguous, false},
		{"no beat, watched for too short", func(e ev) { e.Held = true; e.Beat = nil; e.Watched = lease.Window - 1 }, lease.Active, active, true},
		{"another clock, moved", func(e ev) { e.Held = true; e.Beat.BootID = "other"; e.Moved = true }, lease.Active, active, false},

		{"free, the beat a moment old", func(e ev) { age(e, 100*time.Millisecond) }, lease.Stale, stale, false},
		{"free, the beat old", func(e ev) { age(e, time.Hour) }, lease.Stale, stale, false},
		{"free, no beat", func(e ev) { e.Beat = nil }, lease.Stale, stale, false},
		{"free, never sealed", func(e ev) { e.Sealed = false }, lease.Stale, stale, false},

		{"held, not sealed yet", func(e ev) { e.Held, e.Sealed = true, false }, lease.Ambiguous, ambiguous, true},
		{"held, not sealed for the window", func(e ev) { e.Held, e.Sealed, e.Watched = true, false, lease.Window }, lease.Ambiguous, ambiguous, false},
		{"held, not sealed, stopped", func(e ev) { e.Held, e.Sealed = true, false; age(e, time.Minute) }, lease.Ambiguous, ambiguous, false},

		{"unreadable, free", func(e ev) { e.Holder = nil; e.Sealed = false }, lease.Ambiguous, ambiguous, false},
		{"unreadable, held", func(e ev) { e.Holder = nil; e.Held = true }, lease.Ambiguous, ambiguous, false},
		{"newer", func(e ev) { e.Holder, e.Newer = nil, true }, lease.Ambiguous, schema.UnsupportedSchemaVersion, false},

		{"foreign storage, another host, free", func(e ev) { e.Untrusted, e.Host = true, "there"; age(e, time.Hour) }, lease.Ambiguous, ambiguous, false},
		{"foreign storage, another boot, not watched", func(e ev) { e.Untrusted, e.Here.BootID = true, "other" }, lease.Ambiguous, ambiguous, true},
		{"foreign storage, another boot, it moves", func(e ev) { e.Untrusted, e.Here.BootID, e.Moved = true, "other", true }, lease.Active, active, false},
		{"foreign storage, released there", func(e ev) { e.Untrusted, e.Host, e.Released = true, "there", true }, lease.Available, "", false},
		{"foreign storage, our own machine", func(e ev) { e.Untrusted = true }, lease.Stale, stale, false},
	} {
		st := seen(c.change).Status()
		if st.State != c.state || st.Kind != c.kind || st.Undecided != c.undecided {
			t.Errorf("%s: %s (%s), undecided %t; want %s (%s), %t", c.name, st.State, st.Kind, st.Undecided, c.state, c.kind, c.undecided)
		}
		if st.Observed() == "" || st.Next("s1") == "" {
			t.Errorf("%s: observed %q, next %q", c.name, st.Observed(), st.Next("s1"))
		}
		err := st.Err("s1")
		if refused := c.state == lease.Active || c.state == lease.Ambiguous; refused != (err != nil) || refused && schema.KindOf(err) != c.kind {
			t.Errorf("%s: the refusal is %v", c.name, err)
		}
		if err != nil && (schema.AsError(err).Details["observed"] != st.Observed() || schema.AsError(err).Details["next"] != st.Next("s1")) {
			t.Errorf("%s: the refusal says %v", c.name, schema.AsError(err).Details)
		}
	}
}

// A living holder is never taken for dead, whatever else is seen of it: its
// silence is ambiguous. And a dead one never for alive.
func TestAHeldLockIsNeverStaleAndAFreeOneNeverActive(t *testing.T) {
	n := 0
	for bits := range 1 << 8 {
		for _, watched := range []time.Duration{0, lease.Window} {
			bit := func(i int) bool { return bits>>i&1 == 1 }
			st := seen(func(e *lease.Evidence) {
				e.Sealed, e.Forced, e.Released, e.Held, e.Moved, e.Watched = bit(0), bit(1), bit(2), bit(3), bit(4), watched
				if bit(5) {
					age(e, time.Hour)
				}
				if bit(6) {
					e.Beat = nil
				}
				if bit(7) {
					e.Holder = nil
				}
			}).Status()
			n++
			if st.Held && (st.State == lease.Stale || st.State == lease.Available) || !st.Held && st.State == lease.Active || st.State == lease.Lost {
				t.Errorf("%+v", st)
			}
			if watched >= lease.Window && st.Undecided {
				t.Errorf("watched for the window and undecided: %+v", st)
			}
		}
	}
	if n != 512 {
		t.Errorf("%d", n)
	}
}

func TestWhatIsSaidOfAHungHolderNamesItAndTheNextStep(t *testing.T) {
	e := seen(func(e *lease.Evidence) { e.Held = true; age(e, 8*time.Hour) })
	err := schema.AsError(e.Status().Err("s1"))
	for key, want := range map[string]any{
		"holder": "h1", "host": "here", "pid": 7, "epoch": uint64(2), "beat_age_ms": (8 * time.Hour).Milliseconds(),
		"observed": "the lock is held, and the holder's last beat is 8h0m0s old",
		"next":     "end process 7 on its host, or wake it up, or run: steno lease force s1 --reason WHY",
	} {
		if err.Details[key] != want {
			t.Errorf("%s is %v, want %v", key, err.Details[key], want)
		}
	}
	if next := e.Status().Next("$(reboot)"); strings.Contains(next, "reboot") {
		t.Errorf("a hostile id is to be pasted: %s", next)
	}
}

func TestASegmentSaysWhetherItIsSealedForcedAndReleased(t *testing.T) {
	claim, holder := header(t, 1)
	seal := func(how string) []byte {
		e := schema.Event{Session: "s1", Seq: 1, Epoch: 1, Time: time.Now(), Type: schema.TypeWriterOpened, Data: (&schema.Seal{Claim: "c", How: how}).Data()}
		return e.Append(nil)
	}
	note, released := event("s1", 1, schema.TypeNote), event("s1", 1, schema.TypeWriterReleased)
	flipped := bytes.Replace(seal(schema.HowForced), []byte("forced"), []byte("farced"), 1)
	long := append(bytes.Repeat([]byte("x"), schema.MaxLine+1), '\n')
	for _, c := range []struct {
		name                     string
		lines                    [][]byte
		claim                    bool
		sealed, forced, released bool
	}{
		{"nothing", nil, false, false, false, false},
		{"a claim", [][]byte{claim}, true, false, false, false},
		{"half a claim", [][]byte{claim[:len(claim)-1]}, false, false, false, false},
		{"sealed", [][]byte{claim, seal("new")}, true, true, false, false},
		{"forced", [][]byte{claim, seal("forced"), note}, true, true, true, false},
		{"half a seal", [][]byte{claim, seal("forced")[:80]}, true, false, false, false},
		{"a damaged seal and a sound event", [][]byte{claim, flipped, note}, true, true, false, false},
		{"carried lines before the seal", [][]byte{claim, event("s1", 2, schema.TypeNote), seal("forced")}, true, true, true, false},
		{"a line that is too long before the end", [][]byte{claim, long, released}, true, true, false, true},
		{"only lines that are none of this session", [][]byte{claim, event("s2", 1, schema.TypeNote), long, event("s2", 1, schema.TypeNote)}, true, false, false, false},
		{"released", [][]byte{claim, seal("new"), released}, true, true, false, true},
		{"damage where the claim was", [][]byte{[]byte("x\n"), seal("new"), released}, false, true, false, true},
		{"blank lines", [][]byte{claim, bytes.Repeat([]byte("\n"), 1000), seal("new")}, true, true, false, false},
	} {
		b := bytes.Join(c.lines, nil)
		e, err := lease.ReadSegment("s1", 1, bytes.NewReader(b), int64(len(b)))
		if err != nil || (e.Holder != nil) != c.claim || e.Sealed != c.sealed || e.Forced != c.forced || e.Released != c.released || e.Newer || e.Held {
			t.Errorf("%s: %+v, %v", c.name, e, err)
		}
		if c.claim && *e.Holder != holder {
			t.Errorf("%s: the holder is %+v", c.name, e.Holder)
		}
	}
}

// These tests run on a clock of their own, which moves when all wait.

func observe(t *testing.T, look func(since time.Duration) lease.Evidence) (st lease.Status, took time.Duration) {
	began := time.Now()
	st, err := lease.Observe(t.Context(), func() (lease.Status, error) { return look(time.Since(began)).Status(), nil })
	must(t, err)
	return st, time.Since(began)
}

func TestAHolderWhoseClockIsNotOursIsWatched(t *testing.T) {
	other := func(count uint64) lease.Evidence {
		return seen(func(e *lease.Evidence) { e.Held, e.Beat.BootID, e.Beat.Count = true, "other", count })
	}
	for _, c := range []struct {
		name  string
		look  func(since time.Duration) lease.Evidence
		state lease.State
		least time.Duration
		most  time.Duration
	}{
		{"it beats", func(since time.Duration) lease.Evidence { return other(uint64(since / lease.Interval)) }, lease.Active, lease.Interval, lease.Interval + time.Second},
		{"it stands still", func(time.Duration) lease.Evidence { return other(1) }, lease.Ambiguous, lease.Window, lease.Window + time.Second},
		{"it begins to beat", func(since time.Duration) lease.Evidence {
			e := other(1)
			if since < 5*time.Second {
				e.Beat = nil
			}
			return e
		}, lease.Active, 5 * time.Second, 6 * time.Second},
		{"its beat is taken away", func(since time.Duration) lease.Evidence {
			e := other(1)
			if since > 5*time.Second {
				e.Beat = nil
			}
			return e
		}, lease.Ambiguous, lease.Window, lease.Window + time.Second},
		{"it dies", func(since time.Duration) lease.Evidence {
			e := other(1)
			e.Held = since < 3*time.Second
			return e
		}, lease.Stale, 3 * time.Second, 4 * time.Second},
		{"another comes", func(since time.Duration) lease.Evidence {
			e := other(1)
			if since > 6*time.Second {
				e.Epoch, e.Holder.ID = 3, "h2"
			}
			return e
		}, lease.Ambiguous, 6*time.Second + lease.Window, 7*time.Second + lease.Window},
		{"others come and come", func(since time.Duration) lease.Evidence {
			e := other(1)
			e.Epoch = uint64(since / time.Second)
			e.Epoch++
			return e
		}, lease.Active, 2 * lease.Window, 2*lease.Window + time.Second},
		{"it is sealed", func(since time.Duration) lease.Evidence {
			return seen(func(e *lease.Evidence) { e.Held, e.Sealed = true, since > 4*time.Second })
		}, lease.Active, 4 * time.Second, 5 * time.Second},
		{"it is never sealed", func(since time.Duration) lease.Evidence {
			return seen(func(e *lease.Evidence) { e.Held, e.Sealed = true, false })
		}, lease.Ambiguous, lease.Window, lease.Window + time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			st, took := observe(t, c.look)
			if st.State != c.state || took < c.least || took > c.most {
				t.Errorf("%s: %s after %s; want %s after %s to %s", c.name, st.State, took, c.state, c.least, c.most)
			}
			if st.Undecided != (c.name == "others come and come") {
				t.Errorf("%s: undecided %t", c.name, st.Undecided)
			}
		})
	}
}

func TestWatchingEndsWithItsContextAndWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		silent := seen(func(e *lease.Evidence) { e.Held, e.Beat = true, nil })
		began := time.Now()
		_, err := lease.Observe(ctx, func() (lease.Status, error) { return silent.Status(), nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		disk := errors.New("the disk says no")
		n := 0
		_, err = lease.Observe(t.Context(), func() (lease.Status, error) {
			if n++; n == 3 {
				return lease.Status{}, disk
			}
			return silent.Status(), nil
		})
		if !errors.Is(err, disk) {
			t.Errorf("got %v", err)
		}
	})
}

// Whatever wall clocks have left in the files, it decides nothing.
func TestNoDecisionReadsWallTime(t *testing.T) {
	for _, wall := range []time.Time{time.Unix(0, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)} {
		d, path := folder(t, nil)
		store, err := os.OpenRoot(filepath.Dir(path))
		must(t, err)
		holders := lease.NewHolders(store)
		defer store.Close()
		defer holders.Close()
		c := schema.Claim{Session: "s1", Epoch: 1, Time: wall, Holder: lease.Self("lease.test")}
		b, err := c.Append(nil)
		must(t, err)
		lane := holders.Join(c.Holder)
		defer lane.Leave()
		slot, err := d.Claim(1, b)
		must(t, err)
		defer slot.Close()
		must(t, slot.Append(event("s1", 1, schema.TypeNote), false))
		must(t, filepath.WalkDir(filepath.Dir(path), func(p string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chtimes(p, wall, wall))
		}))
		st, err := d.Status(holders)
		if age, known := st.BeatAge(); err != nil || st.State != lease.Active || st.Undecided || !known || age > lease.Window {
			t.Errorf("%s: %+v, %v", wall, st, err)
		}
	}
	// And the sources ask for no time but a steady one: of package time they use
	// only what Go measures with its monotonic clock.
	files, err := filepath.Glob("*.go")
	must(t, err)
	n := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		must(t, err)
		ast.Inspect(f, func(node ast.Node) bool {
			s, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			switch x, _ := s.X.(*ast.Ident); {
			case s.Sel.Name == "ModTime", s.Sel.Name == "Time", s.Sel.Name == "Unix", s.Sel.Name == "UnixNano", s.Sel.Name == "CLOCK_REALTIME":
				t.Errorf("%s uses %s", name, s.Sel.Name)
			case x != nil && x.Name == "time":
				n++
				switch s.Sel.Name {
				case "Now", "Since", "After", "NewTicker", "Duration", "Second", "Millisecond":
				default:
					t.Errorf("%s uses time.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
	if n < 10 {
		t.Errorf("package time is used in %d places; are they still looked for?", n)
	}
}
