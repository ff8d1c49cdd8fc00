package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A point is an event that means something by itself, or a call with all that
// became of it.
type point struct {
	seq  uint64
	typ  string  // one of those of schema
	mean digest  // of an event what it says, of a call its tool and arguments
	call *called // nil if it is none
}

// A called is what became of a call.
type called struct {
	id, tool string
	decision string
	args     digest
	outcome  digest // what its result says
	result   uint64 // the seq of the one that counts, 0 for none
}

// A digest tells meanings apart. Half of a sum is enough, and a log has many.
type digest [sha256.Size / 2]byte

func digestOf(b []byte) digest {
	sum := sha256.Sum256(b)
	return digest(sum[:])
}

// compared are the types of events that are steps besides calls.
var compared = map[string]bool{schema.TypeUserMessage: true, schema.TypeAssistantMessage: true, schema.TypeReasoning: true,
	schema.TypePhaseChanged: true, schema.TypeStateChanged: true, schema.TypeTurnFailed: true, schema.TypeSessionEnded: true,
	schema.TypePostureChanged: true, schema.TypeHistoryRewind: true, schema.TypeHistoryCompaction: true}

// What is left out of data because it is no meaning.
var (
	unmeant = []string{"actor", "origin", "turn", "trace", "replaced", "redacted", "blobs"}
	// What a result says of the run and not of its outcome.
	ofTheRun = append([]string{"call_id", "attempt", "summary", "duration_us", "files_read", "synthetic", "supersedes", "by", "reason", "repeat"}, unmeant...)
	// The numbers of events are of one log. What lies between them is compared.
	numbers = append([]string{"to_seq", "range", "tail"}, unmeant...)
	callIDs = map[string]bool{"id": true, "call_id": true, "tool_use_id": true, "tool_call_id": true}
)

// pointsOf reads the steps of a session.
func pointsOf(ctx context.Context, store journal.Store, id string, asOf uint64) (steps []*point, damage, err error) {
	calls, names := map[string]*called{}, map[string]string{} // names stand once each
	once := func(s string) string {
		if is, ok := names[s]; ok {
			return is
		}
		names[s] = s
		return s
	}
	scan := journal.NewScan(store, id, journal.ScanOptions{State: replay.NewChecker(), AsOf: asOf})
	for it, err := range upTo(ctx, scan, id, asOf) {
		if err != nil {
			return nil, nil, err
		}
		e := it.Event
		if e == nil {
			continue
		}
		switch e.Type {
		case schema.TypeToolCall:
			s := callPoint(e)
			s.call.tool = once(s.call.tool)
			steps, calls[s.call.id] = append(steps, s), s.call
		case schema.TypeDecision:
			if s := calls[callIDOf(e)]; s != nil {
				var d struct {
					Decision string  `json:"decision"`
					By       rawText `json:"by"`
				}
				_ = schema.Unmarshal(e.Data, &d) // the fold has accepted it
				s.decision = once(d.Decision + " by " + string(d.By))
			}
		case schema.TypeToolResult:
			if s := calls[callIDOf(e)]; s != nil { // the last one counts
				s.result, s.outcome = e.Seq, meaning(e.Data, ofTheRun)
			}
		default:
			if compared[e.Type] {
				steps = append(steps, &point{seq: e.Seq, typ: once(e.Type), mean: steered(e, steps)})
			}
		}
	}
	if scan.FirstError != nil {
		damage = scan.FirstError.Err(id)
	}
	return steps, damage, nil
}

// steered is what an event means behind steps. Of one that changes the history that
// is how many of them it takes back or sums up, and how many it leaves behind those.
func steered(e *schema.Event, steps []*point) digest {
	if e.Type != schema.TypeHistoryRewind && e.Type != schema.TypeHistoryCompaction {
		return meaning(e.Data, unmeant)
	}
	var d struct {
		To    uint64 `json:"to_seq"`
		Range struct {
			From uint64 `json:"from_seq"`
			To   uint64 `json:"to_seq"`
		} `json:"range"`
	}
	_ = schema.Unmarshal(e.Data, &d) // the fold has accepted it
	behind := func(seq uint64) int {
		i, _ := slices.BinarySearchFunc(steps, seq+1, func(s *point, seq uint64) int { return cmp.Compare(s.seq, seq) })
		return len(steps) - i
	}
	is := meaning(e.Data, numbers)
	if e.Type == schema.TypeHistoryRewind {
		return digestOf(fmt.Appendf(is[:], " %d", behind(d.To)))
	}
	return digestOf(fmt.Appendf(is[:], " %d %d", behind(max(d.Range.From, 1)-1), behind(d.Range.To)))
}

func callPoint(e *schema.Event) *point {
	var d struct {
		CallID   string         `json:"call_id"`
		Name     string         `json:"name"`
		Args     string         `json:"args_sha256"`
		DryRun   bool           `json:"dry_run"`
		Redacted jsontext.Value `json:"redacted"`
	}
	_ = schema.Unmarshal(e.Data, &d) // the fold has accepted it
	args := digestOf(fmt.Appendf(nil, "%s %t %s", d.Args, d.DryRun, replay.Hidden(d.Redacted)))
	return &point{e.Seq, schema.TypeToolCall, digestOf(append([]byte(d.Name+"\n"), args[:]...)), &called{id: d.CallID, tool: d.Name, args: args}}
}

