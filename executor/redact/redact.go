// Package redact takes secrets out of JSON and text before these are recorded,
// shown or logged, and says in marks where something was and what rule found it.
// What it leaves keeps its bytes.
//
// A rule goes by a name, a look or a value, never by a guess at how random a text
// is:
//
//   - key:NAME is a name whose value is secret: of a member in JSON, and before =
//     or : in text, as a header, a variable or a flag. password, api_key and
//     authorization are such names, as is what ends in access_token. A value that
//     only stands for one stays, as ${PASSWORD}, null, a type or a call.
//   - pattern:NAME is what secrets of a kind look like: tokens that say of whom
//     they are, private keys, the password of a URL.
//   - value:NAME is a known value, also as a URL and JSON spell it.
//
// [Rules] add to the built-in ones. JSON in a string of JSON is read as such, twice
// at most; colours of a terminal hide nothing. What has no known name, look or
// value is not found, and neither is what is encoded, as by base64.
//
// A [Redactor] is made once and used from many goroutines at a time, and so may be
// the functions.
package redact

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// redacted stands where a value was.
const redacted = "[redacted]"

// A Mark says what was replaced in an event: a pointer into its data, the rule
// that found it, and a hash of it under the store's secret, by which somebody
// who has the value and the secret can tell that it is the same.
type Mark struct {
	Pointer string
	Rule    string // key:NAME, pattern:NAME, value:NAME, or more:N for N further ones together
	Hash    string // hmac-sha256: and 64 hex digits
}

// Bounds of the marks of one field: of what comes behind, one mark says how much
// it was, and hashes all of it.
const (
	maxMarks   = 32
	maxPointer = 200 // bytes; a longer one ends at an ancestor
)

// AppendMarks adds marks as they are recorded.
func AppendMarks(b []byte, marks []Mark) []byte {
	b = append(b, '[')
	for i, m := range marks {
		if i > 0 {
			b = append(b, ',')
		}
		var o schema.Object
		b = append(b, o.Text("pointer", m.Pointer).Text("rule", m.Rule).Text("hash", m.Hash).Bytes()...)
	}
	return append(b, ']')
}

// A Redactor replaces secrets by a mark. It does not change any more, and may
// be used from many goroutines.
type Redactor struct {
	secret   []byte
	names    map[string]string // rules by key name, both without case and dashes
	tails    [32 * 32]bool     // what their last two bytes may be, by letter
	begins   [1 << 16]uint8    // which of groups may match where these two bytes stand
	groups   [256][]*literal
	patterns []*pattern
}

// JSON gives JSON with what is secret in it replaced, and m with a mark for
// each. at is the pointer to b. What is not replaced keeps its bytes; where
// nothing is, b itself comes back and nothing is allocated. What is no JSON is
// taken as text.
func (r *Redactor) JSON(b []byte, at string, m []Mark) ([]byte, []Mark) {
	if len(b) == 0 {
		return b, m
	}
	w := redactions.Get().(*redaction)
	defer w.back()
	w.begin(r, at, m)
	src := unsafe.String(unsafe.SliceData(b), len(b)) // only read, and not kept
	if out, is := w.json(src, 0); is {
		if out == nil {
			return b, m
		}
		return out, w.done()
	}
	w.begin(r, at, m)
	if s, hit := w.text(src, maxNested); hit {
		return []byte(s), w.done()
	}
	return b, m
}

// Text is [Redactor.JSON] for a text. A text that is JSON is looked at as such.
func (r *Redactor) Text(s, at string, m []Mark) (string, []Mark) {
	if s == "" {
		return s, m
	}
	w := redactions.Get().(*redaction)
	defer w.back()
	w.begin(r, at, m)
	if s, hit := w.text(s, 0); hit {
		return s, w.done()
	}
	return s, m
}

// Texts is [Redactor.Text] for the texts of one field: all have its pointer, and
// share the bound of its marks. The list itself stays as it is.
func (r *Redactor) Texts(list []string, at string, m []Mark) ([]string, []Mark) {
	owned := false
	for i := range list {
		n := len(m)
		text, marks := r.Text(list[i], at, m)
		if len(marks) == n {
			continue
		}
		if !owned { // the list is the tool's
			list, owned = slices.Clone(list), true
		}
		if n >= maxMarks {
			marks = append(marks[:n-1], r.both(marks[n-1], marks[n:]))
		}
		list[i], m = text, marks
	}
	return list, m
}

