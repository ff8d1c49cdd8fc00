package replay

import (
	"bytes"
	"iter"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A Fork says what a session that goes on from event At of another begins with.
//
// Copied is what the agent has said and done up to there, under new numbers, each
// event with the origin that it had or, where it had none, with one that names
// the parent's. Not copied are calls without a result, what writers say of
// themselves, the end of the parent, and dead letters; and of what is copied,
// not the key of a call, since it is another call than the parent's, nor what a
// person granted beyond the call that was asked about.
type Fork struct {
	Parent string
	At     uint64
	Sum    schema.Sum // of that event

	events  iter.Seq2[*schema.Event, error]
	started []byte
	rules   *Checker
	results []uint64 // of calls, by their number: the seq of the result that counts
	firsts  []uint64 // and of the calls themselves
}

// ReadFork reads a parent up to event at, its last one if that is 0. events
// gives its trusted events without holes and is gone through again by Copies.
// NotFound: there is no such event.
func ReadFork(parent string, at uint64, events iter.Seq2[*schema.Event, error]) (*Fork, error) {
	f := &Fork{Parent: parent, events: events, rules: NewChecker()}
	var spare schema.Fields
	for e, err := range events {
		if err != nil {
			return nil, err
		}
		f.At, f.Sum = e.Seq, e.Sum
		f.rules.Apply(e)
		d := data{e.Fields(&spare)}
		switch e.Type {
		case schema.TypeSessionStarted:
			f.started = bytes.Clone(e.Data)
		case schema.TypeToolCall:
			f.results, f.firsts = append(f.results, 0), append(f.firsts, e.Seq)
		case schema.TypeToolResult:
			if c := f.rules.find(plain(d.Get(schema.KeyCallID))); c.known {
				f.results[c.n] = e.Seq
			}
		}
		if at > 0 && e.Seq >= at { // damage behind it is no matter
			break
		}
	}
	if f.At == 0 || at > 0 && f.At != at {
		return nil, schema.Errorf(schema.NotFound, "session %s has no event %d: it ends with %d", parent, at, f.At).With("session", parent).With("seq", at).
			With("next", "give a number up to that of the last event; run: steno head "+parent)
	}
	return f, nil
}

// Started is the data of the session_started of the fork.
func (f *Fork) Started() []byte {
	var p, o schema.Object
	p.Text("session", f.Parent).Uint("seq", f.At).Text("sum", f.Sum.String()).Text("how", "fork")
	var d schema.Fields
	d.Read(f.started)
	for i := range d.Len() {
		if key, v := d.At(i); string(key) != "parent" && string(key) != "origin" && string(key) != "actor" {
			o.Raw(string(key), v)
		}
	}
	return o.Raw("parent", p.Bytes()).Bytes()
}

// A Copy is an event of a fork.
type Copy struct {
	Type string
	Data []byte // compact, with its blobs named as the parent has them
}

// Copies gives the events that stand behind session_started, which is number 2.
func (f *Fork) Copies() iter.Seq2[Copy, error] {
	return func(yield func(Copy, error) bool) {
		var spare schema.Fields
		seqs := []uint64{} // of the parent, of what is copied, in order
		to := func(seq uint64) uint64 {
			n, found := slices.BinarySearch(seqs, seq)
			if found {
				n++
			}
			return uint64(n) + 2
		}
		for e, err := range f.events {
			if err != nil {
				yield(Copy{}, err)
				return
			}
			if d := (data{e.Fields(&spare)}); f.copied(e, d) {
				c := Copy{e.Type, f.with(e, d, to)}
				seqs = append(seqs, e.Seq)
				if !yield(c, nil) {
					return
				}
			}
			if e.Seq >= f.At {
				return
			}
		}
	}
}

func (f *Fork) copied(e *schema.Event, d data) bool {
	switch e.Type {
	case schema.TypeWriterOpened, schema.TypeWriterReleased, schema.TypeSessionStarted, schema.TypeSessionEnded, schema.TypeDeadLetter:
		return false
	}
	if !ofCall(e.Type) {
		return true
	}
	c := f.rules.find(plain(d.Get(schema.KeyCallID)))
	return c.known && f.results[c.n] > 0 && e.Seq >= f.firsts[c.n]
}

// with is the data of a copied event: numbers of the parent are those of the
// fork.
func (f *Fork) with(e *schema.Event, d data, to func(uint64) uint64) []byte {
	var o schema.Object
	seq := func(v []byte) []byte { return strconv.AppendUint(nil, to(number(v)), 10) }
	origin := false
	for i := range d.Len() {
		key, v := d.At(i)
		switch k := string(key); {
		case e.Type == schema.TypeToolCall && k == "key", e.Type == schema.TypeDecision && k == "grant":
			continue
		case e.Type == schema.TypeToolResult && k == "supersedes", e.Type == schema.TypeHistoryRewind && k == "to_seq":
			v = seq(v)
		case e.Type == schema.TypeHistoryCompaction && (k == "range" || k == "tail") && v[0] == '{':
			v = numbered(v, to)
		case k == "origin":
			origin = true
		}
		o.Raw(string(key), v)
	}
	if !origin {
		var from schema.Object
		from.Text("session", f.Parent).Uint("seq", e.Seq).Text("id", e.ID.String())
		o.Raw("origin", from.Bytes())
	}
	return o.Bytes()
}

// numbered is an object with from_seq and to_seq, of the fork.
func numbered(v jsontext.Value, to func(uint64) uint64) []byte {
	var d schema.Fields
	var o schema.Object
	d.Read(v)
	for i := range d.Len() {
		key, v := d.At(i)
		switch string(key) {
		case "from_seq":
			v = strconv.AppendUint(nil, to(max(number(v), 1)-1)+1, 10)
		case "to_seq":
			v = strconv.AppendUint(nil, to(number(v)), 10)
		}
		o.Raw(string(key), v)
	}
	return o.Bytes()
}
