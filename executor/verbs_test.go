package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// event is an event to append.
func event(typ, data string) executor.AppendEvent {
	return executor.AppendEvent{Type: typ, Data: []byte(data)}
}

func TestOpenIsIdempotent(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	workspace := t.TempDir()
	req := executor.OpenRequest{Session: "s1", Workspace: workspace, Labels: []byte(`{"team":"a"}`), TaskKind: "investigate", Phase: "investigating"}
	first, err := n.client.Open(within(t), req)
	if err != nil || !first.Created || first.Workspace != workspace {
		t.Fatalf("the session is made: %+v, %v", first, err)
	}
	// The second finds it, and leaves it as it is.
	for _, again := range []executor.OpenRequest{req, {Session: "s1"}, {Session: "s1", Workspace: t.TempDir(), Phase: "editing"}} {
		a, err := n.client.Open(within(t), again)
		if err != nil || a.Created || a.Workspace != workspace || a.Head != first.Head {
			t.Errorf("the session is there: %+v, %v", a, err)
		}
	}
	n.stop() // also where nobody holds it
	n = p.node([]executor.Tool{echo})
	if a, err := n.client.Open(within(t), req); err != nil || a.Created || a.Workspace != workspace {
		t.Errorf("the session is there: %+v, %v", a, err)
	}
	got, err := n.client.Get(within(t), "s1")
	if err != nil || got.Workspace != workspace || string(got.Labels) != `{"team":"a"}` || got.TaskKind != "investigate" || got.Phase != "investigating" {
		t.Errorf("the session is %+v, %v", got, err)
	}
	// Without an id it gets one, a ULID.
	m, err := ask(t, n.conn, "steno.v1.session.open", ``)
	if err != nil {
		t.Fatal(err)
	}
	id := field[string](t, m.Data, "session")
	if _, err := schema.ParseID(id); err != nil || m.Header.Get("Steno-Session") != id || m.Header.Get("Steno-Head") != field[string](t, m.Data, "head") {
		t.Errorf("the new session is %s with headers %v", m.Data, m.Header)
	}
}

func TestASessionIsMadeOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	nodes := []*node{p.node(nil), p.node(nil)}
	for round := range 5 {
		id := fmt.Sprint("s", round)
		var callers sync.WaitGroup
		answers := make(chan executor.OpenAnswer, 20)
		for i := range cap(answers) {
			callers.Go(func() {
				a, err := nodes[i%2].client.Open(within(t), executor.OpenRequest{Session: id, Labels: []byte(fmt.Sprintf(`{"by":%d}`, i))})
				if err != nil {
					t.Error(err)
				}
				answers <- a
			})
		}
		callers.Wait()
		heads := map[string]bool{}
		for range cap(answers) {
			heads[(<-answers).Head] = true
		}
		l := p.read(id)
		if len(heads) != 1 || len(l.Events) != 2 || l.Events[1].Type != schema.TypeSessionStarted || len(l.State.Epochs) != 1 {
			t.Errorf("the session was made with the heads %v and %d events", heads, len(l.Events))
		}
	}
}