// meaning is the hash of data without some of its keys, and without the ids in
// the blocks of what a provider gave: with its keys in order, its texts however
// they are escaped, and what is redacted by its hash.
func meaning(data jsontext.Value, without []string) digest {
	var fields map[string]jsontext.Value
	if schema.Unmarshal(data, &fields) != nil {
		return digestOf(data)
	}
	h := sha256.New()
	var marks []struct {
		Pointer string `json:"pointer"`
		Hash    string `json:"hash"`
	}
	_ = schema.Unmarshal(fields["redacted"], &marks) // none are as good as any that cannot be read
	for _, key := range without {
		delete(fields, key)
	}
	for _, m := range marks {
		if key, _, _ := strings.Cut(strings.TrimPrefix(m.Pointer, "/"), "/"); fields[key] != nil {
			fmt.Fprintf(h, "%q %q,", m.Pointer, m.Hash)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		fmt.Fprintf(h, "%q:", key)
		mean(h, fields[key], key == "content" || key == "item")
	}
	return digest(h.Sum(nil))
}

// mean writes what a value means. A block has its ids at its top, and those of the
// calls that it declares; deeper they are somebody's data.
func mean(h hash.Hash, v jsontext.Value, block bool) {
	switch v.Kind() {
	case '{':
		var fields map[string]jsontext.Value
		if schema.Unmarshal(v, &fields) != nil {
			break
		}
		h.Write([]byte("{"))
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			if block && callIDs[k] {
				continue
			}
			fmt.Fprintf(h, "%q:", k)
			mean(h, fields[k], block && k == "tool_calls")
		}
		h.Write([]byte("}"))
		return
	case '[':
		var list []jsontext.Value
		if schema.Unmarshal(v, &list) != nil {
			break
		}
		h.Write([]byte("["))
		for _, x := range list {
			mean(h, x, block)
			h.Write([]byte(","))
		}
		h.Write([]byte("]"))
		return
	case '"':
		var s string
		if json.Unmarshal(v, &s, jsontext.AllowInvalidUTF8(true)) == nil {
			fmt.Fprintf(h, "%q", s)
			return
		}
	}
	h.Write(v)
}

// differs says in what two steps do, nothing if they mean the same.
func (s *point) differs(o *point) (what []string) {
	switch {
	case s.typ != o.typ:
		return []string{"type"}
	case s.typ != schema.TypeToolCall && s.mean != o.mean:
		return []string{"content"}
	case s.typ != schema.TypeToolCall:
		return nil
	}
	a, b := s.call, o.call
	if a.tool != b.tool {
		what = append(what, "tool")
	}
	if a.args != b.args {
		what = append(what, "arguments")
	}
	if a.decision != b.decision {
		what = append(what, "decision")
	}
	if a.outcome != b.outcome {
		what = append(what, "result")
	}
	return what
}

// align puts the steps of two sessions beside each other, in the order of both:
// equal ones first, as many as can be without crossing, and what lies between
// two such by its place, calls to calls.
func align(a, b []*point) (pairs [][2]*point) {
	at := make([]int, len(b)) // the places of b, equal steps beside each other in their order
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(i, j int) int { return bytes.Compare(b[i].mean[:], b[j].mean[:]) })
	taken := make([]int, len(b)) // how many of them, at the first
	// Of each step of a, the place of the same occurrence of it in b.
	var places [][2]int
	for i, s := range a {
		k, found := slices.BinarySearchFunc(at, s.mean, func(i int, m digest) int { return bytes.Compare(b[i].mean[:], m[:]) })
		if !found {
			continue
		}
		if n := k + taken[k]; n < len(at) && b[at[n]].mean == s.mean {
			places = append(places, [2]int{i, at[n]})
			taken[k]++
		}
	}
	i, j := 0, 0
	for _, p := range append(increasing(places), [2]int{len(a), len(b)}) {
		for i < p[0] || j < p[1] {
			switch {
			case i < p[0] && j < p[1] && a[i].typ == b[j].typ:
				pairs = append(pairs, [2]*point{a[i], b[j]})
				i, j = i+1, j+1
			case i < p[0]:
				pairs = append(pairs, [2]*point{a[i], nil})
				i++
			default:
				pairs = append(pairs, [2]*point{nil, b[j]})
				j++
			}
		}
		if i < len(a) && j < len(b) {
			pairs = append(pairs, [2]*point{a[i], b[j]})
			i, j = i+1, j+1
		}
	}
	return pairs
}

// increasing is the longest part of places whose second numbers grow, as their
// first do.
func increasing(places [][2]int) [][2]int {
	var ends []int // of places, the last of the best part of each length
	before := make([]int, len(places))
	for i, p := range places {
		n := sort.Search(len(ends), func(n int) bool { return places[ends[n]][1] >= p[1] })
		before[i] = -1
		if n > 0 {
			before[i] = ends[n-1]
		}
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
	}
	if len(ends) == 0 {
		return nil
	}
	best := make([][2]int, len(ends))
	for n, i := len(ends)-1, ends[len(ends)-1]; n >= 0; n, i = n-1, before[i] {
		best[n] = places[i]
	}
	return best
}
