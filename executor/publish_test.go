package executor_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal/journaltest"
)

// A gate dials connections that write nothing while it is held.
type gate struct{ held sync.RWMutex }

func (g *gate) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &gated{c, g}, err
}

type gated struct {
	net.Conn
	gate *gate
}

func (c *gated) Write(b []byte) (int, error) {
	c.gate.held.RLock()
	defer c.gate.held.RUnlock()
	return c.Conn.Write(b)
}

// A server that takes nothing for a while makes callers wait, and the memory that
// it takes is bounded; afterwards everybody has his answer.
func TestWhatIsOnItsWayToAServerThatTakesNothingIsBounded(t *testing.T) {
	const sessions, each, output, bound = 8, 8, 200_000, 16 << 20
	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	var begun atomic.Int64
	goOn := make(chan struct{})
	big := toolOf("big", func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) {
		begun.Add(1)
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return executor.Result{OK: true, Output: strings.Repeat("x", output)}, nil
	})
	var g gate
	conn, err := nats.Connect(p.nats.URL(), nats.SetCustomDialer(&g))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	n := p.node([]executor.Tool{big}, func(c *executor.Config) { c.Conn = conn })
	var calls sync.WaitGroup
	for i := range sessions {
		session := fmt.Sprint("s", i)
		n.open(session)
		for k := range each {
			calls.Go(func() {
				a, err := n.client.Call(within(t), session, request(fmt.Sprint("c", k), "big", "{}"))
				if err != nil || len(a.Data) < output {
					t.Errorf("call %d of session %s: %v, %d bytes", k, session, err, len(a.Data))
				}
			})
		}
	}
	eventually(t, "all calls run", func() bool { return begun.Load() == sessions*each })
	g.held.Lock()
	close(goOn)
	held := true
	release := func() {
		if held {
			g.held.Unlock()
			held = false
		}
	}
	defer release()
	eventually(t, "somebody waits", func() bool { _, waiting := executor.Load(n.Executor); return waiting > 0 })
	if bytes, _ := executor.Load(n.Executor); bytes > bound || bytes < bound/2 {
		t.Errorf("%d bytes are on their way", bytes)
	}
	release()
	calls.Wait()
	eventually(t, "all is sent", func() bool { bytes, waiting := executor.Load(n.Executor); return bytes == 0 && waiting == 0 })
}
