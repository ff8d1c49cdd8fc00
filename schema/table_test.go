package schema_test

import (
	"math/rand/v2"
	"testing"

	"steno/schema"
)

// A table that grows finds what a map would.
func TestATableFindsWhatWasPutIntoIt(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	key := func() (k [16]byte) {
		for i := range k {
			k[i] = byte(r.IntN(2)) // some are given twice
		}
		k[3] = byte(r.IntN(3)) * 120
		return k
	}
	want := map[[16]byte]uint32{}
	var table schema.Table
	for range 40 {
		rows := map[[16]byte]uint32{}
		for range r.IntN(200) {
			rows[key()] = r.Uint32()
		}
		var list []schema.Row
		for k, n := range rows {
			want[k] = n
			list = append(list, schema.Row{Key: k, Number: n})
		}
		before := string(table)
		next := table.With(list)
		if string(table) != before {
			t.Fatal("a table was changed")
		}
		if table = next; table.Len() != len(want) {
			t.Fatalf("it has %d rows of %d", table.Len(), len(want))
		}
		for range 300 {
			k := key()
			n, ok := table.Find(k)
			if is, there := want[k]; ok != there || n != is {
				t.Fatalf("%x is %d, %v, and should be %d, %v", k, n, ok, is, there)
			}
		}
	}
	for k, n := range want {
		if got, ok := table.Find(k); !ok || got != n {
			t.Fatalf("%x is %d, %v, and should be %d", k, got, ok, n)
		}
	}
	sum := uint32(0)
	for i := range table.Len() {
		sum += table.Number(i)
	}
	for _, n := range want {
		sum -= n
	}
	if sum != 0 {
		t.Error("the rows have other numbers")
	}
}
