package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// A sieve searches one session after another. Of a session whose writer has
// released it, and whose lines are all whole, of the right sum and linked, it
// decodes no line but those that may match. Every other one is read by a Scan,
// which knows what counts.
type sieve struct {
	*search
	lines *bufio.Reader
	event schema.Event
	calls map[string]string // the tools of calls, if they are asked for
	state map[string]replay.CallState
	bad   error // of the first blob that is not what it was
}

func (r *sieve) session(ctx context.Context, f *found) error {
	list, err := r.store.Segments(ctx, f.id)
	if err != nil {
		return r.removed(err)
	}
	may, sound := r.sift(ctx, f.id, list)
	if sound && !may {
		return nil
	}
	r.calls, r.state, r.bad = map[string]string{}, nil, nil
	if r.search.state != "" {
		if r.state, err = r.states(ctx, f.id); err != nil {
			return r.removed(err)
		}
	}
	if sound {
		err := r.each(ctx, f.id, list, func(line []byte, header bool) error {
			if header || !r.may(line) {
				return nil
			}
			if err := r.event.Decode(line); err != nil {
				return schema.Errorf(schema.CorruptLogLine, "a line of session %s has the right sum and is no event", f.id).With("session", f.id).Cause(err)
			}
			return r.look(ctx, &r.event, f)
		})
		if err == nil {
			err = r.bad
		}
		return err
	}
	scan := journal.NewScan(r.store, f.id, journal.ScanOptions{})
	for it, err := range scan.Items(ctx) {
		if err == nil && it.Event != nil && r.may(it.Line) {
			err = r.look(ctx, it.Event, f)
		}
		if err != nil {
			return r.removed(err)
		}
	}
	if scan.FirstError != nil {
		return scan.FirstError.Err(f.id)
	}
	return r.bad
}

// removed is err, nil where it is that a session was removed that nobody named.
func (r *sieve) removed(err error) error {
	if r.named || schema.KindOf(err) != schema.NotFound {
		return err
	}
	return nil
}

