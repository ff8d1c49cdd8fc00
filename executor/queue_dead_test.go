package executor_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// ambiguous makes sessions that nobody can write until free is called.
func (p *place) ambiguous(sessions ...string) (free func()) {
	p.t.Helper()
	var claims []string
	for _, s := range sessions {
		p.leave(s)
		claims = append(claims, filepath.Join(p.dir, "sessions", s, "000002.jsonl"))
		if err := os.WriteFile(claims[len(claims)-1], []byte("{}\n"), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	return func() {
		p.t.Helper()
		for _, c := range claims {
			if err := os.Remove(c); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// requeued are the notes that something was queued again.
func (p *place) requeued(session string) (by []string) {
	p.t.Helper()
	for _, e := range p.read(session).Events {
		if e.Type == schema.TypeNote && field[string](p.t, e.Data, "by") != "" {
			by = append(by, field[string](p.t, e.Data, "call_id")+" "+field[string](p.t, e.Data, "by")+": "+field[string](p.t, e.Data, "reason"))
		}
	}
	return by
}

// What is parked is listed and sent back: one call, a session, a kind, or all.
func TestWhatIsParkedIsQueuedAgain(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	free := p.ambiguous("s1", "s2")
	count := newCounter(false)
	n := p.queueNode([]executor.Tool{count.tool("count", false)}, time.Minute)
	n.open("fine")
	for _, s := range []string{"s1", "s2"} {
		for _, id := range []string{"a", "b", "c"} {
			n.enqueue(s, s+id, "count", `{"password":"not in a log, as it is hidden"}`)
		}
	}
	if err := n.client.Enqueue(within(t), "nobody", request("n", "count", `{}`)); err != nil {
		t.Fatal(err)
	}
	n.emptied()
	list := func(req executor.DeadRequest) []executor.DeadLetter {
		a, err := n.client.Dead(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		return a.Letters
	}
	all := list(executor.DeadRequest{})
	if len(all) != 7 || len(list(executor.DeadRequest{Parked: true})) != 6 || len(list(executor.DeadRequest{Session: "s1"})) != 3 ||
		len(list(executor.DeadRequest{Kind: "not_found"})) != 1 || len(list(executor.DeadRequest{CallID: "s2b"})) != 1 || len(list(executor.DeadRequest{Session: "fine"})) != 0 {
		t.Errorf("listed are %+v", all)
	}
	for _, l := range all {
		if parked := l.CallID != "n"; l.Parked != parked || l.Message == "" || l.Deliveries == 0 || l.Bytes == 0 || l.Cannot != "" || l.At.IsZero() ||
			parked && (l.Kind != schema.SessionWriterAmbiguous || l.Deliveries != 10 || !strings.HasPrefix(l.CallID, l.Session)) {
			t.Errorf("listed is %+v", l)
		}
	}
	paged := 0
	for req := (executor.DeadRequest{Parked: true, Limit: 4}); ; {
		a, err := n.client.Dead(within(t), req)
		if err != nil {
			t.Fatal(err)
		}
		paged += len(a.Letters)
		if !a.More {
			break
		}
		req.After = a.Letters[len(a.Letters)-1].Seq
	}
	if paged != 6 {
		t.Errorf("by pages %d", paged)
	}
	q, err := n.client.Queue(within(t))
	if err != nil || q.Parked != 6 || q.Dead != 1 || q.Messages != 0 || q.DeadBytes == 0 || q.OldestAge != 0 {
		t.Errorf("the queue is %+v, %v", q, err)
	}
	again := func(req executor.DeadRequest, want int) executor.RequeueAnswer {
		t.Helper()
		a, err := n.client.Requeue(within(t), executor.RequeueRequest{DeadRequest: req, By: "ada", Reason: "it has room"})
		if err != nil || a.Requeued != want {
			t.Fatalf("%+v: %+v, %v", req, a, err)
		}
		return a
	}
	// While a session cannot be written nothing is sent: it would only be parked once more.
	if a := again(executor.DeadRequest{Session: "s1"}, 0); len(a.Letters) != 3 || !strings.HasPrefix(a.Letters[0].Cannot, string(schema.SessionWriterAmbiguous)) {
		t.Errorf("left are %+v", a.Letters)
	}
	// Whoever waits for a call that nobody will do is told.
	free()
	_, err = n.client.Wait(within(t), "s1", "s1a")
	if wantErr(t, err, schema.SessionWriterAmbiguous); schema.AsError(err).Details["given_up"] != "parked" || !strings.Contains(fmt.Sprint(schema.AsError(err).Details["next"]), "calls requeue s1 s1a") {
		t.Errorf("who waits is told %v, %v", err, schema.AsError(err).Details)
	}
	if a, err := n.client.Requeue(within(t), executor.RequeueRequest{DeadRequest: executor.DeadRequest{Session: "s1"}, By: "ada", DryRun: true}); err != nil || len(a.Letters) != 3 || a.Requeued != 0 {
		t.Errorf("a dry run gives %+v, %v", a, err)
	}
	again(executor.DeadRequest{CallID: "s1b"}, 1)
	if a, err := n.client.Wait(within(t), "s1", "s1b"); err != nil || kindOfResult(t, a.Data) != "" {
		t.Errorf("the one that was sent gives %s, %v", a.Data, err)
	}
	again(executor.DeadRequest{Session: "s1"}, 2)
	again(executor.DeadRequest{Kind: string(schema.SessionWriterAmbiguous)}, 3)
	again(executor.DeadRequest{}, 0) // what is left is of a session that is not there
	n.open("nobody")
	again(executor.DeadRequest{}, 1)
	n.emptied()
	for _, call := range []string{"s1a", "s1b", "s1c", "s2a", "s2b", "s2c", "n"} {
		session := call[:len(call)-1]
		if call == "n" {
			session = "nobody"
		}
		if wantKindOfResult(t, p.result(session, call), ""); count.of(call) != 1 {
			t.Errorf("call %s ran %d times", call, count.of(call))
		}
	}
	if by := p.requeued("s1"); len(by) != 3 || by[0] != "s1b ada: it has room" {
		t.Errorf("noted is %q", by)
	}
	if len(n.dead()) != 0 {
		t.Errorf("%d letters are left", len(n.dead()))
	}
	for what, req := range map[string]executor.RequeueRequest{
		"nobody":     {},
		"no session": {DeadRequest: executor.DeadRequest{Session: "../x"}, By: "ada"},
		"no kind":    {DeadRequest: executor.DeadRequest{Kind: "odd"}, By: "ada"},
		"a limit":    {DeadRequest: executor.DeadRequest{Limit: 501}, By: "ada"},
	} {
		if _, err := n.client.Requeue(within(t), req); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A letter that is not whole any more stays. So does nothing that was sent back
// by somebody who was stopped in the middle: the same call runs once.
func TestWhatIsNotWholeIsNotQueuedAgain(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	free := p.ambiguous("s1")
	count := newCounter(false)
	n := p.queueNode([]executor.Tool{count.tool("count", false)}, time.Minute)
	n.open("s2")
	js := p.js()
	p.anySize(js)
	long := `{"call_id":"long","name":"count","args":{"a":"` + strings.Repeat("a", 1<<20-100) + `"}}`
	for _, m := range []struct{ session, body string }{{"s1", long}, {"s1", `{"call_id":"c1","name":"count","args":{"a":1}}`},
		{"s2", `{"call_id":"hidden","name":"","args":{"password":"correct horse battery"}}`}, {"_odd", `{"call_id":"c2","name":"count"}`}} {
		if _, err := js.Publish(within(t), "steno.v1.queue."+m.session, []byte(m.body)); err != nil {
			t.Fatal(err)
		}
	}
	n.emptied()
	free()
	// Somebody has published one, and was stopped before it was removed.
	if _, err := js.Publish(within(t), "steno.v1.queue.s1", []byte(`{"call_id":"c1","name":"count","args":{"a":1}}`)); err != nil {
		t.Fatal(err)
	}
	a, err := n.client.Requeue(within(t), executor.RequeueRequest{By: "ada"})
	if err != nil || len(a.Letters) != 4 || a.Requeued != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	for _, l := range a.Letters {
		if want := map[string]string{"long": "its end is missing", "hidden": "what is secret in it is missing", "c2": "it names no session"}[l.CallID]; l.Cannot != want && l.Session != "s1" || l.CallID == "c1" && l.Cannot != "" {
			t.Errorf("%+v, want %q", l, want)
		}
		if l.Bytes == len(long) && (l.Cannot != "its end is missing" || l.Session != "s1") {
			t.Errorf("the long one is %+v", l)
		}
	}
	n.emptied()
	if count.of("c1") != 1 || count.of("long") != 0 {
		t.Errorf("c1 ran %d times, the long one %d", count.of("c1"), count.of("long"))
	}
	if left := n.dead(); len(left) != 3 {
		t.Errorf("%d are left", len(left))
	}
	for _, m := range n.dead() {
		if strings.Contains(string(m.Data), "correct horse") {
			t.Errorf("a secret is kept in %s", m.Data)
		}
	}
}

// A lossyDialer connects so that the ends of some deliveries never arrive.
type lossyDialer struct {
	lose int64
	lost atomic.Int64
}

func (l *lossyDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &lossyConn{c, l}, err
}

type lossyConn struct {
	net.Conn
	of *lossyDialer
}

var endOfDelivery = regexp.MustCompile(`PUB \$JS\.ACK\.\S+ \S+ \d+\r\n\+TERM[^\r]*\r\n`)

func (c *lossyConn) Write(b []byte) (int, error) {
	kept := endOfDelivery.ReplaceAllFunc(b, func(end []byte) []byte {
		if c.of.lost.Load() == c.of.lose {
			return end
		}
		c.of.lost.Add(1)
		return nil
	})
	if _, err := c.Conn.Write(kept); err != nil {
		return 0, err
	}
	return len(b), nil
}

// A message that an executor has buried and not ended comes again, and is kept
// and recorded once.
func TestADeadLetterIsKeptOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true, Listen: true})
	lossy := &lossyDialer{lose: 1}
	conn, err := nats.Connect(p.nats.URL(), nats.SetCustomDialer(lossy))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	n := p.queueNode(nil, 300*time.Millisecond, func(c *executor.Config) { c.Conn = conn })
	n.open("s1")
	if _, err := p.js().Publish(within(t), "steno.v1.queue.s1", []byte(`{"call_id":"c1"}`)); err != nil {
		t.Fatal(err)
	}
	n.emptied()
	if lossy.lost.Load() != 1 {
		t.Errorf("%d ends were lost", lossy.lost.Load())
	}
	if l := p.read("s1"); len(l.State.Dead) != 1 || len(n.dead()) != 1 {
		t.Errorf("%d dead letters in the log, %d kept", len(l.State.Dead), len(n.dead()))
	}
}

// Whatever is published to the queue ends in its kind, once; the log stays whole,
// and the good one behind it is done.
func TestHostileMessagesEndInTheirKind(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	count := newCounter(false)
	n := p.queueNode([]executor.Tool{count.tool("count", false)}, time.Minute)
	n.open("s1")
	js := p.js()
	good := `"name":"count","args":{}}`
	for i, c := range []struct {
		session, body string
		header        nats.Header
		kind          schema.Kind // "" for a call that is done
	}{
		{"s1", "", nil, schema.PoisonMessage},
		{"s1", "", nats.Header{"Status": {"408"}}, schema.PoisonMessage},
		{"s1", `{"call_id":"h0",` + good, nats.Header{"Status": {"404"}, "Description": {"No Messages"}}, ""},
		{"s1", `{"call_id":"h1",` + good, nats.Header{"Status": {"503"}}, ""},
		{"s1", `{"call_id":"h2",` + good, nats.Header{"Nats-Service-Error-Code": {"500"}, "Steno-Error-Kind": {"internal"}, "Steno-Hops": {"99"}, "Steno-Via": {"go"}}, ""},
		{"s1", `{"call_id":"h3",` + good, nats.Header{"X": {strings.Repeat("x", 60<<10)}}, ""},
		{"s1", "null", nil, schema.PoisonMessage},
		{"s1", "7", nil, schema.PoisonMessage},
		{"s1", "\x00\xff\xfe", nil, schema.PoisonMessage},
		{"s1", `{"call_id":"h4"` + strings.Repeat(" ", 100<<10), nil, schema.PoisonMessage},
		{"s1", strings.Repeat(`[`, 100<<10), nil, schema.InvalidArgs},
		{"s1", `{"call_id":"h5","name":"count","args":` + strings.Repeat(`{"a":`, 300) + "1" + strings.Repeat("}", 300) + "}", nil, schema.InvalidArgs},
		{"s1", `{"call_id":"h6","call_id":"h7",` + good, nil, schema.InvalidArgs},
		{"s1", `{"call_id":"h8","dry-run":true,` + good, nil, schema.InvalidArgs},
		{"s1", `{"call_id":"` + strings.Repeat("i", 257) + `",` + good, nil, schema.InvalidArgs},
		{"s1", `{"call_id":"h9\u0000",` + good, nil, schema.InvalidArgs},
		{"s1", `{"call_id":"h10","name":"` + strings.Repeat("n", 10<<10) + `"}`, nil, schema.InvalidArgs},
		{"nobody", `{"call_id":"h11",` + good, nil, schema.NotFound},
		{"-rf", `{"call_id":"h12",` + good, nil, schema.InvalidArgs},
		{"S1", `{"call_id":"h13",` + good, nil, schema.NotFound},
		{"s1", `{"call_id":"h14",` + good, nil, ""},
	} {
		before, runs := len(n.dead()), len(count.begun)
		logged := len(p.read("s1").State.Dead)
		if _, err := js.PublishMsg(within(t), &nats.Msg{Subject: "steno.v1.queue." + c.session, Data: []byte(c.body), Header: c.header}); err != nil {
			t.Fatal(err)
		}
		n.emptied()
		dead := n.dead()[before:]
		if c.kind == "" {
			if len(dead) != 0 || len(count.begun) != runs+1 {
				t.Errorf("%d: %.60q: %d dead letters, the tool ran %d times", i, c.body, len(dead), len(count.begun)-runs)
			}
			continue
		}
		if len(dead) != 1 || dead[0].Header.Get(executor.HeaderErrorKind) != string(c.kind) || len(count.begun) != runs {
			t.Errorf("%d: %.60q is dead as %v, want %s", i, c.body, dead, c.kind)
		}
		if now := len(p.read("s1").State.Dead); now-logged != map[bool]int{true: 1}[c.session == "s1"] {
			t.Errorf("%d: %.60q is %d times in the log", i, c.body, now-logged)
		}
	}
	if l := p.read("s1"); len(l.Findings) != 0 || len(l.State.Open()) != 0 {
		t.Errorf("the log has %v", l.Findings)
	}
	for id, err := range n.store.Sessions(t.Context()) {
		if err != nil || id != "s1" {
			t.Errorf("there is a session %s, %v", id, err)
		}
	}
}

// The id of a call that was queued may hold a secret too.
func TestASecretInTheIDOfAQueuedCallIsNotKept(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	n := p.queueNode(nil, time.Minute)
	n.open("s1")
	const secret = "hunter2hunter2"
	n.enqueue("s1", "password="+secret, "act", `{}`)
	eventually(t, "it is dead", func() bool { return len(n.dead()) == 1 })
	for _, m := range n.dead() {
		if text := fmt.Sprint(m.Header, string(m.Data)); strings.Contains(text, secret) {
			t.Errorf("the dead letter is %s", text)
		}
	}
	if data, _ := p.last("s1", schema.TypeDeadLetter); len(data) == 0 || strings.Contains(string(data), secret) {
		t.Errorf("the log has %s", data)
	}
}
