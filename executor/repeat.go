package executor

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	"steno/replay"
	"steno/schema"
)

// A RepeatGuard stops an agent that goes round in circles: calls of a session
// that have the same tool and arguments, and got the same result, one after the
// other. Warn is which of them says so in its result, 3 if zero; Refuse is which
// of them does not run any more, 5 if zero. -1 is never. A policy that says
// repeat has the last word.
//
// Another call that runs, another result and a message of the user begin anew.
// Dry runs, calls that were refused and further attempts of a call do not count.
type RepeatGuard struct {
	Warn, Refuse int
}

// maxRepeats bounds what a RepeatGuard may be set to.
const maxRepeats = 100

// filled is a guard without its -1 and zeros: there, zero is never.
func (g RepeatGuard) filled() (RepeatGuard, error) {
	for _, n := range []*int{&g.Warn, &g.Refuse} {
		if *n == 1 || *n < -1 || *n > maxRepeats { // of one call nobody can say that it repeats another
			return g, schema.Errorf(schema.InvalidConfig, "the numbers of repeats must be 2 to %d, or say never", maxRepeats)
		}
	}
	if g.Warn == 0 {
		g.Warn = 3
	}
	if g.Refuse == 0 {
		g.Refuse = 5
	}
	g.Warn, g.Refuse = max(0, g.Warn), max(0, g.Refuse)
	return g, nil
}

// orNever is a number of a policy as a RepeatGuard has it.
func orNever(n *int) int {
	switch {
	case n == nil:
		return 0
	case *n == 0:
		return -1
	}
	return *n
}

// A row is calls that are the same, one after the other.
type row struct {
	call              string // the last one
	name, sum, hidden string
	n                 int
	said              uint64 // by each of them
}

// repeats is what the repeat guard knows of a session.
type repeats struct {
	mu     sync.Mutex
	limits RepeatGuard // of the last call that got here
	built  bool        // from the log, which may be an earlier writer's
	seen   uint64      // up to where messages have been looked at
	row    row
}

// refuses gives the number in its row of a call that is one too many, 0 if it may
// run.
func (r *repeats) refuses(s *session, req *Request, limits RepeatGuard) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limits = limits; limits == (RepeatGuard{}) {
		r.built = false
		return 0
	}
	if !r.built {
		r.build(s)
	}
	s.view(func(st *replay.State) {
		if spokenAt(st, r.seen) > 0 {
			r.row = row{}
		}
		r.seen = st.Head.Seq
	})
	if n := r.row.n + 1; r.row.is(req.Name, req.sum, req.hidden()) && limits.Refuse > 0 && n >= limits.Refuse {
		return n
	}
	return 0
}

func (r *row) is(name, sum, hidden string) bool {
	return r.n > 0 && r.name == name && r.sum == sum && r.hidden == hidden
}

// add puts a call into the row, or begins another.
func (r *row) add(call, name, sum, hidden string, said uint64) {
	n := 1
	if r.is(name, sum, hidden) && r.said == said {
		if n = r.n; r.call != call {
			n++
		}
	}
	*r = row{call, name, sum, hidden, n, said}
}

// spokenAt is where the user has spoken last, behind from; 0 if nowhere.
func spokenAt(st *replay.State, from uint64) uint64 {
	for _, m := range slices.Backward(st.Messages) {
		switch {
		case m.Seq <= from:
			return 0
		case m.Type == schema.TypeUserMessage:
			return m.Seq
		}
	}
	return 0
}

// count takes a result of a tool down before it is recorded, and gives its data
// with a warning where there are too many of the same.
func (r *repeats) count(req *Request, data []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.built {
		return data
	}
	r.row.add(req.CallID, req.Name, req.sum, req.hidden(), said(data))
	if r.limits.Warn == 0 || r.row.n < r.limits.Warn {
		return data
	}
	return fmt.Appendf(data[:len(data)-1:len(data)-1], `,"repeat":{"count":%d,"warn":%d,"refuse":%d}}`, r.row.n, r.limits.Warn, r.limits.Refuse)
}

var saidSeed = maphash.MakeSeed()

// said stands for what a result of ours says, of which the rest is about the
// attempt. It is for this process alone.
func said(data []byte) uint64 {
	// Between quotes these would be escaped; what follows the time holds none.
	from, to := bytes.Index(data, []byte(`,"ok":`)), bytes.LastIndex(data, []byte(`,"duration_us":`))
	if from < 0 || to < from { // another program's
		from, to = 0, len(data)
	}
	return maphash.Bytes(saidSeed, data[from:to])
}

// build makes the row from the log: from the last results that count.
func (r *repeats) build(s *session) {
	var last []replay.Call
	s.view(func(st *replay.State) {
		spoken := spokenAt(st, 0)
		// Calls end in another order than they begin, but not far from it.
		for _, c := range st.Calls[max(0, len(st.Calls)-maxFlights-maxRepeats):] {
			if is := c.Result; is != nil && is.Attempt > 0 && is.Seq > spoken && !is.Synthetic && !c.DryRun && len(c.Superseded) == 0 {
				last = append(last, *c)
			}
		}
		r.seen = st.Head.Seq
	})
	slices.SortFunc(last, func(a, b replay.Call) int { return int(a.Result.Seq) - int(b.Result.Seq) })
	from := len(last)
	for from > 0 && last[from-1].Name == last[len(last)-1].Name && last[from-1].ArgsSHA256 == last[len(last)-1].ArgsSHA256 {
		from--
	}
	r.row, r.built = row{}, true
	for _, c := range last[from:] {
		e, err := s.journal.Event(s.ctx, c.Result.Seq)
		if err != nil { // it counts as another
			r.row = row{}
			continue
		}
		r.row.add(c.ID, c.Name, c.ArgsSHA256, c.Redacted, said(e.Data))
	}
}

// guard is what counts as too many repeats where a session goes by a policy.
func (s *session) guard(p *Policy) RepeatGuard {
	if p != nil && p.repeat != nil {
		return *p.repeat
	}
	return s.x.cfg.Repeat
}

// repeated is the word about a call that has been made too often; no gate if it
// may run.
func (s *session) repeated(p *Policy, req *Request) decision {
	if req.DryRun {
		return decision{}
	}
	n := s.repeats.refuses(s, req, s.guard(p))
	if n == 0 {
		return decision{}
	}
	d := decision{gate: "repeat", by: "auto", kind: schema.RepeatLimit,
		reason: fmt.Sprintf("the tool was called with these arguments %d times in a row, and each time the result was the same", n-1)}
	if p != nil && p.repeat != nil {
		d.by, d.policy = "policy", p.hash
	}
	return d
}
