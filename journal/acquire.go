package journal

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"steno/lease"
	"steno/schema"
)

// Options says how to open a session for writing.
type Options struct {
	// Holder is this process; see [lease.Self].
	Holder schema.Holder
	// NewState makes an empty state to fold the log into; nil folds nothing
	// and refuses nothing but what the line itself forbids.
	NewState func() State
	// Save and Load are how such a state is kept in a checkpoint: Load gives the
	// one that Save was given, as far as a writer can tell, and may keep b, which
	// nobody changes. What Save gives nil for is not kept. Without them the whole
	// log is read at each open.
	Save func(State) []byte
	Load func(b []byte) (State, error)
	// Create makes a session that is not there yet. Without it that is
	// NotFound: a call never makes a session.
	Create bool
	// Started is the data of session_started for a session that is made; nil is
	// the empty object. One whose session_started a repair has left out gets
	// none: whoever knows what it said appends it.
	Started []byte
	// Force takes the session from a holder that may be alive, also from one
	// that beats. The old writer ends in lost. A session that was come by by
	// force, or is being claimed, is forced only after it has stayed with its
	// holder for one to two seconds: those who force each other would make no
	// progress otherwise.
	Force bool
	// By and Reason go into the seal of a take-over; each has at most 1 KiB.
	By, Reason string
	// Durable is called with each event once it is durable and applied, in the
	// order of the log, also with the seal. It must be quick and must not call
	// back into the Journal.
	Durable func(Record)
	// Waiting is called with the reason when appends begin to wait for room on
	// the disk, and with nil when they no longer do. It must not call back into
	// the Journal.
	Waiting func(error)

	every uint64 // events between checkpoints, 0 for the usual
}

// acquireTries bounds how often an acquisition starts over because another
// process took a slot in between.
const acquireTries = 5

// Open acquires a session and folds its log. The steps and their order are
// those of package lease: read, probe, claim, settle, read newest first, seal,
// check.
//
// NotFound: there is no such session. SessionWriterActive and
// SessionWriterAmbiguous: another process has it, or may have. Where only
// watching the holder tells which of the two, Open takes up to lease.Window; so
// it does while another process is between its claim and its seal.
// CorruptLogLine,
// TailSuspect and UnsupportedSchemaVersion: the log is damaged or newer, and
// nothing was claimed. LogReadFailed, LogWriteFailed, SyncFailed: the disk.
func Open(ctx context.Context, store Store, session string, opt Options) (*Journal, error) {
	if err := schema.CheckSession(session); err != nil {
		return nil, err
	}
	if len(opt.By) > maxReason || len(opt.Reason) > maxReason {
		return nil, schema.Errorf(schema.InvalidArgs, "who takes a session and why have at most %d bytes each", maxReason).With("session", session)
	}
	for try := 0; ; try++ {
		j, err := acquire(ctx, store, session, opt)
		// Another was faster. It may be dead already, or have lost the race
		// itself; the next look at the lease tells.
		if !errors.Is(err, schema.AlreadyExists) || errors.Is(err, lease.ErrRemoved) {
			return j, err
		}
		if try == acquireTries {
			if epoch, ok := schema.AsError(err).Details["epoch"].(uint64); ok { // the slot, and not the session's name
				err = schema.AsError(lease.Status{State: lease.Active, Evidence: lease.Evidence{Epoch: epoch}}.Err(session)).Cause(err)
			}
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(1+try*try) * 2 * time.Millisecond):
		}
	}
}

func acquire(ctx context.Context, store Store, session string, opt Options) (*Journal, error) {
	// (0) Damage that can be seen refuses before anything is claimed.
	var kept *checkpoint
	if opt.Load != nil {
		kept = checkpointOf(ctx, store, session)
	}
	before, err := survey(ctx, store, session, opt, kept)
	if err != nil {
		return nil, err
	}
	// (1) Probe.
	look := func() (lease.Status, error) { return store.Lease(ctx, session) }
	switch {
	case opt.Force:
		before.Lease, err = giveTime(ctx, before.Lease, look)
	case before.Lease.Undecided:
		before.Lease, err = lease.Observe(ctx, look)
	}
	if err != nil {
		return nil, err
	}
	if err := before.Lease.Err(session); err != nil && !opt.Force {
		return nil, err
	}
	if epoch := before.Lease.Epoch; epoch != before.top() { // it moved meanwhile
		return nil, schema.Errorf(schema.AlreadyExists, "another process has claimed epoch %d of session %s", epoch, session).
			With("session", session).With("epoch", epoch)
	}
	// (2, 3) Claim.
	claim := schema.Claim{Session: session, Epoch: before.top() + 1, Time: time.Now(), Holder: opt.Holder}
	header, err := claim.Append(nil)
	if err != nil {
		return nil, err
	}
	w, err := store.Claim(ctx, session, claim.Epoch, header)
	if err != nil {
		return nil, err
	}
	j := newJournal(store, claim, w, len(header), opt)
	if err := j.open(ctx, before, claim, opt, kept); err != nil {
		return nil, errors.Join(err, w.Release())
	}
	j.lane <- struct{}{}
	j.keepSoon()
	<-j.lane
	return j, nil
}

