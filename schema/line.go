package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/oklog/ulid/v2"
)

// Version is the v of every line that this package writes and the largest it
// reads.
const Version = 1

// MaxLine is the largest line in bytes, without its newline. It is one limit
// for writers, readers and NATS, whose messages hold 1 MiB by default.
const MaxLine = 960 << 10

// sumLen is the length of `,"sum":"<64 hex>"}`, which ends every line.
const sumLen = len(`,"sum":"`) + 64 + len(`"}`)

// TimeFormat is how ts is written: UTC, six decimals.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// A Sum is the SHA-256 that ends a line. The zero Sum is the prev of the first
// event of a session.
type Sum [sha256.Size]byte

func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// MarshalText gives the lower-case hex form.
func (s Sum) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText is ParseSum.
func (s *Sum) UnmarshalText(b []byte) (err error) { *s, err = ParseSum(string(b)); return err }

// ParseSum parses 64 lower-case hex digits, and only those: upper case would
// be a second text for the same sum.
func ParseSum(text string) (s Sum, err error) {
	if !s.parse([]byte(text)) {
		return Sum{}, Errorf(InvalidArgs, "a sum is 64 lower-case hex digits; got %s", quote(text))
	}
	return s, nil
}

func (s *Sum) parse(b []byte) bool {
	if len(b) != 2*len(s) {
		return false
	}
	for i := range s {
		hi, lo := unhex[b[2*i]], unhex[b[2*i+1]]
		if hi > 15 || lo > 15 {
			return false
		}
		s[i] = hi<<4 | lo
	}
	return true
}

var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xFF
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = byte(i)
	}
	return t
}()

// An Event is one numbered line of a log: a fact, never changed afterwards.
type Event struct {
	Session string
	Seq     uint64 // from 1, without gaps
	Epoch   uint64 // which writer wrote it
	ID      ulid.ULID
	Time    time.Time // information; it never decides anything
	Type    string
	Data    jsontext.Value // compact JSON, as written
	Dur     uint64         // highest seq known durable when the line was written
	Prev    Sum            // sum of the event before, zero for seq 1
	Sum     Sum            // of this line
}

// Head is the head of a log that ends with e.
func (e *Event) Head() Head { return Head{e.Epoch, e.Seq, e.Sum} }

// Append appends the line of e, with its newline, to dst and sets e.Sum. Data
// must come from Compact and the other fields must be valid; Append does not
// look again.
func (e *Event) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, `{"v":1,"session":"`...)
	dst = append(dst, e.Session...)
	dst = append(dst, `","seq":`...)
	dst = strconv.AppendUint(dst, e.Seq, 10)
	dst = append(dst, `,"epoch":`...)
	dst = strconv.AppendUint(dst, e.Epoch, 10)
	dst = append(dst, `,"id":"`...)
	dst = append(dst, make([]byte, ulid.EncodedSize)...)
	_ = e.ID.MarshalTextTo(dst[len(dst)-ulid.EncodedSize:]) // errs only for a short buffer
	dst = append(dst, `","ts":"`...)
	dst = e.Time.UTC().AppendFormat(dst, TimeFormat)
	dst = append(dst, `","type":"`...)
	dst = append(dst, e.Type...)
	dst = append(dst, `","data":`...)
	dst = append(dst, e.Data...)
	if e.Dur != e.Seq-1 {
		dst = append(dst, `,"dur":`...)
		dst = strconv.AppendUint(dst, e.Dur, 10)
	}
	dst = append(dst, `,"prev":"`...)
	dst = hex.AppendEncode(dst, e.Prev[:])
	dst = append(dst, '"')
	return appendSum(dst, at, &e.Sum)
}

// appendSum ends the line that begins at dst[at:].
func appendSum(dst []byte, at int, sum *Sum) []byte {
	*sum = sha256.Sum256(dst[at:])
	dst = append(dst, `,"sum":"`...)
	dst = hex.AppendEncode(dst, sum[:])
	return append(dst, "\"}\n"...)
}

