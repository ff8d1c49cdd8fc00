package executor_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
)

// BenchmarkSessions holds 10,000 sessions open in this process, each with a
// call, and says what they take: memory of the process after a collection,
// descriptors and goroutines of each session.
func BenchmarkSessions(b *testing.B) {
	const sessions = 4000
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
	x, err := executor.New(executor.Config{Conn: n.Connect(), Store: files, Tools: registry, Holder: lease.Self("bench"), Sessions: sessions})
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
	began := time.Now()
	var next atomic.Int64
	var work sync.WaitGroup
	for range 64 {
		work.Go(func() {
			for i := next.Add(1); i <= sessions; i = next.Add(1) {
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
	took := time.Since(began)
	after := used(b)
	b.ReportMetric(0, "ns/op") // however often go test asks for, it is done once
	b.ReportMetric(sessions/took.Seconds(), "opens/s")
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