func TestOpenRefusesWhatCannotBeRecorded(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deep := strings.Repeat(`{"a":`, schema.MaxDepth-1) + `{}` + strings.Repeat(`}`, schema.MaxDepth-1)
	for what, c := range map[string]struct {
		body string
		want schema.Kind
	}{
		"an id that is a path":           {`{"session":"../s1"}`, schema.InvalidArgs},
		"an id that is two tokens":       {`{"session":"a.b"}`, schema.InvalidArgs},
		"an id that is a wildcard":       {`{"session":"*"}`, schema.InvalidArgs},
		"an id that begins with a dash":  {`{"session":"-s"}`, schema.InvalidArgs},
		"an id that is too long":         {`{"session":"` + strings.Repeat("s", 129) + `"}`, schema.InvalidArgs},
		"an id that is no text":          {`{"session":7}`, schema.InvalidArgs},
		"labels that are no object":      {`{"session":"s1","labels":[1]}`, schema.InvalidArgs},
		"labels that are too deep":       {`{"session":"s1","labels":` + deep + `}`, schema.InvalidArgs},
		"labels with a key twice":        {`{"session":"s1","labels":{"a":1,"\u0061":2}}`, schema.InvalidArgs},
		"labels that are too long":       {`{"session":"s1","labels":{"a":"` + strings.Repeat("a", schema.MaxLine-100) + `"}}`, schema.PayloadTooLarge},
		"a request that is too long":     {`{"session":"s1","labels":{"a":"` + strings.Repeat("a", schema.MaxLine) + `"}}`, schema.PayloadTooLarge},
		"a workspace that is relative":   {`{"session":"s1","workspace":"here"}`, schema.InvalidArgs},
		"a workspace that is not there":  {`{"session":"s1","workspace":"/nowhere/at/all"}`, schema.ResourceMissing},
		"a workspace that is no folder":  {`{"session":"s1","workspace":"` + file + `"}`, schema.ResourceMissing},
		"a request that is not JSON":     {`{"session":"s1"`, schema.InvalidArgs},
		"a request that is no object":    {`["s1"]`, schema.InvalidArgs},
		"a request that is a bare value": {`null`, schema.InvalidArgs},
	} {
		if _, err := ask(t, n.conn, "steno.v1.session.open", c.body); schema.KindOf(err) != c.want {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	if names, err := os.ReadDir(filepath.Join(p.dir, "sessions")); err != nil || len(names) != 0 {
		t.Errorf("something was made: %v, %v", names, err)
	}
	// What is just deep enough is kept as it is.
	deep = deep[len(`{"a":`) : len(deep)-1]
	if _, err := ask(t, n.conn, "steno.v1.session.open", `{"session":"s1","labels":`+deep+`}`); err != nil {
		t.Error(err)
	}
}

func TestReplacedCharactersAreCounted(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	want := func(typ, data string) {
		t.Helper()
		l := p.read("s1")
		if e := l.Events[len(l.Events)-1]; e.Type != typ || string(e.Data) != data {
			t.Errorf("recorded is %s %s, want %s %s", e.Type, e.Data, typ, data)
		}
	}
	if _, err := ask(t, n.conn, "steno.v1.session.open", `{"session":"s1","labels":{"a":"\ud800"}}`); err != nil {
		t.Fatal(err)
	}
	want(schema.TypeSessionStarted, `{"labels":{"a":"\ufffd"},"replaced":1}`)
	// Each event of a batch has its own count.
	if _, err := ask(t, n.conn, "steno.v1.session.append", `{"session":"s1","events":[
		{"type":"note","data":{}},{"type":"note","data":{"a":"\udc00\ud800","b":"`+"\xff\xc3"+`"}},{"type":"note","data":{"replaced":7}}]}`); err != nil {
		t.Fatal(err)
	}
	l := p.read("s1")
	for i, data := range []string{`{}`, `{"a":"\ufffd\ufffd","b":"��","replaced":4}`, `{"replaced":7}`} {
		if got := string(l.Events[2+i].Data); got != data {
			t.Errorf("event %d is %s, want %s", i, got, data)
		}
	}
	// Where the count has no place the event is refused.
	for _, data := range []string{`["\ud800"]`, `"\ud800"`, `{"a":"\ud800","replaced":1}`} {
		_, err := ask(t, n.conn, "steno.v1.session.append", `{"session":"s1","events":[{"type":"x.own","data":`+data+`}]}`)
		wantErr(t, err, schema.InvalidArgs)
	}
	// The client hands on what it is given.
	for _, c := range []struct{ data, want string }{
		{`{"a":"\ud800\u0061\/","n":1.50}`, `{"a":"\ufffd\u0061\/","n":1.50,"replaced":1}`},
		{`[1e400,"\u0062"]`, `[1e400,"\u0062"]`},
	} {
		if _, err := n.client.Append(within(t), "s1", event("x.own", c.data)); err != nil {
			t.Fatal(err)
		}
		want("x.own", c.want)
	}
	a := n.call("s1", "c1", "echo", `{"a":"\ud800\u0062"}`)
	if got := field[string](t, a.Data, "output"); got != `{"a":"\ufffd\u0062"}` {
		t.Errorf("the tool got %s", got)
	}
	l = p.read("s1")
	if call := string(l.Events[len(l.Events)-4].Data); !strings.HasSuffix(call, `,"replaced":1}`) {
		t.Errorf("the call is %s", call)
	}
	if _, err := ask(t, n.conn, "steno.v1.session.end", `{"session":"s1","outcome":"failed","reason":"\ud800"}`); err != nil {
		t.Fatal(err)
	}
	want(schema.TypeSessionEnded, `{"outcome":"failed","reason":"�","replaced":1}`)
}

func TestGetSumsUpASession(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{echo, held.tool("held", false)})
	n.open("s1")
	n.call("s1", "c1", "echo", `{}`)
	n.call("s1", "c2", "none", `{}`)
	if _, err := n.client.Append(within(t), "s1", event(schema.TypeUserMessage, `{"text":"hello"}`)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { n.call("s1", "c3", "held", `{}`); close(done) }()
	wait(t, "the tool", held.begun)
	want := func(open []string, calls string) {
		t.Helper()
		a, err := n.client.Get(within(t), "s1")
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(a.Calls)
		if err != nil {
			t.Fatal(err)
		}
		if !a.OK || a.Messages != 1 || a.Epochs != 1 || !slices.Equal(a.Open, open) || string(got) != calls || a.Head != p.read("s1").Head.String() {
			t.Errorf("the session is %+v", a)
		}
	}
	want([]string{"c3"}, `{"failed":1,"ok":1,"unknown":1}`)
	close(held.hold)
	wait(t, "the call", done)
	want([]string{}, `{"failed":1,"ok":2}`)
	n.stop()
	n = p.node(nil) // read from the disk
	want([]string{}, `{"failed":1,"ok":2}`)
	if st, err := p.store().Lease(context.Background(), "s1"); err != nil || st.Kind != "" {
		t.Errorf("get has taken the lease: %+v, %v", st, err)
	}
}

func TestListGoesThroughAllSessionsInPages(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	if a, err := n.client.List(within(t), executor.ListRequest{}); err != nil || !a.OK || a.Sessions == nil || len(a.Sessions) != 0 || a.More {
		t.Errorf("an empty store lists %+v, %v", a, err)
	}
	for i := range 10 {
		n.open(fmt.Sprint("s", i))
	}
	n.stop()
	n = p.node(nil)
	if _, err := n.client.Append(within(t), "s3", event(schema.TypeNote, `{}`)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".hidden", "a b", "_s"} { // no sessions
		if err := os.Mkdir(filepath.Join(p.dir, "sessions", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.dir, "sessions", "s5", "000002.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err) // one session is odd; that hides none of the others
	}
	t.Cleanup(func() { os.Remove(filepath.Join(p.dir, "sessions", "s5", "000002.jsonl")) })
	var ids []string
	req := executor.ListRequest{Limit: 3}
	for more := true; more; {
		a, err := n.client.List(within(t), req)
		if err != nil || len(a.Sessions) == 0 || len(a.Sessions) > 3 {
			t.Fatalf("a page of %d, %v", len(a.Sessions), err)
		}
		for _, s := range a.Sessions {
			ids = append(ids, s.Session)
			want := executor.SessionInfo{Session: s.Session, Lease: "available", Epoch: 1}
			switch s.Session {
			case "s3":
				want = executor.SessionInfo{Session: "s3", Lease: "active", Kind: schema.SessionWriterActive, Epoch: 2}
			case "s5":
				want = executor.SessionInfo{Session: "s5", Lease: "ambiguous", Kind: schema.SessionWriterAmbiguous, Epoch: 2}
			}
			if s != want {
				t.Errorf("session %+v, want %+v", s, want)
			}
		}
		req.After, more = ids[len(ids)-1], a.More
	}
	if got := strings.Join(ids, " "); got != "s0 s1 s2 s3 s4 s5 s6 s7 s8 s9" {
		t.Errorf("the pages have %s", got)
	}
	if a, err := n.client.List(within(t), executor.ListRequest{After: "s3", Limit: 3, IDs: true}); err != nil || strings.Join(a.IDs, " ") != "s4 s5 s6" || len(a.Sessions) > 0 || !a.More {
		t.Errorf("a page of ids: %+v, %v", a, err)
	}
	for _, body := range []string{`{"limit":-1}`, `{"limit":1001}`, `{"limit":"all"}`, `{"after":7}`, `{"ids":"s1"}`, `[]`} {
		_, err := ask(t, n.conn, "steno.v1.session.list", body)
		wantErr(t, err, schema.InvalidArgs)
	}
	if m, err := ask(t, n.conn, "steno.v1.session.list", ``); err != nil || field[bool](t, m.Data, "more") {
		t.Errorf("%s, %v", m.Data, err)
	}
}

func TestAnAgentMayAppendWhatItOwns(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	n.open("s1")
	allowed := []executor.AppendEvent{
		event("user_message", `{"text":"a","replaced_by":null}`),
		event("assistant_message", `{"content":[{"type":"text","text":"b"}],"model":"m"}`),
		event("reasoning", `{"item":{"opaque":"c"},"model":"m"}`),
		event("state_changed", `{"patch":{"a":null,"b":1e400}}`),
		event("usage", `{"model":"m","tokens":{"in":3}}`),
		event("turn_failed", `{"terminal_status":"error","error":{"kind":"network","message":"","details":{}}}`),
		event("history_compaction", `{"range":{"from_seq":1,"to_seq":2},"summary":"s","strategy":"x","tail":[]}`),
		event("history_rewind", `{"to_seq":2}`),
		event("note", `{}`), event("x.a", `7`), event("x.a.b_c", `null`),
	}
	for _, e := range allowed {
		a, err := n.client.Append(within(t), "s1", e)
		if err != nil || !a.OK || len(a.Events) != 1 || a.Events[0].Type != e.Type {
			t.Errorf("%s: %+v, %v", e.Type, a, err)
			continue
		}
		l := p.read("s1")
		last := l.Events[len(l.Events)-1]
		if string(last.Data) != string(e.Data) || last.Seq != a.Events[0].Seq || last.ID.String() != a.Events[0].ID || last.Sum != a.Events[0].Sum || a.Head != last.Head().String() {
			t.Errorf("%s is recorded as %s, and answered with %+v", e.Data, last.Data, a)
		}
	}
	before := p.read("s1").Head
	for typ, want := range map[string]schema.Kind{
		"writer_opened": schema.InvalidArgs, "writer_released": schema.InvalidArgs, "session_started": schema.InvalidArgs,
		"tool_call": schema.InvalidArgs, "approval_requested": schema.InvalidArgs, "permission_decision": schema.InvalidArgs,
		"tool_started": schema.InvalidArgs, "tool_result": schema.InvalidArgs, "phase_changed": schema.InvalidArgs,
		"posture_changed": schema.InvalidArgs, "session_ended": schema.InvalidArgs, "dead_letter": schema.InvalidArgs,
		"nothing_known": schema.InvalidArgs, "x.": schema.InvalidArgs, "x.A": schema.InvalidArgs, "X.a": schema.InvalidArgs, "": schema.InvalidArgs,
		"text_delta": schema.EphemeralNotLoggable, "reasoning_delta": schema.EphemeralNotLoggable, "tool_progress": schema.EphemeralNotLoggable,
		"status": schema.EphemeralNotLoggable, "plan": schema.EphemeralNotLoggable, "context_pressure": schema.EphemeralNotLoggable,
	} {
		_, err := n.client.Append(within(t), "s1", event("note", `{}`), event(typ, `{"text":"a"}`))
		if schema.KindOf(err) != want {
			t.Errorf("%s: %v, want %s", typ, err, want)
		} else if i, ok := schema.AsError(err).Details["event"].(float64); !ok || i != 1 {
			t.Errorf("%s: the event is not named: %v", typ, schema.AsError(err).Details)
		}
	}
	for what, body := range map[string]string{
		"data that does not fit":         `{"type":"user_message","data":{}}`,
		"no data":                        `{"type":"note"}`,
		"no data of an own type":         `{"type":"x.own"}`,
		"data that is no object":         `{"type":"note","data":[]}`,
		"an id that is no ULID":          `{"type":"note","data":{},"id":"1"}`,
		"an id in lower case":            `{"type":"note","data":{},"id":"01j0000000000000000000000a"}`,
		"a key twice":                    `{"type":"note","data":{"a":1,"a":2}}`,
		"data that is too deep":          `{"type":"note","data":` + strings.Repeat(`{"a":`, schema.MaxDepth) + `{}` + strings.Repeat(`}`, schema.MaxDepth) + `}`,
		"a history that goes to nowhere": `{"type":"history_rewind","data":{"to_seq":-1}}`,
	} {
		_, err := ask(t, n.conn, "steno.v1.session.append", `{"session":"s1","events":[{"type":"note","data":{}},`+body+`]}`)
		if schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, body := range map[string]string{
		"no events":       `{"session":"s1","events":[]}`,
		"no list":         `{"session":"s1"}`,
		"too many":        `{"session":"s1","events":[` + strings.TrimSuffix(strings.Repeat(`{"type":"note","data":{}},`, 1001), ",") + `]}`,
		"one id twice":    `{"session":"s1","events":[{"id":"01J00000000000000000000000","type":"note","data":{}},{"id":"01J00000000000000000000000","type":"note","data":{}}]}`,
		"a hostile id":    `{"session":"s1/../s1","events":[{"type":"note","data":{}}]}`,
		"no session":      `{"events":[{"type":"note","data":{}}]}`,
		"an odd session":  `{"session":{},"events":[{"type":"note","data":{}}]}`,
		"a broken escape": `{"session":"s1","events":[{"type":"note","data":{"a":"\u12"}}]}`,
	} {
		_, err := ask(t, n.conn, "steno.v1.session.append", body)
		if schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("%s: %v", what, err)
		}
	}
	long := `{"session":"s1","events":[{"type":"note","data":{"a":"` + strings.Repeat("a", schema.MaxLine-150) + `"}}]}`
	if _, err := ask(t, n.conn, "steno.v1.session.append", long); schema.KindOf(err) != schema.LineTooLong {
		t.Errorf("a line that is too long: %v", err)
	}
	_, err := ask(t, n.conn, "steno.v1.session.append", `{"session":"s2","events":[{"type":"note","data":{}}]}`)
	wantErr(t, err, schema.NotFound)
	if after := p.read("s1").Head; after != before {
		t.Errorf("what was refused has moved the log from %s to %s", before, after)
	}
	deep := strings.Repeat(`{"a":`, schema.MaxDepth-1) + `{}` + strings.Repeat(`}`, schema.MaxDepth-1)
	if _, err := ask(t, n.conn, "steno.v1.session.append", `{"session":"s1","events":[{"type":"note","data":`+deep+`}]}`); err != nil {
		t.Errorf("data that is just deep enough: %v", err)
	}
}

func TestAnAppendIsRecordedOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	n.open("s1")
	batch := func(ids ...string) (events []executor.AppendEvent) {
		for i, id := range ids {
			events = append(events, executor.AppendEvent{ID: id, Type: schema.TypeNote, Data: []byte(fmt.Sprintf(`{"i":%d}`, i))})
		}
		return events
	}
	ids := []string{"01J00000000000000000000001", "01J00000000000000000000002", "01J00000000000000000000003"}
	first, err := n.client.Append(within(t), "s1", batch(ids...)...)
	if err != nil || len(first.Events) != 3 {
		t.Fatalf("%+v, %v", first, err)
	}
	n.stop()
	n = p.node(nil) // the ids are known from the log
	again, err := n.client.Append(within(t), "s1", batch(ids...)...)
	if err != nil || !slices.Equal(again.Events, first.Events) {
		t.Errorf("repeated, the answer is %+v, %v, and was %+v", again, err, first)
	}
	if part, err := n.client.Append(within(t), "s1", batch(ids[1])...); err != nil || part.Events[0] != first.Events[1] {
		t.Errorf("one of them is answered %+v, %v", part, err)
	}
	_, err = n.client.Append(within(t), "s1", batch(ids[1], "01J00000000000000000000004")...)
	wantErr(t, err, schema.AlreadyExists)
	if l := p.read("s1"); l.State.Notes != 3 {
		t.Errorf("%d notes are recorded", l.State.Notes)
	}
	// As if its writer had died behind the first of the two.
	rest, err := n.client.Append(within(t), "s1", batch(ids[2], "01J00000000000000000000004")...)
	if err != nil || len(rest.Events) != 2 || rest.Events[0] != first.Events[2] {
		t.Errorf("the rest of a batch is answered %+v, %v", rest, err)
	}
	if l := p.read("s1"); l.State.Notes != 4 {
		t.Errorf("%d notes are recorded", l.State.Notes)
	}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if _, err := n.client.Append(within(t), "s1", batch("01J00000000000000000000005", "01J00000000000000000000006")...); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if l := p.read("s1"); l.State.Notes != 6 {
		t.Errorf("%d notes are recorded", l.State.Notes)
	}
}

func TestTheEndOfASession(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	n := p.node([]executor.Tool{echo, held.tool("held", false)})
	n.open("s1")
	first := n.call("s1", "c1", "echo", `{}`)
	running := make(chan executor.Answer, 1)
	go func() { running <- n.call("s1", "c2", "held", `{}`) }()
	wait(t, "the tool", held.begun)
	end := executor.EndRequest{Session: "s1", Outcome: "completed", Reason: "all done"}
	_, err := n.client.End(within(t), end)
	wantErr(t, err, schema.Backpressure) // a call is open
	close(held.hold)
	second := wait(t, "the call", running)
	for _, bad := range []string{`{"session":"s1"}`, `{"session":"s1","outcome":"fine"}`, `{"session":"s1","outcome":7}`, `{"outcome":"failed"}`, ``} {
		_, err := ask(t, n.conn, "steno.v1.session.end", bad)
		wantErr(t, err, schema.InvalidArgs)
	}
	a, err := n.client.End(within(t), end)
	if err != nil || a.Head != p.read("s1").Head.String() || a.Seq != p.read("s1").Head.Seq {
		t.Fatalf("the end is %+v, %v", a, err)
	}
	check := func(n *node) {
		t.Helper()
		// The same end again is the same end; another is refused.
		if again, err := n.client.End(within(t), end); err != nil || again != a {
			t.Errorf("ended again: %+v, %v, and was %+v", again, err, a)
		}
		_, err := n.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "failed"})
		wantErr(t, err, schema.SessionEnded)
		_, err = n.client.Call(within(t), "s1", request("c3", "echo", `{}`))
		wantErr(t, err, schema.SessionEnded)
		_, err = n.client.Append(within(t), "s1", event(schema.TypeUserMessage, `{"text":"a"}`))
		wantErr(t, err, schema.SessionEnded)
		// What is recorded can still be asked for, and notes may follow.
		for _, was := range []executor.Answer{first, second} {
			got, err := n.client.Call(within(t), "s1", request(was.CallID, map[string]string{"c1": "echo", "c2": "held"}[was.CallID], `{}`))
			if err != nil || string(got.Data) != string(was.Data) {
				t.Errorf("call %s is answered %s, %v", was.CallID, got.Data, err)
			}
		}
		_, err = n.client.Call(within(t), "s1", request("c1", "echo", `{"a":1}`))
		wantErr(t, err, schema.CallConflict)
		if _, err := n.client.Append(within(t), "s1", event(schema.TypeNote, `{}`), event("x.own", `{}`)); err != nil {
			t.Error(err)
		}
		if got, err := n.client.Get(within(t), "s1"); err != nil || got.Outcome != "completed" {
			t.Errorf("the session is %+v, %v", got, err)
		}
	}
	check(n)
	n.stop()
	check(p.node([]executor.Tool{echo, held.tool("held", false)}))
	l := p.read("s1")
	if l.State.Ended == nil || l.State.Ended.Reason != "all done" || len(l.State.Calls) != 2 {
		t.Errorf("the session ended as %+v with %d calls", l.State.Ended, len(l.State.Calls))
	}
}

func TestAnUnknownSessionIsNotFoundAndNotMade(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	for subject, body := range map[string]string{
		"steno.v1.call.s1":        `{"call_id":"c1","name":"echo"}`,
		"steno.v1.session.append": `{"session":"s1","events":[{"type":"note","data":{}}]}`,
		"steno.v1.session.end":    `{"session":"s1","outcome":"failed"}`,
		"steno.v1.session.get":    `{"session":"s1"}`,
	} {
		m, err := ask(t, n.conn, subject, body)
		wantErr(t, err, schema.NotFound)
		if got := m.Header.Get("Nats-Service-Error-Code"); got != "404" {
			t.Errorf("%s: the error code is %q", subject, got)
		}
	}
	if names, err := os.ReadDir(filepath.Join(p.dir, "sessions")); err != nil || len(names) != 0 {
		t.Errorf("something was made: %v, %v", names, err)
	}
	// A claim without a seal, of somebody who died, is no session either.
	dir := filepath.Join(p.dir, "sessions", "s1")
	claim := schema.Claim{Session: "s1", Epoch: 1, Holder: schema.Holder{ID: "01J00000000000000000000000"}}
	header, err := claim.Append(nil)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "000001.jsonl"), header, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.client.Call(within(t), "s1", request("c1", "echo", `{}`))
	wantErr(t, err, schema.NotFound)
	_, err = n.client.Get(within(t), "s1")
	wantErr(t, err, schema.NotFound)
	if a, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1"}); err != nil || !a.Created {
		t.Errorf("open says %+v, %v", a, err)
	}
	n.call("s1", "c1", "echo", `{}`)
}