// each gives the lines of a session, until one is not whole.
func (r *sieve) each(ctx context.Context, id string, list []lease.Segment, give func(line []byte, header bool) error) error {
	if r.lines == nil {
		r.lines = bufio.NewReaderSize(nil, schema.MaxLine+1)
	}
	for _, g := range list {
		f, err := r.store.Read(ctx, id, g.Epoch, 0)
		if err != nil {
			return err
		}
		r.lines.Reset(io.LimitReader(f, g.Size))
		for n := 0; ; n++ {
			line, err := r.lines.ReadSlice('\n')
			if err == io.EOF && len(line) == 0 {
				break
			}
			if err == nil {
				err = give(line[:len(line)-1], n == 0)
			}
			if err != nil {
				f.Close()
				return err
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// sift checks the lines of a session as they stand, and says whether one may
// match. It knows the simplest log alone: each segment of one epoch, its lines
// linked from the first to a writer_released.
func (r *sieve) sift(ctx context.Context, id string, list []lease.Segment) (may, sound bool) {
	begin := []byte(`{"v":1,"session":"` + id + `","`)
	prev := []byte(strings.Repeat("0", 2*sha256.Size))
	seq, last := uint64(0), false
	epoch, head := 0, make([]byte, 0, 64)
	err := r.each(ctx, id, list, func(line []byte, header bool) error {
		sum, ok := sumOf(line)
		if !ok || !bytes.HasPrefix(line, begin) {
			return errNotSimple
		}
		if header {
			epoch++
			if !bytes.HasPrefix(line[len(begin):], fmt.Appendf(nil, `epoch":%d,"ts":"`, list[epoch-1].Epoch)) {
				return errNotSimple
			}
			return nil
		}
		seq++
		head = strconv.AppendUint(append(head[:0], `seq":`...), seq, 10)
		head = strconv.AppendUint(append(head, `,"epoch":`...), list[epoch-1].Epoch, 10)
		if !bytes.HasPrefix(line[len(begin):], head) || !bytes.HasSuffix(line[:len(line)-endLen], prev) {
			return errNotSimple
		}
		prev = append(prev[:0], sum...)
		last = bytes.Contains(line[:min(len(line), 300)], []byte(`","type":"writer_released","data":`))
		may = may || r.may(line)
		return nil
	})
	return may, err == nil && last
}

var errNotSimple = schema.Errorf(schema.CorruptLogLine, "the log is not of the simplest form")

// endLen is the length of the end of a line, behind the digits of prev.
const endLen = len(`","sum":"`) + 2*sha256.Size + len(`"}`)

// sumOf gives the digits of a line's sum, and whether it is the right one.
func sumOf(line []byte) (digits []byte, ok bool) {
	const of = len(`,"sum":"`) + 2*sha256.Size + len(`"}`)
	if len(line) < 2*of || !bytes.HasSuffix(line, []byte(`"}`)) || !bytes.HasPrefix(line[len(line)-of:], []byte(`,"sum":"`)) {
		return nil, false
	}
	sum := sha256.Sum256(line[:len(line)-of])
	var want [2 * sha256.Size]byte
	hex.Encode(want[:], sum[:])
	digits = line[len(line)-len(want)-2 : len(line)-2]
	return digits, bytes.Equal(digits, want[:])
}

// need finds what stands in every line that can match.
func (s *search) need(pattern string) {
	if re, err := syntax.Parse(pattern, syntax.Perl); err == nil {
		s.longest = longestOf(re)
		if l := literal(re.Simplify()); l != "" {
			s.literal = []byte(l)
			s.literals = append(s.literals, s.literal)
		}
	}
	if s.kind != "" {
		s.literals = append(s.literals, []byte(`"`+s.kind+`"`))
	}
}

// literal is a text that every match of an expression contains, as a line has it
// that escapes nothing it need not: the longest piece without quotes, reverse
// solidi and control characters.
func literal(re *syntax.Regexp) string {
	best := ""
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return ""
		}
		for _, part := range strings.FieldsFunc(string(re.Rune), func(c rune) bool { return c < ' ' || c == '"' || c == '\\' || c == utf8.RuneError }) {
			if len(part) > len(best) {
				best = part
			}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literal(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return literal(re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if l := literal(sub); len(l) > len(best) {
				best = l
			}
		}
	}
	return best
}

// may reports whether a line may match. Where a character may be written as an
// escape of its number a text need not stand there as it is, and of a line with
// blobs most lies beside it.
func (r *sieve) may(line []byte) bool {
	if r.search.tool != "" && bytes.Contains(line[:min(len(line), 300)], []byte(`","type":"tool_call","data":`)) {
		return true // it says which calls are those of the tool
	}
	for _, l := range r.literals {
		if !bytes.Contains(line, l) && !bytes.Contains(line, []byte(`\u`)) && !bytes.Contains(line, []byte(`\/`)) && !bytes.Contains(line, []byte(`"blobs":["/`)) {
			return false
		}
	}
	return true
}

// look gives the event away if it matches.
func (r *sieve) look(ctx context.Context, e *schema.Event, f *found) error {
	var d struct {
		CallID string `json:"call_id"`
		Name   string `json:"name"`
		Error  *struct {
			Kind string `json:"kind"`
		} `json:"error"`
	}
	_ = schema.Unmarshal(e.Data, &d) // what has another form has none of these
	if r.search.tool != "" {
		if e.Type == schema.TypeToolCall && d.Name == r.search.tool {
			r.calls[d.CallID] = d.Name
		}
		if r.calls[d.CallID] == "" {
			return nil
		}
	}
	switch {
	case !r.since.IsZero() && e.Time.Before(r.since), !r.until.IsZero() && !e.Time.Before(r.until),
		r.kind != "" && (d.Error == nil || d.Error.Kind != r.kind),
		r.search.state != "" && string(r.state[d.CallID]) != r.search.state:
		return nil
	}
	at, text := "", ""
	if r.pattern.MatchString("") { // as every event does, also one without a text
		text = about(e)
	} else if at, text = r.match(withoutBlobs(e.Data)); at == "" {
		var err error
		if at, text, err = r.inBlobs(ctx, e, f.id); err != nil || at == "" {
			return r.removed(err)
		}
	}
	h := hit{Session: f.id, Seq: e.Seq, Time: e.Time, Type: e.Type, CallID: d.CallID, Tool: r.calls[d.CallID], At: at, Text: text}
	if e.Type == schema.TypeToolCall {
		h.Tool = d.Name
	}
	select {
	case f.hits <- h:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// match looks at the texts and numbers of data. at is "" if none matches.
func (r *sieve) match(data []byte) (at, text string) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	for {
		t, err := dec.ReadToken()
		if err != nil {
			break
		}
		kind, n := dec.StackIndex(dec.StackDepth())
		if k := t.Kind(); k != '"' && k != '0' && k != 't' && k != 'f' || k == '"' && kind == '{' && n%2 == 1 { // a name
			continue
		}
		s := t.String()
		if m := r.pattern.FindStringIndex(s); m != nil {
			return string(dec.StackPointer()), around(s, m[0], m[1])
		}
	}
	return "", ""
}

// around is the text of a match with what stands on either side.
func around(s string, from, to int) string {
	const before, width = 24, 100
	begin := from
	for n := 0; n < before && begin > 0; n++ {
		_, size := utf8.DecodeLastRuneInString(s[:begin])
		begin -= size
	}
	text := s[begin:]
	if begin > 0 {
		text = "…" + text
	}
	return short(text[:min(len(text), slices.Max([]int{to - begin, 4 * width}))], width)
}
