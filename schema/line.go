package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// parse reads eight digits at a time.
func (s *Sum) parse(b []byte) bool {
	const ones = 0x0101010101010101
	if len(b) != 2*len(s) {
		return false
	}
	bad := uint64(0)
	for i := 0; i < len(s); i += 4 {
		v := binary.LittleEndian.Uint64(b[2*i:])
		n := v&(0x0f*ones) + v>>6&ones*9                                  // what each digit stands for
		bad |= n&(0xf0*ones) | (n + '0'*ones + (n+6*ones)>>4&ones*39 ^ v) // too large, or written otherwise
		n = (n<<4 | n>>8) & 0x00ff00ff00ff00ff
		n = (n | n>>8) & 0x0000ffff0000ffff
		binary.LittleEndian.PutUint32(s[i:], uint32(n|n>>16))
	}
	return bad == 0
}

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

	read *Fields // what Decode has seen of Data
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
	dst = appendTime(dst, e.Time.UTC())
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

// appendTime is AppendFormat with TimeFormat, in a fraction of its time.
func appendTime(dst []byte, t time.Time) []byte {
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, TimeFormat)
	}
	hour, minute, second := t.Clock()
	micro := t.Nanosecond() / 1000
	dst = append(dst, "0000-00-00T00:00:00.000000Z"...)
	b := dst[len(dst)-27:]
	for _, f := range [...]struct{ at, v int }{{0, year / 100}, {2, year % 100}, {5, int(month)}, {8, day}, {11, hour}, {14, minute}, {17, second},
		{20, micro / 10000}, {22, micro / 100 % 100}, {24, micro % 100}} {
		b[f.at] += byte(f.v / 10)
		b[f.at+1] += byte(f.v % 10)
	}
	return dst
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
// line after line into the same Event saves allocations.
func (e *Event) Decode(line []byte) error {
	if err := e.DecodeTrusted(line); err != nil {
		return err
	}
	if sha256.Sum256(line[:len(line)-sumLen]) != e.Sum {
		return SumMismatch
	}
	return nil
}

// DecodeTrusted is Decode without the comparison of the line's bytes with its
// sum, which is most of the work: whoever changed a byte inside a string is not
// found by it.
func (e *Event) DecodeTrusted(line []byte) error {
	if len(line) > MaxLine {
		return OverLimit
	}
	if !e.parse(line) {
		return diagnose(line)
	}
	return nil
}

// Read reads e's data into f for those that ask for its Fields. It is for an
// event that is yet to be written; f must not be read again before they have
// asked.
func (e *Event) Read(f *Fields) {
	f.Read(e.Data)
	e.read = f
}

// Fields are the fields of e's data: those that Decode has seen, or else those
// that are read into spare now. They are valid until the next Decode into e.
func (e *Event) Fields(spare *Fields) *Fields {
	if e.read.of(e.Data) {
		return e.read
	}
	spare.Read(e.Data)
	return spare
}

// parse is helped by what was read before: most of a line's head is that of the
// line before it.
func (e *Event) parse(line []byte) bool {
	if e.read == nil {
		e.read = new(Fields)
	}
	f, p := e.read, parser{b: line}
	if f.head == "" || !p.lit(f.head) {
		var session []byte
		if !p.lit(`{"v":1,"session":"`) || !p.text(&session) || !validSession(session) || !p.lit(`","seq":`) {
			return false
		}
		f.head = string(line[:len(line)-len(p.b)])
		f.session = f.head[len(`{"v":1,"session":"`) : len(f.head)-len(`","seq":`)]
	}
	if !p.uint(&e.Seq) || e.Seq == 0 {
		return false
	}
	if f.writer == "" || !p.lit(f.writer) {
		from := p.b
		if !p.lit(`,"epoch":`) || !p.uint(&f.epoch) || f.epoch == 0 || !p.lit(`,"id":"`) {
			f.writer = ""
			return false
		}
		f.writer = string(from[:len(from)-len(p.b)])
	}
	var typ []byte
	if !p.ulid(&e.ID) || !p.lit(`","ts":"`) || !p.time(&e.Time, &f.second) || !p.lit(`","type":"`) || !p.text(&typ) {
		return false
	}
	if f.spec = specOf(typ); f.spec != nil {
		f.typ = f.spec.typ
	} else if f.typ == "" || f.typ != string(typ) {
		if !validType(typ) {
			return false
		}
		f.typ = string(typ)
	}
	if !p.lit(`","data":`) || !p.value((*[]byte)(&e.Data), f) {
		return false
	}
	e.Dur = e.Seq - 1
	if p.lit(`,"dur":`) && (!p.uint(&e.Dur) || e.Dur >= e.Seq-1) {
		return false
	}
	const prev, sum, end = `,"prev":"`, `","sum":"`, `"}`
	const at = len(prev) + 64 + len(sum)
	b := p.b
	if len(b) != at+64+len(end) || string(b[:len(prev)]) != prev || !e.Prev.parse(b[len(prev):len(prev)+64]) ||
		string(b[at-len(sum):at]) != sum || !e.Sum.parse(b[at:at+64]) || string(b[at+64:]) != end {
		return false
	}
	e.Session, e.Epoch, e.Type = f.session, f.epoch, f.typ
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
		p.lit(`,"ts":"`) && p.time(&c.Time, new(second)) &&
		p.lit(`","claim":`) && p.value(&body, new(Fields)) && body[0] == '{' &&
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
