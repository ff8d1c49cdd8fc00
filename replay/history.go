package replay

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A span is what lies between two seqs, neither of them included.
type span struct{ from, to uint64 }

type compaction struct{ seq, from, to uint64 }

// rewind takes back what lies between to and seq, and compactions there with it.
func (p *projection) rewind(to, seq uint64) {
	if to >= seq {
		return
	}
	for n := len(p.gone); n > 0 && p.gone[n-1].to > to; n-- {
		to, p.gone = min(to, p.gone[n-1].from), p.gone[:n-1]
	}
	p.gone = append(p.gone, span{to, seq})
	if n := len(p.compacts); n > 0 && p.compacts[n-1].seq > to {
		for n > 0 && p.compacts[n-1].seq > to {
			n--
		}
		p.compacts, p.summary = p.compacts[:n], nil
	}
}

// HistoryRange gives the range of a history_compaction, from 1 the one that a
// history_rewind leaves, and whether both its ends are numbers.
func HistoryRange(typ string, body []byte) (from, to uint64, ok bool) {
	var f schema.Fields
	f.Read(body)
	if typ == schema.TypeHistoryRewind {
		return 1, number(f.Get(schema.KeyToSeq)), true
	}
	from, to = compactRange(f.Get(schema.KeyRange))
	return from, to, from > 0 && to > 0
}

// compactRange reads the range of a compaction.
func compactRange(v jsontext.Value) (from, to uint64) {
	var r struct {
		From jsontext.Value `json:"from_seq"`
		To   jsontext.Value `json:"to_seq"`
	}
	_ = schema.Unmarshal(v, &r) // it is an object, and takes any value
	return number(r.From), number(r.To)
}

// layer leaves, of the compactions that count, those that are shown: the newest,
// and of each older one whose range begins before those of all newer.
func (p *projection) layer() {
	var shown []compaction
	for _, c := range slices.Backward(p.compacts) {
		if n := len(shown); n == 0 || c.from < shown[n-1].from {
			shown = append(shown, c)
		}
	}
	slices.Reverse(shown)
	p.compacts = shown
}

// compacted gives the compaction whose summary stands for an event.
func (p *projection) compacted(seq uint64) (compaction, bool) {
	for _, c := range p.compacts {
		if c.from <= seq && seq <= c.to {
			return c, true
		}
	}
	return compaction{}, false
}

// in reports whether an event has its place among the messages.
func (p *projection) in(seq uint64) bool {
	_, gone := p.compacted(seq)
	return !gone && !p.rewound(seq)
}

func (p *projection) rewound(seq uint64) bool {
	n, _ := slices.BinarySearchFunc(p.gone, seq, func(s span, seq uint64) int {
		if s.to <= seq {
			return -1
		}
		return 1
	})
	return n < len(p.gone) && p.gone[n].from < seq
}

// carried reports whether a call from before the compaction stands behind it:
// the summary cannot tell what became of it.
func (p *projection) carried(call *pairing) bool {
	c, ok := p.compacted(call.seq)
	return ok && (call.result == 0 || call.result > c.to) && !p.rewound(call.seq)
}

// summaries are those of the compactions that are shown, in their order.
func (p *projection) summaries() ([]*group, error) {
	texts := map[uint64][]byte{}
	for _, c := range p.compacts {
		texts[c.seq] = nil
	}
	if n := len(p.compacts); n == 1 && p.summary != nil { // it is nil if a newer one was taken back
		texts[p.compacts[0].seq] = p.summary
	} else if n > 0 {
		err := p.read(func(e *schema.Event, _ data) error {
			if text, ok := texts[e.Seq]; ok && text == nil {
				texts[e.Seq] = bytes.Clone(e.Data)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	var out []*group
	for _, c := range p.compacts {
		var f schema.Fields
		f.Read(texts[c.seq])
		whole, err := p.whole(texts[c.seq], data{&f})
		if err != nil {
			return nil, err
		}
		f.Read(whole)
		out = append(out, &group{user: true, said: []*Message{{Role: "summary", Seq: c.seq, Content: f.Get(schema.KeySummary)}}})
	}
	return out, nil
}
