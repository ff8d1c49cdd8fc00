package executor_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
)

// BenchmarkDo is a call through the request door, by way of a server in this
// process: recorded, run and answered, with 200 bytes of arguments and a result
// of 1 KiB. The callers have a session each.
func BenchmarkDo(b *testing.B) {
	benchmarkDo(b, func(_ *executor.Executor, c *executor.Client) caller { return c.Call })
}

// BenchmarkDoWithoutNATS is the same without the door and the server.
func BenchmarkDoWithoutNATS(b *testing.B) {
	benchmarkDo(b, func(x *executor.Executor, _ *executor.Client) caller { return x.Do })
}

type caller func(context.Context, string, executor.Request) (executor.Answer, error)

func benchmarkDo(b *testing.B, door func(*executor.Executor, *executor.Client) caller) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint("c=", callers), func(b *testing.B) { benchmarkCalls(b, callers, door) })
	}
}

func benchmarkCalls(b *testing.B, callers int, door func(*executor.Executor, *executor.Client) caller) {
	n := journaltest.StartNATS(b, journaltest.NATSOptions{})
	files, err := journal.OpenFiles(b.TempDir(), true)
	if err != nil {
		b.Fatal(err)
	}
	defer files.Close()
	var syncs, bytes atomic.Int64
	store := files.WithFaults(&lease.Faults{
		Write: func(f *os.File, p []byte) (int, error) { bytes.Add(int64(len(p))); return f.Write(p) },
		Sync:  func(f *os.File) error { syncs.Add(1); return unix.Fdatasync(int(f.Fd())) },
	})
	output := strings.Repeat("r", 1<<10)
	registry, err := executor.NewRegistry(toolOf("trivial", func(context.Context, *executor.Invocation) (executor.Result, error) {
		return executor.Result{OK: true, Output: output}, nil
	}))
	if err != nil {
		b.Fatal(err)
	}
	x, err := executor.New(executor.Config{Conn: n.Connect(), Store: store, Tools: registry, Holder: lease.Self("bench"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if err := x.Start(ctx); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := x.Drain(ctx); err != nil {
			b.Error(err)
		}
	}()
	client, err := executor.NewClient(n.Connect(), "")
	if err != nil {
		b.Fatal(err)
	}
	call := door(x, client)
	const digits = 20 // no call is a repeat of another
	args := `{"text":"` + strings.Repeat("a", 200-digits-len(`{"text":""}`)) + `%0*d"}`
	for i := range callers {
		open(b, client, fmt.Sprint("s", i))
		if _, err := call(ctx, fmt.Sprint("s", i), request("warm", "trivial", fmt.Sprintf(args, digits, 0))); err != nil {
			b.Fatal(err)
		}
	}
	syncs.Store(0)
	bytes.Store(0)
	b.ReportAllocs()
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var work sync.WaitGroup
	b.ResetTimer()
	for i := range callers {
		work.Go(func() {
			session := fmt.Sprint("s", i)
			for k := next.Add(1); k <= int64(b.N); k = next.Add(1) {
				began := time.Now()
				if _, err := call(ctx, session, request(fmt.Sprint("c", k), "trivial", fmt.Sprintf(args, digits, k))); err != nil {
					b.Error(err)
					return
				}
				took[k-1] = time.Since(began)
			}
		})
	}
	work.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(took[b.N/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(took[b.N*99/100].Seconds()*1e3, "p99-ms")
	b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/op")
	b.ReportMetric(float64(bytes.Load())/float64(b.N), "bytes/op")
}