// Both wait for the same session to open; one of them may make it.
func TestACallBesideAnOpenSeesTheSessionOrNot(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	for i := range 20 {
		id := fmt.Sprint("s", i)
		called := make(chan error, 1)
		go func() {
			_, err := n.client.Call(within(t), id, request("c1", "echo", `{}`))
			called <- err
		}()
		n.open(id)
		if err := wait(t, "the call", called); err != nil && schema.KindOf(err) != schema.NotFound {
			t.Error(err)
		}
		n.call(id, "c2", "echo", `{}`)
	}
}

func TestHostileSubjectsReachNothing(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	n.open("s1")
	for _, id := range []string{"_s", "-s", "ü", "s1%2e", "s/1", "..", `s"1`, "s\x7f", strings.Repeat("s", 129), "$JS"} {
		if id == ".." {
			continue // no subject
		}
		for _, subject := range []string{"steno.v1.call." + id, "steno.v1.to." + n.holder + ".call." + id} {
			m, err := ask(t, n.conn, subject, `{"call_id":"c1","name":"echo"}`)
			if schema.KindOf(err) != schema.InvalidArgs || m.Header.Get("Nats-Service-Error-Code") != "400" {
				t.Errorf("%q: %v", subject, err)
			}
		}
	}
	// The subject and the body must speak of one session.
	_, err := ask(t, n.conn, "steno.v1.to."+n.holder+".append.s1", `{"session":"s2","events":[{"type":"note","data":{}}]}`)
	wantErr(t, err, schema.InvalidArgs)
	_, err = ask(t, n.conn, "steno.v1.to."+n.holder+".end.s1", `{"session":"s2","outcome":"failed"}`)
	wantErr(t, err, schema.InvalidArgs)
	if names, err := os.ReadDir(filepath.Join(p.dir, "sessions")); err != nil || len(names) != 1 {
		t.Errorf("something was made: %v, %v", names, err)
	}
}

// How a session ended says nothing of its phase, and the other way round.
func TestS16TheOutcomeIsNotThePhase(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(nil)
	for _, outcome := range []string{"completed", "failed", "partial", "cancelled"} {
		for _, phase := range []string{"", executor.PhaseEditing, executor.PhaseVerifying} {
			session := outcome + phase
			if _, err := n.client.Open(within(t), executor.OpenRequest{Session: session, Phase: phase}); err != nil {
				t.Fatal(err)
			}
			if _, err := n.client.End(within(t), executor.EndRequest{Session: session, Outcome: outcome, Reason: "r"}); err != nil {
				t.Fatal(err)
			}
			if st := p.read(session).State; st.Phase != phase || st.Ended == nil || st.Ended.Outcome != outcome {
				t.Errorf("%s has phase %q and ended %+v", session, st.Phase, st.Ended)
			}
		}
	}
	for _, outcome := range []string{"", "verifying", "Completed"} {
		n.open("s1")
		if _, err := n.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: outcome}); schema.KindOf(err) != schema.InvalidArgs {
			t.Errorf("an end as %q gives %v", outcome, err)
		}
	}
}
