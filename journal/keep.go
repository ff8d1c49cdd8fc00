package journal

import (
	"context"
	"math"

	"steno/schema"
)

// A session gets a checkpoint when so many events stand behind the last one, and
// at least an eighth of those before it: so a long session is not written again
// and again, and what is read at an open is never much.
const (
	keepEvery = 4096
	keepShare = 8
)

// A keeper makes the checkpoints of a session that this process holds.
type keeper struct {
	opt   Options
	every uint64 // events between two, at least

	// Guarded by the journal's mu.
	covered uint64 // up to here the last one goes
	next    uint64 // from here on one is due
	cancel  context.CancelFunc
	done    chan struct{} // closed once the one under way is made; nil if none is
}

// keeps sets a keeper up, if the states can be saved.
func (j *Journal) keeps(opt Options, covered *checkpoint) {
	if opt.Save == nil || opt.Load == nil || opt.NewState == nil {
		return
	}
	j.keeper = &keeper{opt: opt, every: keepEvery}
	if opt.every > 0 {
		j.keeper.every = opt.every
	}
	if covered != nil {
		j.keeper.covered = covered.Head.Seq
	}
	j.keeper.later(j.keeper.covered)
}

// later puts the next checkpoint off until enough events stand behind seq.
func (k *keeper) later(seq uint64) { k.next = seq + max(k.every, seq/keepShare) }

// A mark is how far a log has come.
type mark struct {
	head schema.Head // whose epoch is that of the segment
	size int64       // of that
}

// keepSoon begins with a checkpoint beside the appends, if one is due. The caller
// has the lane.
func (j *Journal) keepSoon() {
	k := j.keeper
	if k == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if k.done != nil || j.seq < k.next || j.dead != nil {
		return
	}
	k.done = make(chan struct{})
	var ctx context.Context
	ctx, k.cancel = context.WithCancel(context.Background())
	go j.keepUp(ctx, mark{schema.Head{Epoch: j.epoch, Seq: j.seq, Sum: j.sum}, j.size})
}

// keepUp makes the checkpoint that is under way. One that cannot be made is tried
// again when as many events have come: nobody needs it.
func (j *Journal) keepUp(ctx context.Context, to mark) {
	err := j.keep(ctx, to)
	k := j.keeper
	k.cancel()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		k.covered = to.head.Seq
	}
	k.later(to.head.Seq)
	close(k.done)
	k.done = nil
}

// keepLast makes a checkpoint of all, if that is worth it. Nothing is appended any
// more.
func (j *Journal) keepLast(ctx context.Context) {
	if j.keeper == nil {
		return
	}
	j.awaitKept()
	j.mu.Lock()
	to := mark{schema.Head{Epoch: j.epoch, Seq: j.seq, Sum: j.sum}, j.size}
	due := j.seq-j.keeper.covered >= j.keeper.every
	j.mu.Unlock()
	if due {
		_ = j.keep(ctx, to) // the next one reads more
	}
}

// keep makes a checkpoint of the log up to a mark, behind which it is not looked
// at. It reads the log as it stands there, from the last checkpoint on.
func (j *Journal) keep(ctx context.Context, to mark) error {
	k := j.keeper
	unfit := func(why string) error {
		return schema.Errorf(schema.LogReadFailed, "session %s gets no checkpoint: %s", j.session, why).With("session", j.session)
	}
	var p places
	begun := false
	c := checkpointOf(ctx, j.store, j.session)
	s := NewScan(j.store, j.session, ScanOptions{State: k.opt.NewState(), below: to.head.Epoch + 1, own: true, sizes: map[uint64]int64{to.head.Epoch: to.size},
		workers: -1, from: &start{c, k.opt.Load, func(*schema.Event) { p, begun = c.places(), true }}})
	var last Item
	for it, err := range s.Items(ctx) {
		if err != nil {
			return err
		}
		if it.Event == nil {
			continue
		}
		p.note(it.Event.ID, it.Event.Seq, place{it.Segment, it.Offset})
		begun = begun || begins(it.Event)
		if last = it; it.Event.Seq >= to.head.Seq {
			break
		}
		if p.n%(4*uint32(k.every)) == 0 { // so that the first one of a long session takes little memory
			if s.opt.State, err = k.shorten(s.opt.State); err != nil {
				return err
			}
		}
	}
	switch {
	case last.Event == nil:
		return unfit("the last one is of all there is")
	case s.Head.Seq != to.head.Seq || s.Head.Sum != to.head.Sum || last.Segment != to.head.Epoch:
		return unfit("it has not the event that it was to end with")
	case s.FirstError != nil || s.damaged || len(s.Repairs) > 0 || !begun || p.n == math.MaxUint32:
		return unfit("its log is damaged, or was")
	}
	g := s.byEpoch[last.Segment]
	kept := &checkpoint{checkpointHead: checkpointHead{Version: checkpointVersion, Store: j.store.ID(), Session: j.session, Head: s.Head,
		Offset: last.Offset, End: g.end, Line: g.endLine}, list: p.list, count: p.n}
	for _, g := range s.segments {
		kept.Segments = append(kept.Segments, covered{g.epoch, g.size, g.sealed})
	}
	rows := make([]schema.Row, len(p.last))
	for i, id := range p.last {
		rows[i] = schema.Row{Key: id, Number: p.n - uint32(len(p.last)-i)}
	}
	kept.ids = p.old.With(rows)
	if kept.state = k.opt.Save(s.opt.State); kept.state == nil {
		return unfit("its state cannot be saved")
	}
	secret, err := j.store.Secret()
	if err != nil {
		return err
	}
	b, err := kept.encode(secret)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return j.store.KeepCheckpoint(ctx, j.session, to.head.Epoch, b)
}

// shorten gives a state that has put away what is over.
func (k *keeper) shorten(st State) (State, error) {
	b := k.opt.Save(st)
	if b == nil {
		return nil, schema.Errorf(schema.LogReadFailed, "a state cannot be saved")
	}
	return k.opt.Load(b)
}

// awaitKept waits for the checkpoint that is under way.
func (j *Journal) awaitKept() {
	if j.keeper == nil {
		return
	}
	j.mu.Lock()
	done := j.keeper.done
	j.mu.Unlock()
	if done != nil {
		<-done
	}
}

// quitKeeping ends the checkpoint that is under way, since the lock is about to go.
func (j *Journal) quitKeeping() {
	if j.keeper == nil {
		return
	}
	j.mu.Lock()
	cancel := j.keeper.cancel
	j.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	j.awaitKept()
}

// Checkpoint gives the checkpoint of a session, which is a file in its folder.
func (f *Files) Checkpoint(_ context.Context, session string) ([]byte, error) {
	d, err := f.dir(session)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Checkpoint()
}

// KeepCheckpoint keeps a checkpoint, without a sync.
func (f *Files) KeepCheckpoint(_ context.Context, session string, epoch uint64, b []byte) error {
	d, err := f.dir(session)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.KeepCheckpoint(epoch, b)
}