// minHold is how long a session that was forced stays with its holder at
// least, and at most twice as long, before it is forced again.
const minHold = time.Second

// giveTime lets the holder of a session that was come by by force, or that is
// being claimed, have it for a while, by our own steady clock. Where it moves
// on meanwhile there is another holder, and the acquisition starts over. An
// ordinary holder is given no time.
func giveTime(ctx context.Context, st lease.Status, look func() (lease.Status, error)) (lease.Status, error) {
	began, epoch, hold := time.Now(), st.Epoch, minHold+rand.N(minHold)
	for st.Held && (st.Forced || !st.Sealed) && st.Epoch == epoch && time.Since(began) < hold {
		select {
		case <-ctx.Done():
			return st, ctx.Err()
		case <-time.After(min(20*time.Millisecond, hold)):
		}
		var err error
		if st, err = look(); err != nil {
			return st, err
		}
	}
	return st, nil
}

func newJournal(store Store, claim schema.Claim, w Writer, header int, opt Options) *Journal {
	return &Journal{store: store, session: claim.Session, holder: opt.Holder, by: cmp.Or(opt.By, opt.Holder.Program),
		tell: opt.Durable, waiting: opt.Waiting,
		lane: make(chan struct{}, 1), closing: make(chan struct{}), stuck: make(chan struct{}),
		epoch: claim.Epoch, writer: w, size: int64(header)}
}

// survey reads a session before it is claimed. A session that may be made and
// is not there has an empty survey.
func survey(ctx context.Context, store Store, session string, opt Options, kept *checkpoint) (*Scan, error) {
	begun := false
	so := ScanOptions{from: &start{kept, opt.Load, func(*schema.Event) { begun = true }}}
	if opt.NewState != nil {
		so.State = opt.NewState()
	}
	s := NewScan(store, session, so)
	for it, err := range s.Items(ctx) {
		if err == nil {
			begun = begun || begins(it.Event)
			continue
		}
		if opt.Create && errors.Is(err, lease.ErrRemoved) { // its id is not given to another history
			return nil, schema.Errorf(schema.AlreadyExists, "session %s was removed, and its id stays taken", session).With("session", session).Cause(err)
		}
		if opt.Create && errors.Is(err, schema.NotFound) {
			return &Scan{store: store, session: session}, nil
		}
		return nil, err
	}
	if err := s.refuse(opt.Force); err != nil {
		return nil, err
	}
	// A crash may have left the first seal without session_started. Nobody was
	// told of such a session; whoever makes it says what it is. Where something
	// else is there, or is missing, it was there once.
	if !begun && !s.damaged && !opt.Create {
		return nil, schema.Errorf(schema.NotFound, "there is no session %s", session).With("session", session)
	}
	return s, nil
}

// begins reports whether an event shows that somebody was told of its session.
func begins(e *schema.Event) bool {
	return e != nil && e.Type != schema.TypeWriterOpened && e.Type != schema.TypeWriterReleased
}

// refuse is the damage that no writer may go on over.
func (s *Scan) refuse(force bool) error {
	if s.FirstError == nil || force && !s.hard {
		return nil
	}
	if !s.hard { // only a claim that cannot be read: who knows whose it is
		return lease.Evidence{Epoch: s.top()}.Status().Err(s.session)
	}
	return s.FirstError.Err(s.session)
}

// top is the highest slot taken.
func (s *Scan) top() uint64 {
	if len(s.segments) == 0 {
		return 0
	}
	return s.segments[len(s.segments)-1].epoch
}

