package schema

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sort"
)

// A Table finds numbers by keys, in the form in which a checkpoint keeps them:
// rows of a key and, in 4 bytes, its number, in the order of the keys. So it
// needs neither to be read nor to be built to be used. Tables are not changed.
type Table []byte

// A Row of a [Table].
type Row struct {
	Key    [16]byte
	Number uint32
}

const rowSize = len(Row{}.Key) + 4

// Len is how many rows there are.
func (t Table) Len() int { return len(t) / rowSize }

// Number is that of the row at i, from 0.
func (t Table) Number(i int) uint32 {
	return binary.LittleEndian.Uint32(t[i*rowSize+len(Row{}.Key):])
}

func (t Table) key(i int) []byte { return t[i*rowSize:][:len(Row{}.Key)] }

// Find gives the number of a key.
func (t Table) Find(key [16]byte) (number uint32, ok bool) {
	n := t.Len()
	i := sort.Search(n, func(i int) bool { return bytes.Compare(t.key(i), key[:]) >= 0 })
	if i == n || [16]byte(t.key(i)) != key {
		return 0, false
	}
	return t.Number(i), true
}

// With gives a table that has rows, too, which are sorted by it. Where both have
// a key, its number is that of the new row.
func (t Table) With(rows []Row) Table {
	slices.SortFunc(rows, func(a, b Row) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	out := make(Table, 0, len(t)+len(rows)*rowSize)
	for _, r := range rows {
		n := sort.Search(t.Len(), func(i int) bool { return bytes.Compare(t.key(i), r.Key[:]) >= 0 })
		out, t = append(out, t[:n*rowSize]...), t[n*rowSize:]
		if t.Len() > 0 && [16]byte(t.key(0)) == r.Key {
			t = t[rowSize:]
		}
		out = binary.LittleEndian.AppendUint32(append(out, r.Key[:]...), r.Number)
	}
	return append(out, t...)
}
