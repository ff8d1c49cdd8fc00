package executor_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/replay"
	"steno/schema"
)

// Payloads at the door: what is stored, what the tool gets, what comes back,
// and what is refused before anything is recorded or run.
func TestValueCases(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	var given, outputs sync.Map // by call
	n := p.node([]executor.Tool{toolOf("keep", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		given.Store(c.CallID, string(c.Args))
		return executor.Result{OK: true}, nil
	}), toolOf("tell", func(_ context.Context, c *executor.Invocation) (executor.Result, error) {
		text, _ := outputs.Load(c.CallID)
		return executor.Result{OK: true, Output: text.(string)}, nil
	})})
	n.open("s1")
	for _, c := range journaltest.Cases(t, "values") {
		for i, v := range c.Values {
			id := fmt.Sprintf("%s.%d", c.Name, i)
			if v.Text != "" {
				p.text(n, id, c.Read(t, v.Text), v.Replaced, &outputs)
				continue
			}
			args := c.Read(t, v.Args)
			before := p.read("s1").Head
			_, err := ask(t, n.conn, "steno.v1.call.s1", fmt.Sprintf(`{"call_id":%q,"name":"keep","args":%s}`, id, args))
			if _, _, door := schema.Compact(nil, args, 2); schema.KindOf(door) != v.Error || schema.KindOf(err) != v.Error {
				t.Errorf("%s: the doors say %v and %v, want %q", id, door, err, v.Error)
			}
			if v.Error != "" {
				if after := p.read("s1").Head; after != before {
					t.Errorf("%s: a refused call is recorded", id)
				}
				continue
			}
			l := p.read("s1")
			call := l.Events[slices.IndexFunc(l.Events, func(e schema.Event) bool { return e.Seq == before.Seq+1 })]
			stored := []byte(field[jsontext.Value](t, call.Data, "args"))
			want := c.Read(t, v.Stored)
			if same := bytes.Equal(stored, want) || v.Compare == "decoded" && reflect.DeepEqual(decoded(t, stored), decoded(t, want)); !same {
				t.Errorf("%s: stored is %.200q, want %.200q", id, stored, want)
			}
			if got, _ := given.Load(id); got != string(stored) {
				t.Errorf("%s: the tool got %.200q, stored is %.200q", id, got, stored)
			}
			if n := field[int](t, call.Data, "replaced"); n != v.Replaced {
				t.Errorf("%s: %d characters were replaced, want %d", id, n, v.Replaced)
			}
		}
	}
}