// open goes from a claim to a sealed segment.
func (j *Journal) open(ctx context.Context, before *Scan, claim schema.Claim, opt Options, kept *checkpoint) error {
	// (4) What stands below the claim, down to the newest sealed segment, is
	// made durable and its size noted. What a living predecessor adds later
	// will not be acknowledged.
	var s *Scan
	var begun, released bool
	so := ScanOptions{below: j.epoch, sizes: map[uint64]int64{}, from: &start{kept, opt.Load, func(last *schema.Event) {
		j.places, begun, released = kept.places(), true, last.Type == schema.TypeWriterReleased
	}}}
	for sealed := before.open; ; sealed = s.open {
		for _, g := range slices.Backward(before.segments) {
			if _, noted := so.sizes[g.epoch]; !noted {
				size, err := j.writer.Settle(ctx, g.epoch)
				if err != nil {
					return err
				}
				so.sizes[g.epoch] = size
			}
			if sealed != nil && g.epoch == sealed.epoch {
				break
			}
		}
		// (5) Read, newest first, never beyond a noted size.
		if opt.NewState != nil {
			so.State = opt.NewState()
		}
		j.places = places{}
		s, begun, released = NewScan(j.store, j.session, so), false, false
		if before.top() > 0 {
			for it, err := range s.Items(ctx) {
				if err != nil {
					return err
				}
				if e := it.Event; e != nil {
					j.places.note(e.ID, e.Seq, place{it.Segment, it.Offset})
					begun = begun || begins(e)
					released = e.Type == schema.TypeWriterReleased
				}
			}
		}
		// A seal whose sync had failed was in the page cache alone, and is gone
		// now that the pages were dropped: then an older segment counts, which
		// is yet to be settled.
		if s.open == nil {
			break
		}
		if _, noted := so.sizes[s.open.epoch]; noted {
			break
		}
	}
	if err := s.refuse(opt.Force); err != nil {
		return err
	}
	j.state, j.seq, j.sum = s.opt.State, s.last, s.sum
	j.keeps(opt, s.begun)
	c, err := j.carryOver(ctx, s)
	if err != nil {
		return err
	}
	// (6, 7) Seal; the append syncs and checks.
	seal := j.sealOf(s, before.Lease, claim, released, opt)
	c.name(seal)
	j.how = seal.How
	entries := []Entry{{Type: schema.TypeWriterOpened, Data: seal.Data()}}
	if !begun && !s.damaged {
		data := opt.Started
		if data == nil {
			data = []byte("{}")
		}
		entries = append(entries, Entry{Type: schema.TypeSessionStarted, Data: data})
	}
	_, err = j.appendAlone(ctx, entries) // who cannot open a session is told so at once
	return err
}

// carryOver copies what only the commit log has of the newest sealed segment.
func (j *Journal) carryOver(ctx context.Context, s *Scan) (*carried, error) {
	if s.open == nil {
		return nil, nil
	}
	c, err := j.carriedOf(ctx, s.open.epoch, s.open.tail, s.end)
	if err != nil || c == nil {
		return nil, err
	}
	if err := j.writer.Carry(ctx, c.lines); err != nil {
		return nil, err
	}
	j.move(c, s.open.epoch, place{j.epoch, j.size})
	j.size += c.size()
	return c, nil
}

// sealOf says what counts of the segments below a claim.
func (j *Journal) sealOf(s *Scan, was lease.Status, claim schema.Claim, released bool, opt Options) *schema.Seal {
	seal := &schema.Seal{Claim: claim.Sum.String(), How: schema.HowNew}
	for _, g := range s.segments {
		if s.open == nil || g.epoch > s.open.epoch {
			seal.Void = append(seal.Void, g.epoch)
		}
	}
	evidence := &schema.Evidence{State: string(was.State), Observed: was.Observed(),
		By: cmp.Or(opt.By, opt.Holder.Program), Reason: cmp.Or(opt.Reason, "the session was asked for")}
	forced := was.State == lease.Active || was.State == lease.Ambiguous
	if s.open == nil {
		if forced { // there is nothing to take over but somebody's claim
			seal.Evidence = evidence
		}
		return seal
	}
	length, size := s.end, s.open.fileSize()
	seal.Previous = &schema.Previous{Epoch: s.open.epoch, Len: &length, Size: &size, Seq: s.last, Sum: s.sum}
	switch {
	case forced:
		seal.How = schema.HowForced
	case released:
		seal.How = schema.HowResumed
		return seal
	default:
		seal.How = schema.HowTakeover
		if was.State != lease.Stale {
			evidence.State, evidence.Observed = string(lease.Stale), "nothing was released"
		}
	}
	seal.Evidence = evidence
	return seal
}
