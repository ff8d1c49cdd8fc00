package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkGatewayCall makes the same call of the server alone and through the
// gateway, one after the other, and beside them the two writes and syncs that a
// call takes. What is left is what the gateway costs.
func BenchmarkGatewayCall(b *testing.B) {
	dir := b.TempDir()
	alone, through := connect(b, dir, nil, "mcp-server"), connect(b, dir, nil, gate()...)
	f, err := os.Create(filepath.Join(dir, "syncs"))
	must(b, err)
	defer f.Close()
	lines := bytes.Repeat([]byte("x"), 1<<10)
	args := map[string]any{"n": 3}
	var took [3][]time.Duration
	for _, h := range []*host{alone, through} {
		h.ask("large", args, nil)
	}
	for b.Loop() {
		for i, do := range []func(){func() { alone.ask("large", args, sdk.Meta{}) }, func() { through.ask("large", args, sdk.Meta{}) }, func() {
			for range 2 {
				_, err := f.Write(lines)
				must(b, err)
				must(b, f.Sync())
			}
		}} {
			began := time.Now()
			do()
			took[i] = append(took[i], time.Since(began))
		}
	}
	var p50 [3]float64
	for i, all := range took {
		slices.Sort(all)
		p50[i] = float64(all[len(all)/2].Microseconds())
	}
	for i, name := range []string{"alone-p50-µs", "gateway-p50-µs", "syncs-p50-µs"} {
		b.ReportMetric(p50[i], name)
	}
	b.ReportMetric(p50[1]-p50[0]-p50[2], "overhead-p50-µs")
}