// Decode reads a line, given without its newline, into e. Data aliases line.
// It is strict: exact keys in the exact order, no white space, no key twice,
// and what it accepts Append writes to the same bytes. The error is a Reason,
// or the Kind UnsupportedSchemaVersion; e holds nothing of use then. Decoding
// line after line into the same Event saves the allocation of equal sessions
// and types.
func (e *Event) Decode(line []byte) error {
	if len(line) > MaxLine {
		return OverLimit
	}
	if !e.parse(line) {
		return diagnose(line)
	}
	if sha256.Sum256(line[:len(line)-sumLen]) != e.Sum {
		return SumMismatch
	}
	return nil
}

func (e *Event) parse(line []byte) bool {
	p := parser{b: line}
	var session, typ []byte
	ok := p.lit(`{"v":1,"session":"`) && p.text(&session) && validSession(session) &&
		p.lit(`","seq":`) && p.uint(&e.Seq) && e.Seq > 0 &&
		p.lit(`,"epoch":`) && p.uint(&e.Epoch) && e.Epoch > 0 &&
		p.lit(`,"id":"`) && p.ulid(&e.ID) &&
		p.lit(`","ts":"`) && p.time(&e.Time) &&
		p.lit(`","type":"`) && p.text(&typ) && validType(typ) &&
		p.lit(`","data":`) && p.value((*[]byte)(&e.Data))
	if !ok {
		return false
	}
	e.Dur = e.Seq - 1
	if p.lit(`,"dur":`) && (!p.uint(&e.Dur) || e.Dur >= e.Seq-1) {
		return false
	}
	if !p.lit(`,"prev":"`) || !p.sum(&e.Prev) || !p.lit(`","sum":"`) || !p.sum(&e.Sum) || !p.lit(`"}`) || len(p.b) > 0 {
		return false
	}
	if e.Session != string(session) {
		e.Session = string(session)
	}
	if e.Type != string(typ) {
		e.Type = string(typ)
	}
	return true
}

// A Claim is the header line of a segment. It names its holder and has no
// number.
type Claim struct {
	Session string
	Epoch   uint64
	Time    time.Time
	Holder  Holder
	Sum     Sum
}

// A Holder is a process that holds leases. Nothing is decided by its pid.
type Holder struct {
	ID         string `json:"id"` // a ULID, new for every process start
	Host       string `json:"host"`
	BootID     string `json:"boot_id"`
	PID        int    `json:"pid"`
	PIDStarted string `json:"pid_started"`
	Program    string `json:"program"`
}

type claimBody struct {
	Holder Holder `json:"holder"`
}

// Append appends the header line, with its newline, to dst and sets c.Sum.
// Broken UTF-8 in what the system says of the holder becomes U+FFFD. A line
// that no reader would take is LineTooLong.
func (c *Claim) Append(dst []byte) ([]byte, error) {
	h := &c.Holder
	var holder, body Object
	holder.Text("id", h.ID).Text("host", h.Host).Text("boot_id", h.BootID).
		Raw("pid", strconv.AppendInt(nil, int64(h.PID), 10)).Text("pid_started", h.PIDStarted).Text("program", h.Program)
	body.Raw("holder", holder.Bytes())
	at := len(dst)
	dst = append(dst, `{"v":1,"session":"`...)
	dst = append(dst, c.Session...)
	dst = append(dst, `","epoch":`...)
	dst = strconv.AppendUint(dst, c.Epoch, 10)
	dst = append(dst, `,"ts":"`...)
	dst = c.Time.UTC().AppendFormat(dst, TimeFormat)
	dst = append(dst, `","claim":`...)
	dst = append(dst, body.Bytes()...)
	if n := len(dst) - at + sumLen; n > MaxLine {
		return dst[:at], Errorf(LineTooLong, "the header line would have %d bytes, more than %d", n, MaxLine)
	}
	return appendSum(dst, at, &c.Sum), nil
}

