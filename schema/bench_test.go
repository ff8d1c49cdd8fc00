package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"steno/schema"
)

// benched are data as calls and results have it: small, with text, with
// structure.
func benched(b *testing.B, f func(b *testing.B, e schema.Event)) {
	var rows strings.Builder
	for i := range 200 {
		fmt.Fprintf(&rows, `,{"path":"src/pkg%d/file.go","line":%d,"match":"return \"x\", nil","score":%d.25}`, i, i*7, i)
	}
	prose := strings.Repeat("A line of output with a quote \\\" and a caf\u00e9 in it.\\n", 1200)
	for _, c := range []struct{ name, typ, data string }{
		{"call", schema.TypeToolCall, `{"call_id":"toolu_01A09q90qw90lq917835lq9","name":"bash","args":{"command":"go test ./... -count=1","timeout":120},` +
			`"args_sha256":"` + strings.Repeat("0f", 32) + `","turn":"t1","phase":"editing"}`},
		{"text64K", schema.TypeToolResult, `{"call_id":"toolu_01A09q90qw90lq917835lq9","attempt":1,"ok":true,"output":"` + prose + `","duration_us":1500}`},
		{"rows16K", schema.TypeToolResult, `{"call_id":"toolu_01A09q90qw90lq917835lq9","attempt":1,"ok":true,"output":"x","structured":[` + rows.String()[1:] + `],"duration_us":1500}`},
	} {
		e := sample()
		e.Session, e.Type, e.Data = "01KDYAK623R4DAPT6SZ6GP1RRW-a-long-session-name", c.typ, []byte(c.data)
		b.Run(c.name, func(b *testing.B) { f(b, e) })
	}
}

func BenchmarkEventAppend(b *testing.B) {
	benched(b, func(b *testing.B, e schema.Event) {
		var buf []byte
		b.ReportAllocs()
		b.SetBytes(int64(len(e.Append(nil))))
		for b.Loop() {
			buf = e.Append(buf[:0])
		}
	})
}

func BenchmarkEventDecode(b *testing.B) {
	benched(b, func(b *testing.B, e schema.Event) {
		text := line(&e)
		var got schema.Event
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if err := got.Decode(text); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDecodeHostile: a line that is made to be expensive to refuse must
// not cost much more than a good one of its size.
func BenchmarkDecodeHostile(b *testing.B) {
	for name, unit := range map[string]string{
		"objects": `{"v":1},`,
		"open":    `{"v":[`,
		"text":    `{"v":"`,
		"nested":  `{"v":{"v":{"v":{"v":1}}}},`,
		"broken":  strings.Repeat(`{"v":`, 240) + "x" + strings.Repeat("}", 240),
	} {
		text := []byte(strings.Repeat(unit, schema.MaxLine/len(unit)))
		b.Run(name, func(b *testing.B) {
			var got schema.Event
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if got.Decode(text) == nil {
					b.Fatal("decodes")
				}
			}
		})
	}
}

func BenchmarkCompact(b *testing.B) {
	benched(b, func(b *testing.B, e schema.Event) {
		var buf []byte
		b.ReportAllocs()
		b.SetBytes(int64(len(e.Data)))
		for b.Loop() {
			var err error
			if buf, _, err = schema.Compact(buf[:0], e.Data, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}
