package lease

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"steno/schema"
)

// A State is what an observer can say about the writer of a session. States
// are derived at the moment of asking; none is stored.
type State string

const (
	Available State = "available" // nobody has it; the last writer, if any, released it
	Active    State = "active"    // somebody has it and is alive
	Stale     State = "stale"     // its holder is dead
	Ambiguous State = "ambiguous" // somebody may have it; nobody can tell
	Lost      State = "lost"      // what a writer learns about itself, never what an observer sees
)

// Evidence is all that a state follows from. A [Dir] gathers it; where it
// comes from elsewhere, such as a written case or another kind of store, the
// state is [Evidence.Status] all the same.
//
// For a case that gives what an observer can know: read the segment with
// [ReadSegment], say whether its lock is held, put the observer's machine into
// Host and Here, and the holder's beat into Beat. A beat whose age is known has
// the observer's boot id and time namespace, and a Clock that is by its age
// below Here's. Moved and Watched say what watching it has shown.
type Evidence struct {
	Epoch    uint64         // of the newest segment, 0 for none
	Holder   *schema.Holder // whom its claim names; nil if the claim cannot be read
	Newer    bool           // the claim is of a newer version
	Sealed   bool           // a sound event of its own epoch stands behind the claim
	Forced   bool           // its seal says that it was come by by force
	Released bool           // it ends in writer_released
	Removed  bool           // with the reason that makes the session one that is not there
	Held     bool           // its lock is held

	// Untrusted says that the storage's locks tell nothing of other machines.
	Untrusted bool
	Host      string // the observer's
	Here      Clock  // the observer's, read after the beat

	Beat    *Beat         // of Holder, as it was seen last; nil if there is none that can be read
	Moved   bool          // it changed while it was watched
	Watched time.Duration // for how long, by the observer's own steady clock
}

// Status is a State with the evidence for it.
type Status struct {
	State State
	// Kind is what an acquisition would be answered with, "" where it would be
	// granted in the usual way.
	Kind schema.Kind
	// Undecided says that watching for a while can change the state: a claim is
	// being sealed, or the holder's beat is not by our clock. Whoever must not
	// wait takes the state as it is; [Observe] waits.
	Undecided bool
	Evidence
}

// Status decides. It is a pure function of the evidence: wall time and process
// ids are no part of it.
func (e Evidence) Status() Status {
	s := Status{Evidence: e}
	p := e.pulse()
	elsewhere := e.Holder != nil && e.Untrusted && (e.Holder.Host != e.Host || e.Holder.BootID != e.Here.BootID)
	switch {
	case e.Epoch == 0:
		s.State = Available
	case e.Newer:
		s.State, s.Kind = Ambiguous, schema.UnsupportedSchemaVersion
	case e.Holder == nil: // unreadable proves nothing, in either direction
		s.State = Ambiguous
	case !e.Held && e.Released:
		s.State = Available
	case elsewhere && p == beats:
		s.State = Active
	case elsewhere:
		s.State, s.Undecided = Ambiguous, p == unseen
	case !e.Held:
		s.State = Stale
	case !e.Sealed: // between claim and seal at this moment, or stopped there
		s.State, s.Undecided = Ambiguous, p != silent && e.Watched < Window
	case p == silent:
		s.State = Ambiguous
	default: // a held lock is a living process, until its silence is known
		s.State, s.Undecided = Active, p == unseen
	}
	if s.Kind == "" {
		s.Kind = map[State]schema.Kind{Active: schema.SessionWriterActive, Stale: schema.SessionWriterStale,
			Ambiguous: schema.SessionWriterAmbiguous}[s.State]
	}
	return s
}

// A pulse is what the holder's beat shows.
type pulse int

const (
	unseen pulse = iota // nobody has watched it for long enough
	beats
	silent // for the whole window
)

func (e Evidence) pulse() pulse {
	age, known := e.BeatAge()
	switch {
	case e.Moved, known && age < Window:
		return beats
	case known, e.Watched >= Window:
		return silent
	}
	return unseen
}

// BeatAge is how long ago the holder beat. It is known only for a beat by our
// own clock: of the same boot and time namespace, and not from the future.
func (e Evidence) BeatAge() (age time.Duration, known bool) {
	b := e.Beat
	if b == nil || e.Holder == nil || b.Holder != e.Holder.ID || b.BootID == "" || b.BootID != e.Here.BootID || b.TimeNS != e.Here.TimeNS {
		return 0, false
	}
	age = time.Duration(e.Here.Nanos - b.Nanos)
	return age, age >= 0 && b.Nanos >= 0
}

// Observed says the evidence in words.
func (s Status) Observed() string {
	lock := "the lock is free"
	if s.Held {
		lock = "the lock is held"
	}
	age, known := s.BeatAge()
	switch {
	case s.Epoch == 0:
		return "there is no segment"
	case s.Newer:
		return "the newest claim is of a newer version, and " + lock
	case s.Holder == nil:
		return "the newest claim cannot be read, and " + lock
	case s.State == Available:
		return "the last writer released the session"
	case s.State == Stale && !s.Sealed:
		return "the lock is free and the newest claim was never sealed"
	case s.State == Stale:
		return "the lock is free and nothing was released"
	}
	if !s.Sealed {
		lock += " and the newest claim is not sealed"
	}
	if s.Untrusted {
		lock += " on storage whose locks tell nothing of other machines"
	}
	switch {
	case s.Moved:
		return lock + ", and the holder beats"
	case known:
		return fmt.Sprintf("%s, and the holder's last beat is %s old", lock, age.Round(100*time.Millisecond))
	case s.Watched >= Window:
		return fmt.Sprintf("%s, and the holder did not beat for %s", lock, s.Watched.Round(100*time.Millisecond))
	case s.Beat == nil:
		return lock + ", and no beat of the holder was seen"
	}
	return lock + ", and the holder's beat is by another clock than ours"
}