// both makes one mark of several.
func (r *Redactor) both(first Mark, more []Mark) Mark {
	h := hmac.New(sha256.New, r.secret)
	n := 0
	for _, m := range append([]Mark{first}, more...) {
		count := 1
		if rest, ok := strings.CutPrefix(m.Rule, "more:"); ok {
			count, _ = strconv.Atoi(rest) // it is ours
		}
		n += count
		h.Write([]byte(m.Hash))
	}
	return Mark{first.Pointer, "more:" + strconv.Itoa(n), sumOf(h)}
}

func sumOf(h hash.Hash) string { return "hmac-sha256:" + hex.EncodeToString(h.Sum(nil)) }

// A redaction is one text or JSON on its way through a Redactor, and memory
// that the next may have.
type redaction struct {
	r       *Redactor
	at      string
	marks   []Mark
	own     int       // of marks, how many are of this redaction
	more    hash.Hash // of the values behind maxMarks
	further int       // how many these are
	spans   []stretch
	looked  []int // by pattern: the place up to which it has been looked for
	frames  []frame
	buffers [maxNested + 1][]byte
}

// maxNested is how deep JSON in strings of JSON is read as such.
const maxNested = 2

var redactions = sync.Pool{New: func() any { return new(redaction) }}

func (w *redaction) begin(r *Redactor, at string, m []Mark) {
	w.r, w.at, w.marks, w.own, w.more, w.further = r, at, m, 0, nil, 0
	w.spans, w.frames = w.spans[:0], w.frames[:0]
}

func (w *redaction) back() {
	for i, b := range w.buffers {
		if cap(b) > 64<<10 {
			w.buffers[i] = nil
		}
	}
	clear(w.frames[:cap(w.frames)]) // they point into texts
	w.r, w.at, w.marks = nil, "", nil
	redactions.Put(w)
}

// done gives the marks.
func (w *redaction) done() []Mark {
	if w.further > 0 {
		w.marks = append(w.marks, Mark{w.at, "more:" + strconv.Itoa(w.further), sumOf(w.more)})
	}
	return w.marks
}

// mark takes down that a value is replaced. kind tells a text from what is
// written like it.
func (w *redaction) mark(rule string, kind, value string) {
	if w.own == maxMarks {
		if w.more == nil {
			w.more = hmac.New(sha256.New, w.r.secret)
		}
		w.further++
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(kind)+len(value)))
		w.more.Write(n[:])
		w.more.Write([]byte(kind + value))
		return
	}
	h := hmac.New(sha256.New, w.r.secret)
	h.Write([]byte(kind + value))
	w.own++
	w.marks = append(w.marks, Mark{w.pointer(), rule, sumOf(h)})
}

// sofar is what w.more is now, to be gone back to: w hashes on in one of its own.
func (w *redaction) sofar() hash.Hash {
	if w.more == nil {
		return nil
	}
	was := w.more
	on, err := was.(hash.Cloner).Clone()
	if err != nil {
		panic("redact: a hash cannot be copied: " + err.Error()) // SHA-256 can be
	}
	w.more = on
	return was
}

// A stretch is a secret in a text.
type stretch struct {
	from, to int
	rule     string
}

func (w *redaction) found(from, to int, rule string) {
	if from < to {
		w.spans = append(w.spans, stretch{from, to, rule})
	}
}

// text looks through a text; hit says that something was replaced. nested is how
// many strings of JSON it lies in.
func (w *redaction) text(s string, nested int) (out string, hit bool) {
	if nested < maxNested && likeJSON(s) {
		own, marks, more, further := w.own, len(w.marks), w.sofar(), w.further
		if b, is := w.json(s, nested+1); is {
			if b == nil {
				return s, false
			}
			return string(b), true
		}
		w.own, w.marks, w.more, w.further = own, w.marks[:marks], more, further
	}
	w.find(s)
	if len(w.spans) == 0 {
		return s, false
	}
	slices.SortFunc(w.spans, func(a, b stretch) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to), cmp.Compare(a.rule, b.rule))
	})
	var b strings.Builder
	last := 0
	for i := 0; i < len(w.spans); {
		f := w.spans[i]
		for i++; i < len(w.spans) && w.spans[i].from < f.to; i++ {
			f.to = max(f.to, w.spans[i].to)
		}
		b.WriteString(s[last:f.from])
		b.WriteString(redacted)
		w.mark(f.rule, "", s[f.from:f.to])
		last = f.to
	}
	b.WriteString(s[last:])
	return b.String(), true
}