// DecodeClaim reads the header line of segment epoch of a session, without its
// newline. The error is ClaimCorrupt or the Kind UnsupportedSchemaVersion.
func DecodeClaim(line []byte, session string, epoch uint64) (Claim, error) {
	var c Claim
	var name, body []byte
	p := parser{b: line}
	ok := len(line) <= MaxLine &&
		p.lit(`{"v":1,"session":"`) && p.text(&name) && string(name) == session && validSession(name) &&
		p.lit(`","epoch":`) && p.uint(&c.Epoch) && c.Epoch == epoch && epoch > 0 &&
		p.lit(`,"ts":"`) && p.time(&c.Time) &&
		p.lit(`","claim":`) && p.value(&body) && body[0] == '{' &&
		p.lit(`,"sum":"`) && p.sum(&c.Sum) && p.lit(`"}`) && len(p.b) == 0 &&
		sha256.Sum256(line[:len(line)-sumLen]) == c.Sum
	if ok {
		var b claimBody
		if json.Unmarshal(body, &b, jsontext.AllowInvalidUTF8(true)) == nil {
			c.Session, c.Holder = session, b.Holder
			return c, nil
		}
	}
	if newer(line) {
		return Claim{}, UnsupportedSchemaVersion
	}
	return Claim{}, ClaimCorrupt
}

// A parser eats a line from the front. Its methods say no and leave the rest
// of the work to diagnose.
type parser struct{ b []byte }

func (p *parser) lit(s string) bool {
	if len(p.b) < len(s) || string(p.b[:len(s)]) != s {
		return false
	}
	p.b = p.b[len(s):]
	return true
}

// text is everything up to the next quote; its callers allow no escapes in it.
func (p *parser) text(out *[]byte) bool {
	i := bytes.IndexByte(p.b, '"')
	if i < 0 {
		return false
	}
	*out, p.b = p.b[:i], p.b[i:]
	return true
}

func (p *parser) uint(out *uint64) bool {
	i, v := 0, uint64(0)
	for i < len(p.b) && '0' <= p.b[i] && p.b[i] <= '9' {
		d := uint64(p.b[i] - '0')
		if v > (math.MaxInt64-d)/10 {
			return false
		}
		i, v = i+1, 10*v+d
	}
	if i == 0 || i > 1 && p.b[0] == '0' {
		return false
	}
	*out, p.b = v, p.b[i:]
	return true
}

func (p *parser) ulid(out *ulid.ULID) bool {
	if len(p.b) < ulid.EncodedSize {
		return false
	}
	for _, c := range p.b[:ulid.EncodedSize] {
		if 'a' <= c && c <= 'z' {
			return false
		}
	}
	err := out.UnmarshalText(p.b[:ulid.EncodedSize])
	if err != nil || p.b[0] > '7' {
		return false
	}
	// The package's own decoding is lax about letters outside the alphabet.
	var again [ulid.EncodedSize]byte
	if out.MarshalTextTo(again[:]) != nil || !bytes.Equal(again[:], p.b[:ulid.EncodedSize]) {
		return false
	}
	p.b = p.b[ulid.EncodedSize:]
	return true
}

func (p *parser) time(out *time.Time) bool {
	const like = "0000-00-00T00:00:00.000000Z"
	if len(p.b) < len(like) {
		return false
	}
	b := p.b[:len(like)]
	for i := range like {
		if like[i] == '0' && (b[i] < '0' || b[i] > '9') || like[i] != '0' && b[i] != like[i] {
			return false
		}
	}
	n := func(i, j int) (v int) {
		for _, c := range b[i:j] {
			v = 10*v + int(c-'0')
		}
		return v
	}
	year, month, day, hour, minute, second := n(0, 4), time.Month(n(5, 7)), n(8, 10), n(11, 13), n(14, 16), n(17, 19)
	t := time.Date(year, month, day, hour, minute, second, 1000*n(20, 26), time.UTC)
	if y, m, d := t.Date(); y != year || m != month || d != day || hour > 23 || minute > 59 || second > 59 {
		return false
	}
	*out, p.b = t, p.b[len(like):]
	return true
}

func (p *parser) value(out *[]byte) bool {
	s := scanner{src: p.b}
	if s.value() != "" {
		return false
	}
	*out, p.b = p.b[:s.pos:s.pos], p.b[s.pos:]
	return true
}

func (p *parser) sum(out *Sum) bool {
	if len(p.b) < 64 || !out.parse(p.b[:64]) {
		return false
	}
	p.b = p.b[64:]
	return true
}
