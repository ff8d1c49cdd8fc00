package journal

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"steno/lease"
	"steno/schema"
)

// State is what a log is folded into. The same Apply folds a stored log and// ScanOptions tells a Scan how to read. The zero value reads the whole session
// and folds nothing.
type ScanOptions struct {
	// State is folded along, if it is not nil; what it refuses is a finding.
	State State
	// Strict ends the scan with an error at the first finding of severity
	// error. Otherwise everything readable is given and every hole is named.
	Strict bool
	// Head is a head of the session that was kept elsewhere, if it is not the
	// zero Head. A log that does not have that event, or is not there at all,
	// is HeadMismatch; and the event is known to have been durable.
	Head schema.Head
	// Blobs reads every blob that the log names and compares its hash. Without
	// it they are only looked at, which finds what is missing or has another
	// length, and only patches are read: a log may have a lot of them.
	Blobs bool

	// Trusted does not compare the sums with the bytes of their lines, nor the
	// hashes of blobs: it finds lines that are missing, out of order, torn or no
	// events, and a chain that does not fit, but not a byte that somebody changed
	// inside a value. It is faster, and for logs that were verified. No writer
	// reads so.
	Trusted bool

	// AsOf is the seq of the last event that counts, 0 for all: the reading ends
	// before the first one above it.
	AsOf uint64

	plan  *plan            // collects what a repair has to list
	below uint64           // only segments below this one: a claimant's view
	sizes map[uint64]int64 // sizes that must not be read beyond
	own   bool             // the newest of these is our own, so nothing is laid over it
	from  *start           // where to begin, if that is a place of this log

	workers int // that judge lines ahead; 0 for what the machine has, below it none
	chunk   int // bytes that are read at once, 0 for the usual
}

// An Item is an event or a finding, in the order of the log.
type Item struct {
	Event   *schema.Event // valid until the next item; nil for a finding
	Line    []byte        // of the event, as it stands there, without its newline; valid as long
	Finding *schema.Finding
	Offset  int64 // of the event's line in its segment, whose number is Segment
	Segment uint64
	// Tentative says that the event is above what is known durable in a
	// segment that is being written, so it may yet turn out not to count.
	Tentative bool
}

// A Scan is one reading of a session. Reading takes no lock, needs no lease
// and changes nothing on disk. It streams: of what it has read it keeps some 300
// bytes for each segment, up to 65,536 places that repairs list, and what it
// knows of as many blobs; besides, one line, one patch, and what the State keeps.
//
// Segments are surveyed newest first, since each seal pins what counts of the
// segments before it, and read oldest first. Within a segment the bytes are
// split at 0x0A, then each line is judged alone. One bad line never hides
// another.
type Scan struct {
	store   Store
	session string
	opt     ScanOptions

	// What the reading has found; complete once Items has been read to the end.
	Head     schema.Head // of the last event given
	Events   int
	Epochs   int  // sealed segments, up to that of Head where ScanOptions.AsOf is set
	Beyond   bool // the reading ended at an event above ScanOptions.AsOf
	Findings int
	Lease    lease.Status // when the reading began
	// FirstError is the first finding of severity error, nil if the log is in
	// order.
	FirstError *schema.Finding
	// Repairs is what the repairs of this log have left out, oldest first.
	Repairs []Listed

	segments []*segment  // oldest first
	begun    *checkpoint // that the reading began behind, nil if it began with the first segment
	byEpoch  map[uint64]*segment
	open     *segment // newest sealed segment
	pending  bool     // a claim above it is locked and not sealed

	last      uint64 // seq of the last event given
	sum       schema.Sum
	time      time.Time
	bad       uint64 // unreadable lines since the last event
	aside     uint64 // sound lines since then that are no part of this session
	several   bool   // one of the unreadable lines may have been any number of events
	excused   bool   // a whole piece is missing here and has its name
	hole      hole
	skips     map[skipAt][]skip // what repairs list
	listed    int               // how many places that are
	run       *skip             // a place of many lines that was compared
	blobAt    string            // the blob that a finding is about
	compared  bool              // with the head that was kept elsewhere
	ahead     int64             // bytes read to see whether lines stand in the wrong place
	damaged   bool              // any hole so far
	waiting   []waiting
	seen      map[blobKey]error // what is wrong with a blob, nil for nothing
	wrong     int               // how many of these are
	torn      bool
	end       int64 // end of the last counted line of its segment
	hard      bool  // an error that even a forced claim must not pass
	durable   uint64
	durableOK bool // durable covers the whole open segment
	stop      bool
	pool      pool            // of the line readers
	fields    schema.Fields   // for an event that was not decoded here
	spare     [1]schema.Event // for lines that were not judged ahead
	err       error
	yield     func(Item, error) bool
}

