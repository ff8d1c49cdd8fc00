package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/schema"
)

// broker says what can be seen of a NATS server, and what cannot.
func (d *doctor) broker(ctx context.Context, check string, nc *nats.Conn) {
	facts := []string{"nats-server " + nc.ConnectedServerVersion()}
	if nc.MaxPayload() < 1<<20 {
		d.tell(diagnosis{Check: check, Status: statusBlocked, Kind: schema.PayloadTooLarge, Text: fmt.Sprintf("%s takes messages of %d bytes at most, and lines have up to a million", facts[0], nc.MaxPayload()), Next: "set max_payload of the server to 1MB or more"})
		return
	}
	facts = append(facts, fmt.Sprintf("messages of up to %d bytes", nc.MaxPayload()))
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	v := diagnosis{Check: check, Status: statusOK}
	warn := func(text, next string) {
		facts = append(facts, text)
		if v.Status = statusWarning; v.Next == "" {
			v.Next = next
		}
	}
	var major, minor int
	if _, err := fmt.Sscanf(nc.ConnectedServerVersion(), "%d.%d", &major, &minor); err != nil || major < 2 || major == 2 && minor < 15 {
		warn("which is older than 2.15, with which this is tried", "use a nats-server of 2.15 or newer")
	}
	d.queue(ctx, nc, &facts, warn)
	if check != "serve" {
		const sync = "let it sync always: sync_interval: always, in its jetstream block"
		switch n, always, longest := syncs(ctx, nc); {
		case n == 0:
			facts, v.Next = append(facts, "how often it syncs cannot be seen from here"), cmp.Or(v.Next, sync)
		case always:
			facts = append(facts, many(n, "server")+" answered that they sync always")
		default:
			warn(fmt.Sprintf("of %s that answered not all sync what they acknowledge: one does every %v", many(n, "server"), longest), sync)
		}
	}
	v.Text = strings.Join(facts, "; ")
	d.tell(v)
}

// queue looks at JetStream, and at the stream of calls.
func (d *doctor) queue(ctx context.Context, nc *nats.Conn, facts *[]string, warn func(text, next string)) {
	js, err := jetstream.New(nc)
	var q jetstream.Stream
	if err == nil {
		q, err = js.Stream(ctx, executor.StreamQueue)
	}
	if err != nil {
		warn("the queue cannot be looked at", "calls by request go on; for the queue look at the log of the serve")
		return
	}
	level := "its API level cannot be seen"
	if info, err := js.AccountInfo(ctx); err == nil {
		level = fmt.Sprintf("API level %d", info.API.Level)
	}
	i := q.CachedInfo()
	*facts = append(*facts, level, fmt.Sprintf("%s with %s and %s", executor.StreamQueue, many(int(i.State.Msgs), "call"), many(i.Config.Replicas, "replica")))
	switch {
	case i.Config.Storage != jetstream.FileStorage:
		warn("it keeps them in memory", "a restart of the server loses what is queued: make the stream anew, with file storage")
	case i.Cluster != nil && i.Cluster.Name != "" && i.Config.Replicas < 3:
		warn("in a cluster, of which it outlives no server", "give the stream three replicas: nats stream edit --replicas 3 "+executor.StreamQueue)
	}
	// What came of deliveries that are given up is told by advisories alone.
	sub, err := nc.SubscribeSync("$JS.EVENT.ADVISORY.>")
	if err == nil {
		err = nc.FlushWithContext(ctx)
		_ = sub.Unsubscribe() // the connection ends soon
	}
	if err != nil || errors.Is(nc.LastError(), nats.ErrPermissionViolation) {
		warn("advisories cannot be heard", "let its user subscribe to $JS.EVENT.ADVISORY.>: what the server gives up shows nowhere else")
		return
	}
	*facts = append(*facts, "advisories can be heard")
}

// syncs asks servers how they sync what they acknowledge. Those whose system
// account this is answer: n of them.
func syncs(ctx context.Context, nc *nats.Conn) (n int, always bool, longest time.Duration) {
	in := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(in)
	if err != nil {
		return 0, false, 0
	}
	defer sub.Unsubscribe()
	if nc.PublishRequest("$SYS.REQ.SERVER.PING.JSZ", in, nil) != nil {
		return 0, false, 0
	}
	always = true
	for wait := time.Second; ; wait = 200 * time.Millisecond { // all servers of a cluster answer
		quiet, cancel := context.WithTimeout(ctx, wait)
		m, err := sub.NextMsgWithContext(quiet)
		cancel()
		if err != nil || m.Header.Get("Status") != "" { // nobody, or nobody any more
			return n, always && n > 0, longest
		}
		var v struct {
			Data struct {
				Config struct {
					Always   bool  `json:"sync_always"`
					Interval int64 `json:"sync_interval"` // ns
				} `json:"config"`
			} `json:"data"`
		}
		if schema.Unmarshal(m.Data, &v) == nil {
			n++
			always, longest = always && v.Data.Config.Always, max(longest, time.Duration(v.Data.Config.Interval))
		}
	}
}
