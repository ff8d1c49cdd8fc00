package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"steno/lease"
	"steno/schema"
)

// RepairOptions says how to repair a session.
type RepairOptions struct {
	// Holder is this process; see [lease.Self].
	Holder schema.Holder
	// NewState makes an empty state to fold the log into, so that what the fold
	// refuses is found. It must not be nil.
	NewState func() State
	// By and Reason go into the seal.
	By, Reason string
	// AcceptTail lists lines, too, of which nobody can tell whether they were
	// acknowledged. Without it a log that has one is not repaired.
	AcceptTail bool
	// DryRun only looks.
	DryRun bool
}

// A Repaired says what a repair has listed, or would list.
type Repaired struct {
	Session string           `json:"session"`
	By      string           `json:"by,omitzero"`
	Reason  string           `json:"reason,omitzero"`
	Skipped []schema.Skipped `json:"skipped"` // runs of bad lines are one place
	Void    []uint64         `json:"void"`    // claims that cannot be read
	Lines   int              `json:"lines"`   // in all places
	Head    schema.Head      `json:"head"`    // of what counts; after a repair it is that of the log
	Epoch   uint64           `json:"epoch"`   // of the repair's seal, 0 if nothing was written
}

// Repair lets a damaged session be written again. It changes no byte of what
// is there: it claims the next epoch like any writer, and its seal lists what
// is left out, with place, hash and reason, and by whom. What is listed stays
// a hole, and the log says for ever that it was repaired. A log in order is
// left as it is; Epoch is 0 then, and after a dry run.
//
// What cannot be repaired is an error, and beside it is what could: TailSuspect
// for a line that may be a write that never finished, without AcceptTail;
// UnsupportedSchemaVersion for what a newer version wrote; SessionWriterActive
// and SessionWriterAmbiguous for a session that has a writer, or may have one,
// also where all that is wrong is a claim that cannot be read: a forced claim
// passes that. CorruptLogLine if there is more damage than one seal can list.
// Otherwise errors are as in Open.
func Repair(ctx context.Context, store Store, session string, opt RepairOptions) (Repaired, error) {
	if err := schema.CheckSession(session); err != nil {
		return Repaired{Session: session}, err
	}
	if err := opt.check(); err != nil {
		return Repaired{Session: session}, err
	}
	p, s, err := examine(ctx, store, session, opt)
	if err != nil {
		return Repaired{Session: session}, err
	}
	out := p.result(s, opt)
	if err := p.refuse(s, opt); err != nil || p.nothing() || opt.DryRun {
		return out, err
	}
	claim := schema.Claim{Session: session, Epoch: s.top() + 1, Time: time.Now(), Holder: opt.Holder}
	header, err := claim.Append(nil)
	if err != nil {
		return out, err
	}
	w, err := store.Claim(ctx, session, claim.Epoch, header)
	if errors.Is(err, schema.AlreadyExists) { // somebody else repairs it
		err = schema.AsError(lease.Status{State: lease.Active, Evidence: lease.Evidence{Epoch: claim.Epoch}}.Err(session)).Cause(err)
	}
	if err != nil {
		return out, err
	}
	j := newJournal(store, claim, w, len(header), Options{Holder: opt.Holder, By: opt.By})
	if out, err = j.repair(ctx, s, claim, opt); err != nil {
		return out, errors.Join(err, j.Close())
	}
	err = j.Release(ctx, "repaired")
	out.Head = j.Head()
	return out, err
}

// examine reads a session before it is claimed. Where another process may be
// repairing it, that one is waited for.
func examine(ctx context.Context, store Store, session string, opt RepairOptions) (p *plan, s *Scan, err error) {
	for range acquireTries {
		p = &plan{}
		s, err = p.read(ctx, store, session, ScanOptions{State: opt.NewState(), Blobs: true}, func(Item) {})
		if err != nil || p.nothing() || !s.Lease.Undecided {
			return p, s, err
		}
		s.Lease, err = lease.Observe(ctx, func() (lease.Status, error) { return store.Lease(ctx, session) })
		if err != nil || s.Lease.Err(session) != nil {
			return p, s, err
		}
	}
	return p, s, nil
}

// maxReason bounds By and Reason, so that a seal has room for them.
const maxReason = 1 << 10