type segment struct {
	epoch      uint64
	size       int64       // with the tail
	tail       *lease.Tail // what the commit log has of it, nil if nothing more
	tailLine   int         // the number of the line at which that begins
	unseen     bool        // the commit log may not be read
	headerErr  error       // a Reason or UnsupportedSchemaVersion
	claim      string      // its claim's sum, if that can be read
	holder     string      // whom it names
	sealed     bool        // a sound line of its own epoch stands in it
	sealLine   int         // 0 if its seal cannot be read
	sealFits   bool        // the seal names that claim, or nobody can tell
	sealHead   schema.Head
	sealPrev   schema.Sum
	sealEnd    int64            // offset behind the seal's line
	previous   *schema.Previous // what the seal says of the segment before
	followed   bool             // the next number stands on the line behind a repair's seal,
	followedBy schema.Sum       // and names this sum
	void       bool             // a later seal lists it
	pin        *pin             // what a later seal says of it
	endSeq     uint64           // last number and sum, once it has been read
	endSum     schema.Sum       //
	endBad     bool             // damage stood behind them
	bounded    bool             // a seal above cannot be read: numbers over most do not count
	most       uint64
	end        int64 // behind the last line that was judged
	endLine    int   // its number
	reread     int64 // bytes that were read again for the lists of repairs
}

type pin struct {
	len, size int64
	seq       uint64
	sum       schema.Sum
}

// NewScan prepares a reading of a session.
func NewScan(store Store, session string, opt ScanOptions) *Scan {
	return &Scan{store: store, session: session, opt: opt, seen: map[blobKey]error{}}
}

// Tries to see a list of segments that does not move while it is surveyed.
const (
	scanTries = 40
	scanPause = 5 * time.Millisecond
)

// Items reads the session. An error ends it: NotFound for an unknown session,
// LogReadFailed, UnsafeStatePath, and in a strict scan the kind of the first
// finding of severity error. It may be called once.
func (s *Scan) Items(ctx context.Context) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		s.yield = yield
		if err := s.removed(ctx, s.survey(ctx)); err != nil {
			yield(Item{}, s.gone(err))
			return
		}
		for _, g := range s.segments[s.begin(ctx):] {
			if s.stop {
				break
			}
			if g.sealed {
				s.read(ctx, g)
			} else {
				s.unsealed(ctx, g)
			}
		}
		s.atEnd(ctx)
		if s.opt.AsOf > 0 {
			s.Epochs = 0
			for _, g := range s.segments {
				if g.sealed && g.epoch <= s.Head.Epoch {
					s.Epochs++
				}
			}
		}
		if s.err != nil && !s.stop {
			s.yield(Item{}, s.err)
		}
	}
}

// survey lists the segments and reads the head of each, newest first, until
// the list has not moved meanwhile. A reader that went the other way could
// trust bytes that a seal written in between leaves out.
func (s *Scan) survey(ctx context.Context) error {
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		moved, err := s.surveyOnce(ctx)
		if err != nil && !errors.Is(err, schema.NotFound) || err != nil && try == 0 {
			return err
		}
		// A claim that is being sealed is worth a short wait: what counts of
		// the segment below it is about to be said.
		if err == nil && !moved && !(s.pending && try < scanTries) {
			return nil
		}
		if try > 2*scanTries {
			if err != nil {
				return err
			}
			s.pending = true
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(scanPause):
		}
	}
}

func (s *Scan) surveyOnce(ctx context.Context) (moved bool, err error) {
	// The lease is looked at first: where nobody holds it, the sizes that are
	// listed afterwards are final. The other way round a writer that finished
	// a write and left in between would seem to have torn it.
	if s.opt.below == 0 {
		if s.Lease, err = s.store.Lease(ctx, s.session); err != nil {
			return false, err
		}
	}
	list, err := s.store.Segments(ctx, s.session)
	if err != nil {
		return false, err
	}
	if s.opt.below > 0 {
		list = slices.DeleteFunc(list, func(g lease.Segment) bool { return g.Epoch >= s.opt.below })
	}
	s.segments, s.byEpoch, s.open, s.pending = nil, map[uint64]*segment{}, nil, false
	s.skips, s.listed, s.Repairs, s.run, s.durable = nil, 0, nil, nil, s.opt.Head.Seq
	for _, g := range list {
		if size, ok := s.opt.sizes[g.Epoch]; ok {
			g.Size = min(g.Size, size)
		}
		seg := &segment{epoch: g.Epoch, size: g.Size}
		s.segments = append(s.segments, seg)
		s.byEpoch[g.Epoch] = seg
	}
	s.Epochs = 0
	bounded, most := false, uint64(0)
	for _, g := range slices.Backward(s.segments) {
		seal, err := s.surveySegment(ctx, g)
		if err != nil {
			return false, err
		}
		own := g.most
		g.bounded, g.most = bounded, most
		if g.sealed && g.sealLine == 0 && (!bounded || own < most) {
			bounded, most = true, own
		}
		// A later seal pins it, so it was sealed, whatever it looks like now.
		g.sealed = g.sealed || g.pin != nil
		if !g.sealed {
			continue
		}
		s.Epochs++
		if s.open == nil {
			s.open = g
		}
		s.learn(g, &seal)
		for _, v := range seal.Void {
			if b := s.byEpoch[v]; b != nil && v < g.epoch {
				b.void = true
			}
		}
		if p := g.previous; p != nil {
			if b := s.byEpoch[p.Epoch]; b != nil && p.Epoch < g.epoch {
				b.pin = &pin{len: b.size, size: b.size, seq: p.Seq, sum: p.Sum}
				if p.Len != nil && p.Size != nil { // a stream store has neither
					b.pin.len, b.pin.size = max(0, *p.Len), max(0, *p.Size)
				}
			}
		}
	}
	slices.Reverse(s.Repairs)
	if err := s.lay(ctx); err != nil {
		return false, err
	}
	if s.opt.below > 0 {
		return false, nil // below a claim nothing moves any more
	}
	again, err := s.store.Segments(ctx, s.session)
	if err != nil {
		return false, err
	}
	top := newest(list)
	s.pending = s.Lease.Held && top > 0 && !s.byEpoch[top].sealed
	return newest(again) != top || s.Lease.Epoch != top, nil
}