func decoded(t *testing.T, b []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// text sends a text as a message, and has a tool say it.
func (p *place) text(n *node, id string, file []byte, replaced int, outputs *sync.Map) {
	p.t.Helper()
	var want struct {
		Base64    string
		ComesBack string `json:"comes_back"`
	}
	if err := json.Unmarshal(file, &want); err != nil {
		p.t.Fatal(err)
	}
	text, err := base64.StdEncoding.DecodeString(want.Base64)
	if err != nil {
		p.t.Fatal(err)
	}
	// Only what must be is escaped, so that broken text arrives broken.
	var quoted strings.Builder
	for _, b := range text {
		if b < 0x20 || b == '"' || b == '\\' {
			fmt.Fprintf(&quoted, `\u%04x`, b)
		} else {
			quoted.WriteByte(b)
		}
	}
	if _, err := ask(p.t, n.conn, "steno.v1.session.append", `{"session":"s1","events":[{"type":"user_message","data":{"text":"`+quoted.String()+`"}}]}`); err != nil {
		p.t.Fatalf("%s: %v", id, err)
	}
	l := p.read("s1")
	said := l.Events[len(l.Events)-1]
	if got := field[string](p.t, said.Data, "text"); got != want.ComesBack || field[int](p.t, said.Data, "replaced") != replaced {
		p.t.Errorf("%s: the message is %s, want %q with %d replaced", id, said.Data, want.ComesBack, replaced)
	}
	for i := range said.Data {
		if said.Data[i] < 0x20 {
			p.t.Errorf("%s: byte %#x stands in the log", id, said.Data[i])
		}
	}
	outputs.Store(id, string(text))
	a := n.call("s1", id, "tell", `{}`)
	p.wantRecorded("s1", a)
	if got := field[string](p.t, a.Data, "output"); got != want.ComesBack {
		p.t.Errorf("%s: the output is %s, want %q", id, a.Data, want.ComesBack)
	}
}

// What a resume does with each call that was left open, once and never again.
func TestResumeCases(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	for _, c := range journaltest.Cases(t, "resume") {
		c.Lay(t, c.Log, p.dir, c.Session)
		left := p.read(c.Session)
		count := newCounter(false)
		var tools []executor.Tool
		for _, call := range left.State.Calls {
			if !slices.ContainsFunc(tools, func(t executor.Tool) bool { return t.Name == call.Name }) {
				tools = append(tools, count.tool(call.Name, c.Tools[call.Name].Repeatable))
			}
		}
		n := p.node(tools)
		n.open(c.Session)
		eventually(t, "all calls are settled", func() bool { return len(p.read(c.Session).State.Open()) == 0 })
		n.stop()
		l := p.read(c.Session)
		for _, was := range left.State.Calls {
			call, want := l.State.Call(was.ID), c.Resume[was.ID]
			attempt, runs := uint64(0), 0
			fmt.Sscanf(want, "runs, attempt %d", &attempt)
			if attempt > 0 {
				runs = 1
			}
			switch {
			case want == "" && (was.Result == nil || call.Result.Seq != was.Result.Seq),
				want == "interrupted" && (call.State != replay.Interrupted || !call.Result.Synthetic || call.Result.Kind != schema.Interrupted),
				attempt > 0 && (call.State != replay.OK || call.Result.Attempt != attempt),
				count.of(was.ID) != runs:
				t.Errorf("%s: %s ran %d times and is %s, with %+v; want %q", c.Name, was.ID, count.of(was.ID), call.State, call.Result, want)
			}
		}
		again := p.node(tools)
		again.open(c.Session)
		first := left.State.Calls[slices.IndexFunc(left.State.Calls, func(c *replay.Call) bool { return c.Redacted == "" })]
		again.call(c.Session, first.ID, first.Name, string(argsOf(t, l, first.Seq)))
		for _, call := range left.State.Calls {
			if _, err := again.client.Call(within(t), c.Session, request(call.ID, call.Name, string(argsOf(t, l, call.Seq)))); call.Redacted != "" && !errors.Is(err, schema.CallConflict) {
				t.Errorf("%s: marks in place of the arguments of %s: %v", c.Name, call.ID, err)
			}
		}
		again.stop()
		if now := p.read(c.Session); marshal(t, now.State.Calls) != marshal(t, l.State.Calls) {
			t.Errorf("%s: a second resume has changed the calls", c.Name)
		}
	}
}

// argsOf are the recorded arguments of the call with this number.
func argsOf(t *testing.T, l *journaltest.Log, seq uint64) jsontext.Value {
	t.Helper()
	return field[jsontext.Value](t, l.Events[seq-1].Data, "args")
}

// besidesTheClaim is damage that is no claim that cannot be read.
func besidesTheClaim(f schema.Finding) bool {
	return f.Severity == schema.SeverityError && f.Reason != schema.ClaimCorrupt
}

// An executor whose store is full of damaged sessions refuses those by kind,
// without a change, and serves the others.
func TestCallsAmongCases(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	p := &place{t, journaltest.StartNATS(t, journaltest.NATSOptions{}), store.Dir()}
	cases := journaltest.CasesOf(t, "log", "TestLogCases")
	before := map[string]*journaltest.Log{}
	for _, c := range cases {
		c.Lay(t, c.Log, p.dir, c.Session)
		before[c.Name] = p.read(c.Session)
	}
	n := p.node([]executor.Tool{echo})
	n.open("good")
	refused := 0
	for i, c := range cases {
		var want schema.Kind
		switch l := before[c.Name]; {
		case l.Lease.State == lease.Ambiguous && !slices.ContainsFunc(l.Findings, besidesTheClaim): // all that is wrong is that nobody knows whose it is
			want = l.Lease.Kind
		case c.MayAppend == false:
			want = c.Strict.Kind
		case !l.State.Begun():
			want = schema.NotFound
		case l.State.Ended != nil:
			want = schema.SessionEnded
		}
		_, err := n.client.Call(within(t), c.Session, request("a-new-call", "echo", `{}`))
		if schema.KindOf(err) != want {
			t.Errorf("a call of %s gives %v, want %q", c.Name, err, want)
		}
		if now := p.read(c.Session); c.MayAppend != true {
			refused++
			if now.Head != before[c.Name].Head || len(now.Findings) != len(before[c.Name].Findings) || now.Epochs != before[c.Name].Epochs {
				t.Errorf("a refusal has changed %s", c.Name)
			}
		} else if want == "" && now.State.Call("a-new-call").State != replay.OK {
			t.Errorf("the call of %s is %+v", c.Name, now.State.Call("a-new-call"))
		}
		n.call("good", fmt.Sprint("c", i), "echo", `{}`)
	}
	if refused < 20 {
		t.Errorf("only %d sessions were refused", refused)
	}
	n.stop()
	journaltest.Verify(t, store, "good")
}

// What is no name of a session becomes no path, no subject and no line on a
// terminal, whichever way it comes.
func TestNameCases(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	outside := filepath.Dir(p.dir)
	before := names(t, outside)
	for _, c := range journaltest.Cases(t, "ids") {
		var ids []struct {
			ID       string
			Accepted bool
		}
		if err := json.Unmarshal(c.Read(t, "ids.json"), &ids); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, id := range ids {
			kind := schema.InvalidArgs
			if id.Accepted {
				kind = ""
				want = append(want, id.ID)
			}
			body, err := json.Marshal(executor.OpenRequest{Session: id.ID})
			if err != nil {
				t.Fatal(err)
			}
			if id.ID == "" { // no name: it gets one
				kind = ""
			}
			m, err := ask(t, n.conn, "steno.v1.session.open", string(body))
			wantErr(t, err, kind)
			if id.ID == "" {
				want = append(want, field[string](t, m.Data, "session"))
			}
			opt := journaltest.Options()
			opt.Create = !id.Accepted
			if _, err := journal.Open(within(t), p.store(), id.ID, opt); !id.Accepted {
				wantErr(t, err, schema.InvalidArgs)
				wantSafe(t, id.ID, err)
			}
			// The client refuses what would be another subject, and nobody
			// serves a subject that is none.
			if _, err := n.client.Call(within(t), id.ID, request("c1", "echo", `{}`)); !id.Accepted {
				wantErr(t, err, schema.InvalidArgs)
				wantSafe(t, id.ID, err)
			} else if err != nil {
				t.Errorf("a call of session %q: %v", id.ID, err)
			}
			// A folder of that name that lies in the store is no session.
			if !id.Accepted && id.ID != "" && !strings.ContainsAny(id.ID, "/\x00") && strings.Trim(id.ID, ".") != "" {
				if err := os.Mkdir(filepath.Join(p.dir, "sessions", id.ID), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		}
		var got []string
		for id, err := range p.store().Sessions(within(t)) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, id)
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the sessions are\n%q, want\n%q", got, want)
		}
	}
	if after := names(t, outside); !slices.Equal(before, after) {
		t.Errorf("around the store lie %q, before %q", after, before)
	}
}

// Messages that can never be handled end in STENO_DEAD, each once and with its
// reason, and the good one behind them is done.
func TestMessageCases(t *testing.T) {
	for _, c := range journaltest.Cases(t, "messages") {
		t.Run(c.Name, func(t *testing.T) { messages(t, c) })
	}
}

func messages(t *testing.T, c *journaltest.Case) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	var in struct {
		Session  string
		Messages []struct {
			Name, Session, Raw string
			Payload            json.RawMessage
			Want               struct {
				Runs           int
				Ends, Recorded string
				Kind           schema.Kind
				NewSession     bool `json:"new_session"`
			}
		}
	}
	if err := json.Unmarshal(c.Read(t, "messages.json"), &in); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	runs := map[string]int{} // of a tool
	counted := func(name string) executor.Tool {
		return toolOf(name, func(context.Context, *executor.Invocation) (executor.Result, error) {
			mu.Lock()
			runs[name]++
			mu.Unlock()
			if name == "panic" {
				panic("as it does")
			}
			return executor.Result{OK: true}, nil
		})
	}
	n := p.queueNode([]executor.Tool{counted("echo"), counted("panic")}, time.Minute)
	n.open(in.Session)
	js, err := jetstream.New(n.conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range in.Messages {
		body := []byte(m.Raw)
		if m.Payload != nil {
			body = m.Payload
		}
		session := cmp.Or(m.Session, in.Session)
		dead := len(n.dead())
		if _, err := js.Publish(within(t), "steno.v1.queue."+session, body); err != nil {
			t.Fatal(err)
		}
		n.emptied()
		letters := n.dead()[dead:]
		if ends := m.Want.Ends; ends == "dead" && len(letters) != 1 || ends == "acked" && len(letters) != 0 {
			t.Errorf("%s: %d dead letters", m.Name, len(letters))
		}
		var call struct {
			CallID string `json:"call_id"`
			Name   string
		}
		_ = json.Unmarshal(body, &call) // of what is no call there is nothing to know
		mu.Lock()
		ran := runs[call.Name]
		mu.Unlock()
		if ran != m.Want.Runs {
			t.Errorf("%s: the tool has run %d times, want %d", m.Name, ran, m.Want.Runs)
		}
		if k := m.Want.Kind; k != "" && (len(letters) != 1 || letters[0].Header.Get(executor.HeaderErrorKind) != string(k) ||
			session == in.Session && field[string](t, lastOf(p.read(session)).Data, "reason") != string(k)) {
			t.Errorf("%s: the dead letters are %+v, want %s", m.Name, letters, k)
		}
		if r := m.Want.Recorded; r != "" && string(kindOfResult(t, p.result(session, call.CallID))) != strings.TrimPrefix(r, "ok") {
			t.Errorf("%s: the result is %s, want %s", m.Name, p.result(session, call.CallID), r)
		}
	}
	if list := names(t, filepath.Join(p.dir, "sessions")); len(list) != 1 {
		t.Errorf("there are the sessions %q", list)
	}
}

func lastOf(l *journaltest.Log) schema.Event { return l.Events[len(l.Events)-1] }

// wantSafe checks that an error can be shown on a terminal.
func wantSafe(t *testing.T, id string, err error) {
	t.Helper()
	for _, r := range fmt.Sprint(err) {
		if r < 0x20 || r == 0x7F {
			t.Errorf("the error about %q holds %q", id, r)
		}
	}
}

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