// Next is the next thing to do about a status. A session whose id cannot be
// pasted into a shell is called SESSION.
func (s Status) Next(session string) string {
	if !schema.ValidSession(session) {
		session = "SESSION"
	}
	force := "steno lease force " + session + " --reason WHY"
	switch {
	case s.Undecided:
		return "look again in a moment; run: steno lease show " + session
	case s.Kind == schema.UnsupportedSchemaVersion:
		return s.Kind.Next(session)
	case s.State == Available:
		return "nothing; the next writer gets it"
	case s.State == Active:
		return "send it through the holder, which details name, or ask that to let go: steno lease release " + session
	case s.State == Ambiguous && s.Holder != nil && s.Held:
		return fmt.Sprintf("end process %d on its host, or wake it up, or run: %s", s.Holder.PID, force)
	case s.State == Ambiguous:
		return "find out what wrote the newest segment, or whether its holder lives; then run: " + force
	}
	return s.Kind.Next(session)
}

// Err is the refusal that belongs to a status, nil where a writer may go on.
func (s Status) Err(session string) error {
	var e *schema.Error
	switch {
	case s.Kind == schema.UnsupportedSchemaVersion:
		e = schema.Errorf(s.Kind, "the newest claim of session %s is of a newer version", session)
	case s.State == Active:
		e = schema.Errorf(schema.SessionWriterActive, "another process holds session %s", session)
	case s.State == Ambiguous:
		e = schema.Errorf(schema.SessionWriterAmbiguous, "nobody can tell whether session %s has a living writer", session)
	default:
		return nil
	}
	e.With("session", session).With("epoch", s.Epoch)
	if s.Epoch > 0 && s.Kind != "" { // it was looked at
		e.With("observed", s.Observed()).With("next", s.Next(session))
	}
	if h := s.Holder; h != nil {
		e.With("holder", h.ID).With("host", h.Host).With("pid", h.PID).With("program", h.Program)
	}
	if age, known := s.BeatAge(); known {
		e.With("beat_age_ms", age.Milliseconds())
	}
	return e
}

// Observe looks until the status is decided. It watches for Window on its own
// steady clock, and anew where another writer has come meanwhile, twice at
// most. look gives the status as it is; it is called a few times a second.
func Observe(ctx context.Context, look func() (Status, error)) (Status, error) {
	st, err := look()
	first, began, start := st, time.Now(), time.Now()
	for pause := 5 * time.Millisecond; err == nil && st.Undecided && time.Since(start) < 2*Window; pause = min(2*pause, 200*time.Millisecond) {
		select {
		case <-ctx.Done():
			return st, ctx.Err()
		case <-time.After(pause):
		}
		if st, err = look(); err != nil {
			break
		}
		if st.Epoch != first.Epoch || (st.Holder == nil) != (first.Holder == nil) || st.Holder != nil && st.Holder.ID != first.Holder.ID {
			first, began = st, time.Now()
			continue
		}
		e := st.Evidence
		e.Moved = e.Beat != nil && e.Beat.Holder == e.Holder.ID && (first.Beat == nil || *e.Beat != *first.Beat)
		e.Watched = time.Since(began)
		st = e.Status()
	}
	return st, err
}

// Bounds of a look at a segment. A seal stands right behind the claim, or
// behind a few carried lines, and a writer_released is short.
const (
	headBytes = 4 << 20
	tailBytes = 64 << 10
)

// ReadSegment gathers what a segment itself says about its writer: whose it
// is, whether it was sealed, by force or not, and whether it was released.
func ReadSegment(session string, epoch uint64, r io.ReaderAt, size int64) (Evidence, error) {
	e := Evidence{Epoch: epoch}
	own := func(line []byte) (ev schema.Event, ok bool) {
		err := ev.Decode(line)
		return ev, err == nil && ev.Session == session && ev.Epoch == epoch
	}
	in := bufio.NewScanner(io.NewSectionReader(r, 0, min(size, headBytes)))
	in.Buffer(make([]byte, 0, 2<<10), schema.MaxLine+2)
	in.Split(func(b []byte, _ bool) (int, []byte, error) {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			return i + 1, b[:i], nil
		}
		return 0, nil, nil // half a line says nothing
	})
	for n := 1; in.Scan(); n++ {
		if n == 1 {
			c, err := schema.DecodeClaim(in.Bytes(), session, epoch)
			if err == nil {
				e.Holder = &c.Holder
			}
			e.Newer = errors.Is(err, schema.UnsupportedSchemaVersion)
		} else if ev, ok := own(in.Bytes()); ok {
			var seal schema.Seal
			e.Sealed = true
			e.Forced = ev.Type == schema.TypeWriterOpened && schema.Unmarshal(ev.Data, &seal) == nil && seal.How == schema.HowForced
			break
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return Evidence{}, err
	}
	buf := make([]byte, min(tailBytes, size))
	if n, err := r.ReadAt(buf, size-int64(len(buf))); err == io.EOF {
		buf = buf[:n]
	} else if err != nil {
		return Evidence{}, err
	}
	if body, ok := bytes.CutSuffix(buf, []byte("\n")); ok {
		if ev, ok := own(body[bytes.LastIndexByte(body, '\n')+1:]); ok {
			e.Sealed, e.Released, e.Removed = true, ev.Type == schema.TypeWriterReleased, ev.Removes()
		}
	}
	return e, nil
}
