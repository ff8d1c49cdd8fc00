// Command plain measures what files alone allow: the call is appended and
// synced, a worker runs the tool, the result is appended and synced, the caller
// gets it. Lines have no chain, and nobody checks anything.
package main

import (
	"fmt"
	"os"

	"peers/harness"
	"peers/internal/wal"
)

type log interface {
	Append(session int, rec []byte) error
	Close()
}

func main() {
	measure("plain file, a sync each", func(dir string) (log, error) { return wal.OpenEach(dir) })
	measure("plain zeroed file, group commit", func(dir string) (log, error) { return wal.Open(dir, 0) })
}

type job struct {
	caller, n int
	out       chan error
}

func measure(name string, open func(dir string) (log, error)) {
	if !harness.Want(name) {
		return
	}
	dir := harness.Dir()
	defer os.RemoveAll(dir)
	l, err := open(dir)
	harness.Must(err)
	defer l.Close()
	jobs := make(chan job, 256)
	defer close(jobs)
	for range 256 {
		go func() {
			for j := range jobs {
				j.out <- l.Append(j.caller, line(j.caller, 2*j.n+2, "result", harness.Tool(harness.Args(j.caller, j.n))))
			}
		}()
	}
	outs := make([]chan error, 256)
	for i := range outs {
		outs[i] = make(chan error, 1)
	}
	harness.All(name, func(caller, n int) error {
		if err := l.Append(caller, line(caller, 2*n+1, "call", harness.Args(caller, n))); err != nil {
			return err
		}
		jobs <- job{caller, n, outs[caller]}
		return <-outs[caller]
	})
}

func line(session, seq int, kind string, data []byte) []byte {
	return fmt.Appendf(nil, `{"v":1,"session":"s-%d","seq":%d,"type":%q,"data":%s}`+"\n", session, seq, kind, data)
}
