package lease

import (
	"bytes"
	"strconv"

	"steno/schema"
)

// damaged takes up what stands from one place up to another, where records were
// durable that cannot be read now: a later record says so. Each is looked for by
// its beginning. Of whom it has lines the lines say too.
func (x *logIndex) damaged(from, to int64) error {
	b := make([]byte, to-from)
	if _, err := x.file.ReadAt(b, from); err != nil {
		return err
	}
	begin := []byte(logMagic + x.id + " ")
	for at := from; len(b) > 0; {
		n := len(b)
		if i := bytes.Index(b[1:], begin); i >= 0 {
			n = i + 1
		}
		used := x.mend(b[:n], at)
		if used == 0 { // what is left of an older or a newer generation, or nobody can tell
			used = n
		}
		b, at = b[used:], at+int64(used)
	}
	return nil
}

// mend takes up the damaged record that b begins with, and gives its length; 0
// if nothing can be made of it.
func (x *logIndex) mend(b []byte, at int64) int {
	// The first line, which may be damaged, ends where the lines begin.
	text, _, _ := bytes.Cut(b[:min(len(b), maxRecordLine)], []byte{'\n'})
	said, whole := parseRecord(text, x.id)
	whole = whole && said.place == at && said.generation == x.generation && len(text)+1+int(said.bytes) <= len(b)
	if !whole {
		i := bytes.Index(b, []byte(`{"v":1,"session":"`))
		if i < 1 || i > maxRecordLine {
			return 0
		}
		text = b[:i-1]
	}
	lines := b[len(text)+1:]
	e := firstEvent(lines)
	if e == nil && !whole {
		return 0
	}
	// Its numbers, wherever a space may be damaged: the last are those before the sum.
	f := bytes.FieldsFunc(text, func(c rune) bool { return c < '0' || c > '9' })
	number := func(b []byte) (int64, bool) {
		v, err := strconv.ParseInt(string(b), 10, 62)
		return v, err == nil
	}
	before := text[:max(0, len(text)-9)] // the sum
	size := trailing(before)
	before = before[:max(0, len(before)-len(size)-1)]
	offset, known := number(trailing(before))
	if n, ok := number(size); ok && !whole {
		said.bytes = n
	}
	r := record{generation: x.generation, place: at, bytes: int64(len(lines)), session: said.session, epoch: said.epoch}
	if e != nil {
		r.session, r.epoch = e.Session, e.Epoch
	}
	// All that it said is known otherwise, or can be guessed: it is right if all but
	// the byte that is damaged is as it stands there.
	lengths, offsets, synced := []int64{r.bytes}, []int64{x.ends[epochOf{r.session, r.epoch}]}, []int64{at, x.synced}
	if n := said.bytes; n > 0 && n < r.bytes {
		lengths = append(lengths, n)
	}
	if known {
		offsets = append(offsets, offset)
	}
	for _, b := range f {
		if v, ok := number(b); ok && v < at {
			synced = append(synced, v)
		}
	}
	for _, r.bytes = range lengths {
		for _, r.offset = range offsets {
			for _, r.synced = range synced {
				first, _, _ := bytes.Cut(appendRecord(nil, x.id, &r, lines[:r.bytes]), []byte{'\n'})
				if nearly(text, first) {
					x.take(&r, at+int64(len(text))+1, false)
					return len(text) + 1 + int(r.bytes)
				}
			}
		}
	}
	if !whole {
		return 0
	}
	// Its lines are for the reader to judge, where the segment does not have them.
	r.bytes, r.offset = said.bytes, said.offset
	x.take(&r, at+int64(len(text))+1, true)
	return len(text) + 1 + int(r.bytes)
}

// nearly reports whether two texts differ in one byte at most.
func nearly(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n <= 1
}

// trailing is the digits that b ends with.
func trailing(b []byte) []byte {
	return b[len(bytes.TrimRight(b, "0123456789")):]
}

// firstEvent is the first sound event among lines.
func firstEvent(lines []byte) *schema.Event {
	for {
		line, rest, whole := bytes.Cut(lines, []byte{'\n'})
		if !whole {
			return nil
		}
		if e := new(schema.Event); e.Decode(line) == nil {
			return e
		}
		lines = rest
	}
}

// take adds a record's lines, which stand at a place, to the index.
func (x *logIndex) take(r *record, place int64, bad bool) {
	key := epochOf{r.session, r.epoch}
	x.extents[key] = append(x.extents[key], extent{x, place, r.offset, r.bytes, bad})
	x.ends[key], x.synced = r.offset+r.bytes, max(x.synced, r.synced)
}