// likeJSON says whether it is worth reading a text as JSON.
func likeJSON(s string) bool {
	for len(s) > 0 && isSpace(s[0]) {
		s = s[1:]
	}
	if s == "" || s[0] != '{' && s[0] != '[' {
		return false
	}
	last := len(s) - 1
	for isSpace(s[last]) {
		last--
	}
	return s[last] == s[0]+2
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// find finds the spans of a text, as it stands and as a terminal shows it.
func (w *redaction) find(s string) {
	w.spans = w.spans[:0]
	w.scan(s)
	if strings.IndexByte(s, 0x1b) < 0 {
		return
	}
	n := len(w.spans)
	plain, cuts := withoutEscapes(s)
	w.scan(plain)
	for i := range w.spans[n:] {
		f := &w.spans[n+i]
		f.from, f.to = stood(cuts, f.from), stood(cuts, f.to-1)+1
	}
}

// scan finds the spans of a text in one pass: a table says at which two bytes
// something may begin, and only there is anything compared.
func (w *redaction) scan(s string) {
	if len(s) < 2 {
		return
	}
	w.looked = append(w.looked[:0], make([]int, len(w.r.patterns))...)
	k := uint16(s[0])
	for i := 1; i < len(s); i++ {
		k = k<<8 | uint16(s[i])
		if g := w.r.begins[k]; g != 0 {
			w.look(s, i-1, w.r.groups[g])
		}
	}
}

// look compares what may match at a place.
func (w *redaction) look(s string, at int, group []*literal) {
	for _, l := range group {
		if l.text == "" {
			w.named(s, at+1)
			continue
		}
		if !l.at(s[at:]) {
			continue
		}
		switch {
		case l.shape != nil:
			if from, to := l.shape.find(l.shape, s, at, at+len(l.text)); from < to {
				w.found(from, to, l.rule)
			}
		case l.pattern >= 0:
			w.match(s, at, l.pattern)
		default:
			w.found(at, at+len(l.text), l.rule)
		}
	}
}

// match looks for an expression around a place where a text of it stands. A
// long text is looked at in windows that overlap by half.
func (w *redaction) match(s string, at, i int) {
	if at < w.looked[i] {
		return
	}
	p := w.r.patterns[i]
	from, to := 0, len(s)
	if len(s) > 2*patternWindow {
		from, to = max(0, at-patternWindow), min(len(s), at+patternWindow)
	}
	for _, m := range p.re.FindAllStringIndex(s[from:to], -1) {
		w.found(from+m[0], from+m[1], p.rule)
	}
	w.looked[i] = at + patternWindow/2
	if to == len(s) {
		w.looked[i] = to
	}
}

// patternWindow is how far an operator's expression sees in a text that is
// longer than twice as much.
const patternWindow = 64 << 10

// Handler makes a log handler that writes what it is given without secrets, so
// that the log of a process keeps none that a record would not.
func (r *Redactor) Handler(h slog.Handler) slog.Handler { return &redactingHandler{r, h} }

type redactingHandler struct {
	r *Redactor
	h slog.Handler
}

func (h *redactingHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.h.Enabled(ctx, l)
}

func (h *redactingHandler) Handle(ctx context.Context, rec slog.Record) error {
	message, _ := h.r.Text(rec.Message, "", nil)
	out := slog.NewRecord(rec.Time, rec.Level, message, rec.PC)
	rec.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(h.attr(a))
		return true
	})
	return h.h.Handle(ctx, out)
}

func (h *redactingHandler) attr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	if a.Value.Kind() == slog.KindGroup {
		list := slices.Clone(a.Value.Group())
		for i := range list {
			list[i] = h.attr(list[i])
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(list...)}
	}
	if _, is := h.r.key(a.Key); is {
		return slog.String(a.Key, redacted)
	}
	text := a.Value.String()
	if b, ok := a.Value.Any().([]byte); ok {
		text = string(b)
	} else if v, ok := a.Value.Any().(jsontext.Value); ok {
		text = string(v)
	} else if a.Value.Kind() == slog.KindAny {
		text = fmt.Sprint(a.Value.Any()) // as an error says it
	}
	if clean, marks := h.r.Text(text, "", nil); len(marks) > 0 {
		return slog.String(a.Key, clean)
	}
	return a
}

func (h *redactingHandler) WithAttrs(list []slog.Attr) slog.Handler {
	list = slices.Clone(list)
	for i := range list {
		list[i] = h.attr(list[i])
	}
	return &redactingHandler{h.r, h.h.WithAttrs(list)}
}

func (h *redactingHandler) WithGroup(name string) slog.Handler {
	return &redactingHandler{h.r, h.h.WithGroup(name)}
}