func (o *RepairOptions) check() error {
	if o.By == "" {
		o.By = o.Holder.Program
	}
	if o.Reason == "" && o.AcceptTail {
		return schema.Errorf(schema.InvalidArgs, "lines that may have been acknowledged are left out only with a reason")
	}
	if o.Reason == "" {
		o.Reason = "the log was damaged"
	}
	if len(o.By) > maxReason || len(o.Reason) > maxReason {
		return schema.Errorf(schema.InvalidArgs, "who repairs and why have at most %d bytes each", maxReason)
	}
	return nil
}

// repair goes from a claim to a seal that lists what is left out. The order is
// that of open: settle, read, seal.
func (j *Journal) repair(ctx context.Context, before *Scan, claim schema.Claim, opt RepairOptions) (Repaired, error) {
	// Every segment, not only the newest: what is listed must be what is on the
	// disk, and not what the page cache shows.
	so := ScanOptions{State: opt.NewState(), Blobs: true, below: j.epoch, sizes: map[uint64]int64{}}
	for _, g := range slices.Backward(before.segments) {
		size, err := j.writer.Settle(ctx, g.epoch)
		if err != nil {
			return Repaired{Session: j.session}, err
		}
		so.sizes[g.epoch] = size
	}
	j.state = so.State
	p := &plan{}
	released := false
	s, err := p.read(ctx, j.store, j.session, so, func(it Item) {
		if e := it.Event; e != nil {
			j.places.note(e.ID, e.Seq, place{it.Segment, it.Offset})
			released = e.Type == schema.TypeWriterReleased
		}
	})
	if err != nil {
		return Repaired{Session: j.session}, err
	}
	s.Lease = before.Lease // below a claim nobody looks at the lease
	out := p.result(s, opt)
	if err := p.refuse(s, opt); err != nil {
		return out, err
	}
	j.seq, j.sum = s.last, s.sum
	if g := s.open; g != nil && g.tail != nil && p.behind(g.epoch, g.tail.From) {
		return out, schema.Errorf(schema.CorruptLogLine, "session %s is damaged in what its holder's commit log has", j.session).
			With("session", j.session).With("segment", g.epoch).With("offset", g.tail.From).
			With("next", "restore the session from a copy, or go on in a new one")
	}
	c, err := j.carryOver(ctx, s)
	if err != nil {
		return out, err
	}
	seal := j.sealOf(s, s.Lease, claim, released, Options{By: opt.By, Reason: opt.Reason, Holder: opt.Holder})
	if !p.nothing() { // the damage may have been in the page cache only
		length := s.open.end
		seal.How, seal.Previous.Len, seal.Skipped, seal.Void = schema.HowRepair, &length, p.skipped, p.allVoid(s)
		seal.Evidence = &schema.Evidence{State: string(s.Lease.State), Observed: p.observed(), By: opt.By, Reason: opt.Reason}
	}
	c.name(seal)
	records, err := j.appendAlone(ctx, []Entry{{Type: schema.TypeWriterOpened, Data: seal.Data()}})
	if err != nil {
		return out, err
	}
	out.Epoch, out.Head = j.epoch, records[0].Head()
	return out, nil
}

// A plan is what a repair has to list, found by a reading of the log.
type plan struct {
	skipped []schema.Skipped
	void    []uint64         // claims that cannot be read, for the seal to call void
	within  bool             // one of them stands below what counts
	suspect *schema.Finding  // the first that may have been a write that never finished
	never   *schema.Finding  // the first that no repair may pass
	open    int              // from here on the number behind the hole is not known yet
	again   []schema.Skipped // of this hole, listed by an earlier repair as the beginning of one that may have ended later
}

// read reads a session for what a repair has to list.
func (p *plan) read(ctx context.Context, store Store, session string, so ScanOptions, each func(Item)) (*Scan, error) {
	so.plan = p
	s := NewScan(store, session, so)
	for it, err := range s.Items(ctx) {
		if err != nil {
			return nil, err
		}
		each(it)
	}
	p.close(s.last + 1) // the repair's own seal
	for i := range p.skipped {
		if k := &p.skipped[i]; k.Lines > 1 && byteReasons[k.Reason] {
			k.Bytes, k.SHA256 = s.rest(ctx, s.byEpoch[k.Epoch], k.Offset, k.Offset+k.Bytes, true)
		}
	}
	return s, s.err
}

