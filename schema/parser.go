package schema

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	"github.com/oklog/ulid/v2"
)

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

// A second is one that was read, with its text as far as the point.
type second struct {
	ok   bool
	text [20]byte
	unix int64
}

// time reads a time as TimeFormat writes it.
func (p *parser) time(out *time.Time, last *second) bool {
	if len(p.b) < len(TimeFormat) {
		return false
	}
	b := p.b[:len(TimeFormat)]
	if !last.ok || [20]byte(b) != last.text {
		if last.unix, last.ok = unix(b); !last.ok {
			return false
		}
		last.text = [20]byte(b)
	}
	micros, ok := uint64(0), b[26] == 'Z'
	for _, c := range b[20:26] {
		micros, ok = 10*micros+uint64(c-'0'), ok && c-'0' <= 9
	}
	if !ok {
		return false
	}
	*out = time.Unix(last.unix, int64(micros)*1000).UTC()
	p.b = p.b[len(TimeFormat):]
	return true
}

// unix reads a time as far as the point before its microseconds.
func unix(b []byte) (seconds int64, ok bool) {
	if b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[19] != '.' {
		return 0, false
	}
	ok = true
	two := func(i int) int {
		x, y := b[i]-'0', b[i+1]-'0'
		ok = ok && x <= 9 && y <= 9
		return 10*int(x) + int(y)
	}
	year, month, day := 100*two(0)+two(2), two(5), two(8)
	hour, minute, second := two(11), two(14), two(17)
	if !ok || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	leap := year%4 == 0 && (year%100 != 0 || year%400 == 0)
	if last := int(lastDay[month]); day > last && !(month == 2 && leap && day == 29) {
		return 0, false
	}
	// Days since 1970, with years that begin in March.
	y, m := year, month-3
	if m < 0 {
		y, m = y-1, m+12
	}
	y += 400 // so that nothing here is below zero
	days := 365*y + y/4 - y/100 + y/400 + (153*m+2)/5 + day - 1 - 719468 - 146097
	return int64(days)*86400 + int64(3600*hour+60*minute+second), true
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
