package executor_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
)

// BenchmarkManyHeld holds b.N sessions open in this process, each with a call,
// and says what they take: memory of the process after a collection, and memory,
// descriptors and goroutines of each session. It is asked for with -benchtime
// 10000x.
func BenchmarkManyHeld(b *testing.B) {
	n := journaltest.StartNATS(b, journaltest.NATSOptions{})
	files, err := journal.OpenFiles(b.TempDir(), true)
	if err != nil {
		b.Fatal(err)
	}
	defer files.Close()
	registry, err := executor.NewRegistry(echo)
	if err != nil {
		b.Fatal(err)
	}
	x, err := executor.New(executor.Config{Conn: n.Connect(), Store: files, Tools: registry, Holder: lease.Self("bench"), Logger: slog.New(slog.DiscardHandler), Sessions: b.N})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	if err := x.Start(ctx); err != nil {
		b.Fatal(err)
	}
	client, err := executor.NewClient(n.Connect(), "")
	if err != nil {
		b.Fatal(err)
	}
	before := used(b)
	b.ResetTimer()
	var next atomic.Int64
	var work sync.WaitGroup
	for range 64 {
		work.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				id := fmt.Sprintf("s%05d", i)
				open(b, client, id)
				if _, err := client.Call(ctx, id, request("c1", "echo", `{"text":"one"}`)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	b.StopTimer()
	after, sessions := used(b), float64(b.N)
	b.ReportMetric(b.Elapsed().Seconds(), "s/all")
	b.ReportMetric(after.resident/1e6, "resident-MB")
	b.ReportMetric((after.resident-before.resident)/sessions/1e3, "KB/session")
	b.ReportMetric((after.files-before.files)/sessions, "files/session")
	b.ReportMetric((after.goroutines-before.goroutines)/sessions, "goroutines/session")
	if err := x.Drain(ctx); err != nil {
		b.Error(err)
	}
}

// usage is what this process takes, of memory as the system counts it.
type usage struct{ resident, files, goroutines float64 }

func used(b *testing.B) (u usage) {
	b.Helper()
	runtime.GC()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscanf(rest, "%f kB", &u.resident); err != nil {
		b.Fatal(err)
	}
	u.resident *= 1024
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		b.Fatal(err)
	}
	u.files, u.goroutines = float64(len(fds)), float64(runtime.NumGoroutine())
	return u
}