// add takes note of damage that no repair lists so far.
func (p *plan) add(s *Scan, f schema.Finding, k schema.Skipped) {
	switch {
	case f.Reason == "", s.beyond(f): // a newer version's; somebody who can read it must look. Or nothing is left
		if p.never == nil {
			p.never = &f
		}
		return
	case f.Reason == schema.ClaimCorrupt && !s.byEpoch[f.Segment].sealed:
		p.void = append(p.void, f.Segment)
		p.within = p.within || !s.forcible(f)
		return
	case f.Kind == schema.TailSuspect && p.suspect == nil:
		p.suspect = &f
	}
	if n := len(p.skipped); n > p.open {
		last := &p.skipped[n-1]
		if byteReasons[k.Reason] && byteReasons[last.Reason] && last.Epoch == k.Epoch &&
			last.Line+last.Lines == k.Line && last.Offset+last.Bytes+1 == k.Offset {
			last.Lines++
			last.Bytes = k.Offset + k.Bytes - last.Offset
			return
		}
	}
	if len(p.skipped) <= maxSkips {
		p.skipped = append(p.skipped, k)
	}
}

// close says which number stands behind the places of a hole. It may be called
// on a nil plan.
func (p *plan) close(next uint64) {
	if p == nil {
		return
	}
	for _, k := range p.again {
		if k.Next > next && len(p.skipped) <= maxSkips {
			k.Prev = ""
			p.skipped = append(p.skipped, k)
		}
	}
	p.again = nil
	for i := range p.skipped[p.open:] {
		if k := &p.skipped[p.open+i]; !onGiven[k.Reason] {
			k.Next = next
		}
	}
	p.open = len(p.skipped)
}

// behind reports whether something listed stands behind an offset of a segment.
func (p *plan) behind(epoch uint64, offset int64) bool {
	for _, k := range p.skipped {
		if k.Epoch == epoch && k.Offset+k.Bytes > offset {
			return true
		}
	}
	return false
}

// nothing says that there is nothing to repair. What a forced claim passes is
// not for a repair alone.
func (p *plan) nothing() bool { return len(p.skipped) == 0 && !p.within }

func (p *plan) lines() (n int) {
	for _, k := range p.skipped {
		n += k.Lines
	}
	return n
}

func (p *plan) result(s *Scan, opt RepairOptions) Repaired {
	return Repaired{Session: s.session, By: opt.By, Reason: opt.Reason, Skipped: p.skipped, Void: p.void, Lines: p.lines(), Head: s.Head}
}

func (p *plan) observed() string {
	return fmt.Sprintf("damage in %d places", len(p.skipped))
}

// allVoid are the claims that the seal calls void: those above what counts, as
// every seal does, and those below that cannot be read.
func (p *plan) allVoid(s *Scan) (void []uint64) {
	unread := map[uint64]bool{}
	for _, epoch := range p.void {
		unread[epoch] = true
	}
	for _, g := range s.segments {
		if g.epoch > s.open.epoch || unread[g.epoch] {
			void = append(void, g.epoch)
		}
	}
	return void
}

// listBytes bounds what a seal lists: a line has room for it, and for the rest
// of the seal.
const listBytes = schema.MaxLine - 32<<10

// refuse is why a session cannot be repaired.
func (p *plan) refuse(s *Scan, opt RepairOptions) error {
	// A claim that cannot be read makes the lease ambiguous, but its lock is
	// free. In a segment that counts it is damage like other damage; above, the
	// seal calls it void as a forced claim does, if there is damage besides.
	unread := s.Lease.State == lease.Ambiguous && s.Lease.Holder == nil && !s.Lease.Held
	if err := s.Lease.Err(s.session); err != nil && (!p.nothing() || len(p.void) > 0 || p.never != nil) && !(unread && !p.nothing()) {
		if s.Lease.State == lease.Active {
			schema.AsError(err).With("next", "let its holder go, then repair; run: steno lease release "+s.session)
		}
		return err
	}
	switch {
	case p.nothing() && len(p.void) > 0:
		return s.refuse(false)
	case p.never != nil:
		return p.never.Err(s.session)
	case p.suspect != nil && !opt.AcceptTail:
		e := schema.AsError(p.suspect.Err(s.session))
		e.Message += "; it may have been acknowledged, and nothing in the log can tell"
		return e.With("next", "look at the line; to leave it out run: steno repair "+s.session+" --accept-tail --reason WHY --apply")
	case len(p.skipped) > 0 && (len(p.skipped)+s.listed > maxSkips || len((&schema.Seal{Skipped: p.skipped}).Data()) > listBytes):
		return schema.Errorf(schema.CorruptLogLine, "session %s is damaged in more places than one repair can list: %d", s.session, len(p.skipped)).
			With("session", s.session).With("places", len(p.skipped)).
			With("next", "restore the session from a copy, or go on in a new one")
	}
	return nil
}
