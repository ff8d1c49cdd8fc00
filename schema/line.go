package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
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

func (e *Event) parse(line []byte) bool {
	if e.read == nil {
		e.read = new(Fields)
	}
	p := parser{b: line}
	var session, typ []byte
	ok := p.lit(`{"v":1,"session":"`) && (p.again(e.read.session, &session) || p.text(&session) && validSession(session)) &&
		p.lit(`","seq":`) && p.uint(&e.Seq) && e.Seq > 0 &&
		p.lit(`,"epoch":`) && p.uint(&e.Epoch) && e.Epoch > 0 &&
		p.lit(`,"id":"`) && p.ulid(&e.ID) &&
		p.lit(`","ts":"`) && p.time(&e.Time) &&
		p.lit(`","type":"`) && p.text(&typ) && (specOf(typ) != nil || validType(typ)) &&
		p.lit(`","data":`) && p.value((*[]byte)(&e.Data), e.read)
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
	if e.read.session != string(session) {
		e.read.session = string(session)
	}
	if e.read.typ != string(typ) {
		if e.read.spec = specOf(typ); e.read.spec != nil {
			e.read.typ = e.read.spec.typ
		} else {
			e.read.typ = string(typ)
		}
	}
	e.Session, e.Type = e.read.session, e.read.typ
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

// again is text that is the same as in the line before, "" for none.
func (p *parser) again(was string, out *[]byte) bool {
	if n := len(was); n > 0 && len(p.b) > n && p.b[n] == '"' && string(p.b[:n]) == was {
		*out, p.b = p.b[:n], p.b[n:]
		return true
	}
	return false
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

// crockford are the digits of a ULID.
var crockford = digitsOf("0123456789ABCDEFGHJKMNPQRSTVWXYZ")

func digitsOf(alphabet string) (t [256]byte) {
	for i := range t {
		t[i] = 0xFF
	}
	for i, c := range []byte(alphabet) {
		t[c] = byte(i)
	}
	return t
}

// ulid reads the canonical, upper-case form, and only that. The package's own
// decoding is lax.
func (p *parser) ulid(out *ulid.ULID) bool {
	if len(p.b) < ulid.EncodedSize || p.b[0] > '7' {
		return false
	}
	b := p.b[:ulid.EncodedSize]
	var hi, lo uint64 // 63 bits, and all but the first of 65
	var all byte
	for i := range 13 {
		x, y := crockford[b[i]], crockford[b[13+i]]
		hi, lo, all = hi<<5|uint64(x), lo<<5|uint64(y), all|x|y
	}
	if all > 31 {
		return false
	}
	binary.BigEndian.PutUint64(out[:8], hi<<1|uint64(crockford[b[13]]>>4))
	binary.BigEndian.PutUint64(out[8:], lo)
	p.b = p.b[ulid.EncodedSize:]
	return true
}

// time reads a time as TimeFormat writes it.
func (p *parser) time(out *time.Time) bool {
	if len(p.b) < len(TimeFormat) {
		return false
	}
	b := p.b[:len(TimeFormat)]
	if b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[19] != '.' || b[26] != 'Z' {
		return false
	}
	ok := true
	two := func(i int) int {
		x, y := b[i]-'0', b[i+1]-'0'
		ok = ok && x <= 9 && y <= 9
		return 10*int(x) + int(y)
	}
	year, month, day := 100*two(0)+two(2), two(5), two(8)
	hour, minute, second := two(11), two(14), two(17)
	micros := 10000*two(20) + 100*two(22) + two(24)
	if !ok || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return false
	}
	leap := year%4 == 0 && (year%100 != 0 || year%400 == 0)
	if last := int(lastDay[month]); day > last && !(month == 2 && leap && day == 29) {
		return false
	}
	// Days since 1970, with years that begin in March.
	y, m := year, month-3
	if m < 0 {
		y, m = y-1, m+12
	}
	y += 400 // so that nothing here is below zero
	days := 365*y + y/4 - y/100 + y/400 + (153*m+2)/5 + day - 1 - 719468 - 146097
	*out = time.Unix(int64(days)*86400+int64(3600*hour+60*minute+second), int64(micros)*1000).UTC()
	p.b = p.b[len(TimeFormat):]
	return true
}

var lastDay = [13]uint8{0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}

func (p *parser) value(out *[]byte, f *Fields) bool {
	n := f.walk(p.b)
	if n < 0 {
		return false
	}
	*out, p.b = p.b[:n:n], p.b[n:]
	return true
}

func (p *parser) sum(out *Sum) bool {
	if len(p.b) < 64 || !out.parse(p.b[:64]) {
		return false
	}
	p.b = p.b[64:]
	return true
}