func newest(list []lease.Segment) uint64 {
	if len(list) == 0 {
		return 0
	}
	return list[len(list)-1].Epoch
}

// sealWithin bounds how far the seal of a segment that does not begin with it
// is looked for.
const sealWithin = 1 << 10

// surveySegment reads the head of a segment: its claim and its seal, which a
// scan does not keep, since both may be as long as a line. Nobody writes into a
// segment before its seal, so a sound line of its own epoch shows that it was
// sealed, even if the seal itself cannot be read.
func (s *Scan) surveySegment(ctx context.Context, g *segment) (seal schema.Seal, err error) {
	r, err := s.lines(ctx, g.epoch, 0, g.size)
	if err != nil {
		return seal, err
	}
	defer r.Close()
	r.quick = true
	g.headerErr = schema.ClaimCorrupt // of an empty file
	var e schema.Event
	var second uint64
	for r.next() {
		if r.number == 1 {
			var c schema.Claim
			if c, g.headerErr = schema.DecodeClaim(r.line, s.session, g.epoch); g.headerErr == nil {
				g.claim, g.holder = c.Sum.String(), c.Holder.ID
			}
			if g.void {
				break
			}
			continue
		}
		if !r.whole || r.decode(&e) != nil || e.Session != s.session || e.Epoch != g.epoch {
			if r.number == 2 {
				second = s.numberOf(g, r.line)
			}
			continue
		}
		if g.sealLine == 0 && e.Type != schema.TypeWriterOpened {
			// The seal is lost, or a line was put before it.
			if !g.sealed {
				g.sealed, g.most = true, below(second, r.number, e.Seq)
			}
			if r.number > sealWithin {
				break
			}
			continue
		}
		if g.sealLine > 0 { // the line behind a repair's seal
			g.followed, g.followedBy = e.Seq == g.sealHead.Seq+1, e.Prev
			break
		}
		g.sealed = true
		if e.Type == schema.TypeWriterOpened && schema.Unmarshal(e.Data, &seal) == nil {
			g.sealLine, g.sealHead, g.sealPrev, g.sealEnd = r.number, e.Head(), e.Prev, r.next0
			g.sealFits = g.headerErr != nil || seal.Claim == g.claim
		} else if g.sealLine == 0 {
			g.most = max(1, e.Seq) - 1
		}
		g.previous = seal.Previous
		if seal.How != schema.HowRepair {
			break
		}
	}
	return seal, r.err
}

// lines opens a segment for reading line by line, from an offset up to a size.
func (s *Scan) lines(ctx context.Context, epoch uint64, offset, size int64) (*lineReader, error) {
	f, err := s.from(ctx, epoch, offset)
	if err != nil {
		return nil, err
	}
	r := newLineReader(f, offset, size, &s.pool)
	r.trusted = s.opt.Trusted
	if s.opt.chunk > 0 {
		r.size = s.opt.chunk
	}
	return r, nil
}

// above reports whether a number of this segment is not known to be durable.
func (s *Scan) above(ctx context.Context, g *segment, offset int64, number uint64) bool {
	if g != s.open {
		return false
	}
	s.testify(ctx, g, offset)
	return number > s.durable
}

// testify finds out, once, what is known to be durable of the open segment:
// any sound line of it testifies, wherever it stands. It reads ahead from an
// offset; the lines before have been heard.
func (s *Scan) testify(ctx context.Context, g *segment, offset int64) {
	if s.durableOK {
		return
	}
	s.durableOK = true
	r, err := s.lines(ctx, g.epoch, offset, g.size)
	if err != nil {
		s.fail(err)
		return
	}
	defer r.Close()
	r.quick = true
	var e schema.Event
	for r.next() {
		if r.whole && r.decode(&e) == nil && e.Session == s.session && e.Epoch <= g.epoch {
			s.durable = max(s.durable, e.Dur)
		}
	}
	if r.err != nil {
		s.fail(r.err)
	}
}

// live reports whether a segment is being written, as far as this reader can
// tell.
func (s *Scan) live(g *segment) bool {
	return s.opt.below == 0 && g == s.open && (s.pending || s.Lease.Held)
}

func (s *Scan) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}
