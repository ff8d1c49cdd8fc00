package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/schema"
)

const asking = "version: 1\nmode: ask\n"

// asked makes a call that must wait, and gives what is asked about it and where
// its result comes.
func (n *node) asked(session, id, tool, args string) (executor.ApprovalInfo, <-chan executor.Answer) {
	n.t.Helper()
	result := make(chan executor.Answer, 1)
	go func() {
		a, err := n.client.Call(within(n.t), session, request(id, tool, args))
		if err != nil {
			n.t.Errorf("call %s: %v", id, err)
		}
		result <- a
	}()
	return n.question(session, id), result
}

func (n *node) question(session, id string) executor.ApprovalInfo {
	n.t.Helper()
	return questionOf(n.t, n.client, session, id)
}

func questionOf(t *testing.T, client *executor.Client, session, id string) (found executor.ApprovalInfo) {
	t.Helper()
	eventually(t, "the question about "+id, func() bool {
		list, err := client.Approvals(within(t), executor.ApprovalsRequest{Session: session})
		if err != nil && schema.KindOf(err) != schema.NotFound {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list.Approvals, func(a executor.ApprovalInfo) bool { return a.CallID == id })
		if i >= 0 {
			found = list.Approvals[i]
		}
		return i >= 0
	})
	return found
}

func (n *node) answer(q executor.ApprovalInfo, decision string) (executor.AnswerAnswer, error) {
	return n.client.Answer(within(n.t), executor.AnswerRequest{Session: q.Session, CallID: q.CallID, ApprovalID: q.ApprovalID,
		Decision: decision, Reason: "a test", ArgsSHA256: q.ArgsSHA256, Redacted: q.Redacted, Actor: executor.Actor{ID: "ann@example.org"}})
}

func (n *node) mustAnswer(q executor.ApprovalInfo, decision string) executor.AnswerAnswer {
	n.t.Helper()
	a, err := n.answer(q, decision)
	if err != nil {
		n.t.Fatalf("%s %s: %v", decision, q.CallID, err)
	}
	return a
}

func TestACallWaitsForAPerson(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	look := echo
	look.Name, look.ReadOnly = "look", true
	n := p.node([]executor.Tool{count.tool("act", false), look}, withPolicy(t, asking), func(c *executor.Config) { c.MaxCalls, c.SessionCalls = 1, 1 })
	n.open("s1")
	q, result := n.asked("s1", "c1", "act", `{"to":"all"}`)
	if string(q.Args) != `{"to":"all"}` || q.ArgsSHA256 != sumOf(t, `{"to":"all"}`) || q.Tool != "act" || q.Expires != "" || q.Asked.IsZero() || q.Reason == "" {
		t.Errorf("asked is %+v", q)
	}
	// It holds no slot, of the session or the process, and the session can be let go of.
	eventually(t, "room for another call", func() bool {
		a, err := n.client.Call(within(t), "s1", request("c2", "look", `{}`))
		return err == nil && kindOfResult(t, a.Data) == ""
	})
	eventually(t, "the session has no user", func() bool { return executor.Idle(n.Executor, "s1") })
	if _, err := n.client.Release(within(t), n.holder, executor.ReleaseRequest{Session: "s1"}); err != nil {
		t.Errorf("it cannot be released: %v", err)
	}
	if _, err := n.client.End(within(t), executor.EndRequest{Session: "s1", Outcome: "completed"}); schema.KindOf(err) != schema.Backpressure {
		t.Errorf("the end of the session: %v", err)
	}
	if count.of("c1") != 0 {
		t.Fatal("it has run")
	}
	a := n.mustAnswer(q, "allow")
	if !a.First || a.Decision != "allow" {
		t.Errorf("the answer is %+v", a)
	}
	r := wait(t, "the result", result)
	p.wantRecorded("s1", r)
	wantKindOfResult(t, r.Data, "")
	if again := n.mustAnswer(q, "allow"); again.First || again.Seq != a.Seq {
		t.Errorf("again it is %+v, first %+v", again, a)
	}
	_, err := n.answer(q, "deny")
	wantErr(t, err, schema.CallConflict)
	var d []byte
	for _, e := range p.read("s1").Events {
		if e.Seq == a.Seq {
			d = e.Data
		}
	}
	if want := `{"call_id":"c1","decision":"allow","gate":"approval","by":"human","args_sha256":"` + q.ArgsSHA256 + `","policy_hash":"` + policy(t, asking).Hash() +
		`","approval_id":"` + q.ApprovalID + `","reason":"a test","actor":{"id":"ann@example.org","via":"request"}}`; string(d) != want {
		t.Errorf("recorded is\n%s, want\n%s", d, want)
	}
	if steps := stepsOf(p.steps("s1", 0), "c1"); !slices.Equal(steps, []string{"tool_call", "approval_requested", "permission_decision", "tool_started 1", "tool_result 1"}) {
		t.Errorf("recorded is %q", steps)
	}

	q, result = n.asked("s1", "c3", "act", `{}`)
	n.mustAnswer(q, "deny")
	r = wait(t, "the result", result)
	wantKindOfResult(t, r.Data, schema.ApprovalDenied)
	p.wantRecorded("s1", r)
	_, err = n.answer(q, "allow")
	wantErr(t, err, schema.ApprovalDenied)
	if steps := stepsOf(p.steps("s1", 0), "c3"); count.of("c3") != 0 || !slices.Equal(steps, []string{"tool_call", "approval_requested", "permission_decision", "tool_result 0 approval_denied"}) {
		t.Errorf("recorded is %q", steps)
	}
}

// stepsOf are those of one call, without its id.
func stepsOf(steps []string, id string) (list []string) {
	for _, s := range steps {
		var typ, call, rest string
		if n, _ := fmt.Sscan(s, &typ, &call); n == 2 && call == id {
			if rest = s[len(typ)+1+len(call):]; rest != "" {
				typ += rest
			}
			list = append(list, typ)
		}
	}
	return list
}

func TestAnApprovalOutlivesARestart(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false)}
	first := p.node(tools, withPolicy(t, asking))
	first.open("s1")
	q, result := first.asked("s1", "c1", "act", `{}`)
	p.leave("s2", journaltest.Call("alone", "act", `{}`))
	alone, aloneToo := first.asked("s2", "alone", "act", `{}`) // settled into a question
	began := time.Now()
	first.stop() // which waits for nobody
	if took := time.Since(began); took > journaltest.Deadline/2 {
		t.Errorf("the drain took %s", took)
	}
	second := p.node(tools, withPolicy(t, asking))
	if again := second.question("s1", "c1"); again.ApprovalID != q.ApprovalID {
		t.Errorf("asked again is %+v, first %+v", again, q)
	}
	second.mustAnswer(q, "allow")
	wantKindOfResult(t, wait(t, "the result", result).Data, "")
	second.mustAnswer(alone, "allow")
	wantKindOfResult(t, wait(t, "the result of the other", aloneToo).Data, "")
	if count.of("c1") != 1 || count.of("alone") != 1 {
		t.Errorf("they have run %d and %d times", count.of("c1"), count.of("alone"))
	}
}

func TestAnAnswerForAnotherCall(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking))
	n.open("s1")
	one, first := n.asked("s1", "c1", "act", `{}`)
	two, second := n.asked("s1", "c2", "act", `{}`)
	wrong := one
	wrong.ApprovalID = two.ApprovalID
	_, err := n.answer(wrong, "allow")
	wantErr(t, err, schema.NotFound)
	if schema.AsError(err).Details["waits_for"] != one.ApprovalID {
		t.Errorf("the error does not name the call's own question: %v", schema.AsError(err).Details)
	}
	wrong = one
	wrong.ArgsSHA256 = sumOf(t, `{"more":1}`)
	_, err = n.answer(wrong, "allow")
	wantErr(t, err, schema.CallConflict)
	wrong = one
	wrong.CallID = "c9"
	_, err = n.answer(wrong, "allow")
	wantErr(t, err, schema.NotFound)
	if steps := p.steps("s1", 0); len(steps) != 4 || count.of("c1")+count.of("c2") != 0 {
		t.Errorf("recorded is %q", steps)
	}
	for _, q := range []executor.ApprovalInfo{one, two} {
		n.mustAnswer(q, "deny")
	}
	wait(t, "the first", first)
	wait(t, "the second", second)
}

// Of answers that come at once one is recorded; whoever said the same is told
// that it counts, the others are told what does.
func TestTwoAnswersAtOnce(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking))
	n.open("s1")
	for round := range 8 {
		id := fmt.Sprint("c", round)
		q, result := n.asked("s1", id, "act", `{}`)
		var all sync.WaitGroup
		var mu sync.Mutex
		firsts, word := 0, ""
		kinds := map[string]schema.Kind{}
		for i := range 8 {
			all.Go(func() {
				decision := []string{"allow", "deny"}[i%2]
				a, err := n.answer(q, decision)
				mu.Lock()
				defer mu.Unlock()
				if a.First {
					firsts, word = firsts+1, decision
				}
				kinds[decision] = schema.KindOf(err)
			})
		}
		all.Wait()
		r := wait(t, "the result", result)
		c := p.read("s1").State.Call(id)
		if firsts != 1 || len(c.Decisions) != 1 || c.Decisions[0].Decision != word || kinds[word] != "" {
			t.Errorf("%d were first, last %s; told was %v, decided is %+v", firsts, word, kinds, c.Decisions)
		}
		if word == "allow" && (kinds["deny"] != schema.CallConflict || count.of(id) != 1) ||
			word == "deny" && (kinds["allow"] != schema.ApprovalDenied || count.of(id) != 0 || kindOfResult(t, r.Data) != schema.ApprovalDenied) {
			t.Errorf("%s came first; told was %v, and it ran %d times", word, kinds, count.of(id))
		}
	}
}

func TestAnAnswerAfterExpiry(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false)}
	n := p.node(tools, withPolicy(t, asking+"expires: 1ms\n"))
	n.open("s1")
	a := n.call("s1", "c1", "act", `{}`)
	wantKindOfResult(t, a.Data, schema.ApprovalExpired)
	d, _ := p.last("s1", schema.TypeDecision)
	if field[string](t, d, "rule") != "expired" || field[string](t, d, "by") != "policy" || field[string](t, d, "decision") != "deny" {
		t.Errorf("decided is %s", d)
	}
	q := executor.ApprovalInfo{Session: "s1", CallID: "c1", ApprovalID: field[string](t, d, "approval_id")}
	_, err := n.answer(q, "allow")
	wantErr(t, err, schema.ApprovalExpired)

	// Also where nobody had the session when the time came.
	var ask schema.Object
	p.leave("s2", journaltest.Call("c1", "act", `{}`), journal.Entry{Type: schema.TypeApprovalRequested,
		Data: ask.Text("call_id", "c1").Text("approval_id", "a1").Text("reason", "a test").Text("expires_at", "2020-01-01T00:00:00.000000Z").Bytes()})
	_, err = n.answer(executor.ApprovalInfo{Session: "s2", CallID: "c1", ApprovalID: "a1"}, "allow")
	wantErr(t, err, schema.ApprovalExpired)
	wantKindOfResult(t, p.result("s2", "c1"), schema.ApprovalExpired)
	if count.of("c1") != 0 {
		t.Error("it has run")
	}
}

// The policy in force when the answer comes is asked again: its deny wins.
func TestADenyWinsOverAPersonsAllow(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false)}
	first := p.node(tools, withPolicy(t, asking))
	first.open("s1")
	q, result := first.asked("s1", "c1", "act", `{"n":2}`)
	first.stop()
	second := p.node(tools, withPolicy(t, noTwos))
	second.mustAnswer(q, "allow")
	wantKindOfResult(t, wait(t, "the result", result).Data, schema.PermissionDenied)
	if count.of("c1") != 0 {
		t.Error("it has run")
	}
}

func TestAPolicyMayDenyWhatWouldBeAsked(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo}, withPolicy(t, asking+"unattended: deny\n"))
	n.open("s1")
	wantKindOfResult(t, n.call("s1", "c1", "echo", `{}`).Data, schema.ApprovalDenied)
	if d, _ := p.last("s1", schema.TypeDecision); field[string](t, d, "rule") != "unattended" {
		t.Errorf("decided is %s", d)
	}
}

// A delivery of the queue is handed back while its call waits, however often, and
// acknowledged when it has its result.
func TestADeliveryThatWaitsIsNotParked(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	count := newCounter(false)
	n := p.idle([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking), func(c *executor.Config) { c.Queue = true })
	executor.SetRetryFirst(n.Executor, time.Millisecond)
	if err := n.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	n.open("s1")
	if err := n.client.Enqueue(within(t), "s1", request("c1", "act", `{}`)); err != nil {
		t.Fatal(err)
	}
	q := n.question("s1", "c1")
	conn := p.nats.Connect()
	eventually(t, "many deliveries", func() bool { return delivered(t, conn) > 14 })
	if inStream(t, conn, executor.StreamQueue) != 1 || inStream(t, conn, executor.StreamDead) != 0 {
		t.Error("it does not wait in the queue")
	}
	n.mustAnswer(q, "allow")
	eventually(t, "the acknowledgement", func() bool { return inStream(t, conn, executor.StreamQueue) == 0 })
	if count.of("c1") != 1 || inStream(t, conn, executor.StreamDead) != 0 {
		t.Errorf("it has run %d times", count.of("c1"))
	}
}

// Through an executor that does not hold the session a call waits as well.
func TestCallsWaitThroughAnotherExecutor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false)}
	holder := p.node(tools, withPolicy(t, asking))
	holder.open("s1")
	p.node(tools, withPolicy(t, asking))
	var results []<-chan executor.Answer
	var questions []executor.ApprovalInfo
	for i := range 12 { // each goes to one of them
		q, r := holder.asked("s1", fmt.Sprint("c", i), "act", `{}`)
		questions, results = append(questions, q), append(results, r)
	}
	for _, q := range questions {
		holder.mustAnswer(q, "allow")
	}
	for i, r := range results {
		p.wantRecorded("s1", wait(t, "a result", r))
		if id := fmt.Sprint("c", i); count.of(id) != 1 {
			t.Errorf("%s has run %d times", id, count.of(id))
		}
	}
}

// delivered is how often the queue has handed something out.
func delivered(t *testing.T, conn *nats.Conn) uint64 {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.Consumer(within(t), executor.StreamQueue, "STENO_EXECUTORS")
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo().Delivered.Consumer
}

// Who waits for a call hears of its result, and whoever cancels it needs no
// answer of a person.
func TestACallThatWaitsCanBeWaitedForAndCancelled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking))
	n.open("s1")
	for id, end := range map[string]func(executor.ApprovalInfo){
		"c1": func(q executor.ApprovalInfo) { n.mustAnswer(q, "deny") },
		"c2": func(q executor.ApprovalInfo) {
			if _, err := n.client.Cancel(within(t), executor.CancelRequest{Session: "s1", CallID: q.CallID, By: "ann"}); err != nil {
				t.Errorf("cancel: %v", err)
			}
			if _, err := n.answer(q, "allow"); schema.KindOf(err) != schema.NotFound {
				t.Errorf("an answer to what was cancelled: %v", err)
			}
		},
	} {
		q, result := n.asked("s1", id, "act", `{}`)
		waited := make(chan executor.Answer, 1)
		go func() {
			a, err := n.client.Wait(within(t), "s1", id)
			if err != nil {
				t.Errorf("wait %s: %v", id, err)
			}
			waited <- a
		}()
		end(q)
		a, b := wait(t, "the result", result), wait(t, "what was waited for", waited)
		if string(a.Data) != string(b.Data) || kindOfResult(t, a.Data) != map[string]schema.Kind{"c1": schema.ApprovalDenied, "c2": schema.Cancelled}[id] || count.of(id) != 0 {
			t.Errorf("%s is answered\n%s\n%s", id, a.Data, b.Data)
		}
	}
}

// A call that waits can also be cancelled: then nobody is asked any more.
func TestACallThatWaitsForAPersonCanBeCancelled(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking))
	n.open("s1")
	q, result := n.asked("s1", "c1", "act", `{}`)
	a := n.cancel("s1", "c1", "not any more")
	wantKindOfResult(t, a.Data, schema.Cancelled)
	if other := wait(t, "the answer", result); string(other.Data) != string(a.Data) {
		t.Errorf("who asked for it gets %s", other.Data)
	}
	if _, err := n.answer(q, "allow"); err == nil {
		t.Error("it can still be allowed")
	}
	if c := p.read("s1").State.Call("c1"); c.Waiting != nil || len(c.Attempts) != 0 || count.of("c1") != 0 {
		t.Errorf("the call is %+v and ran %d times", c, count.of("c1"))
	}
}

// What a person has allowed moves the phase as any call does that edits.
func TestAnAllowedCallMovesThePhase(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	edit := echo
	edit.Name, edit.Tier, edit.Phases = "change", 1, []string{executor.PhaseEditing}
	n := p.node([]executor.Tool{edit}, withPolicy(t, asking))
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Phase: executor.PhaseInvestigating, TaskKind: executor.TaskEdit}); err != nil {
		t.Fatal(err)
	}
	q, result := n.asked("s1", "c1", "change", `{}`)
	if got := p.read("s1").State.Phase; got != executor.PhaseInvestigating {
		t.Errorf("while it waits the phase is %s", got)
	}
	n.mustAnswer(q, "allow")
	wantKindOfResult(t, wait(t, "the result", result).Data, "")
	if got := p.read("s1").State.Phase; got != executor.PhaseEditing {
		t.Errorf("the phase is %s", got)
	}
}

// Whoever may only ask has no executor say something to the server or to others
// for it.
func TestNoAnswerIsARequest(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{echo})
	conn := p.nats.Connect()
	heard, err := conn.SubscribeSync("$X.>")
	if err != nil {
		t.Fatal(err)
	}
	also, err := conn.SubscribeSync("steno.v1.event.>")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // an answer to a later one comes behind what is told of an earlier one
		for _, to := range []string{"$X.stream", "steno.v1.event.s1.note"} {
			if err := conn.PublishRequest("steno.v1.session.list", to, []byte(`{}`)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.client.List(within(t), executor.ListRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if pending(t, heard)+pending(t, also) != 0 {
		t.Error("an answer was sent where a request may go")
	}
}

// However much waits, and however long its arguments are, all of it can be
// listed: page by page, of long arguments the beginning.
func TestManyLongQuestionsAreListedInPages(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node([]executor.Tool{newCounter(false).tool("act", false)}, withPolicy(t, asking))
	const each, long = 40, 200 << 10
	args := `{"text":"` + strings.Repeat("é", long/2) + `"}`
	var asked sync.WaitGroup
	ctx, stop := context.WithCancel(within(t))
	defer asked.Wait()
	defer stop()
	for _, session := range []string{"s1", "s2"} {
		n.open(session)
		for i := range each {
			asked.Go(func() { n.client.Call(ctx, session, request(fmt.Sprintf("c%d", i), "act", args)) })
		}
	}
	list := func(session string) (found []string, pages int) {
		for req := (executor.ApprovalsRequest{Session: session}); ; pages++ {
			page, err := n.client.Approvals(within(t), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range page.Approvals {
				found = append(found, q.Session+q.CallID)
				var text string
				if q.ArgsBytes != len(args) || json.Unmarshal(q.Args, &text) != nil || !strings.HasPrefix(text, `{"text":"éé`) || len(text) > 16<<10 {
					t.Fatalf("of %d bytes are shown %.40s", q.ArgsBytes, q.Args)
				}
			}
			if !page.More {
				return found, pages + 1
			}
			req.After = page.After
		}
	}
	eventually(t, "all wait", func() bool { found, _ := list(""); return len(found) == 2*each })
	for session, want := range map[string]int{"": 2 * each, "s1": each, "s2": each} {
		found, pages := list(session)
		slices.Sort(found)
		if len(slices.Compact(found)) != want || pages < 2 {
			t.Errorf("of session %q %d are listed on %d pages", session, len(found), pages)
		}
	}
	for _, after := range []string{"s1/x", "s2/1"} {
		if _, err := n.client.Approvals(within(t), executor.ApprovalsRequest{Session: "s1", After: after}); !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("behind %s: %v", after, err)
		}
	}
}

// What a grant would be for stands in the question, unless it is a secret.
func TestT25AQuestionNamesTheProgram(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(append(executor.Builtin(), echo), withPolicy(t, asking))
	n.open("s1")
	for id, c := range map[string]struct{ tool, args, want string }{
		"argv":   {"bash", `{"argv":["go","test"]}`, "go"},
		"line":   {"bash", `{"command":"make all"}`, "make"},
		"shell":  {"bash", `{"command":"make all; rm -r x"}`, ""},
		"secret": {"bash", `{"argv":["ghp_0123456789abcdefghijklmnopqrstuvwxyz","x"]}`, ""},
		"other":  {"echo", `{}`, ""},
	} {
		q, result := n.asked("s1", id, c.tool, c.args)
		if q.Program != c.want {
			t.Errorf("%s: the question is about the program %q, want %q", id, q.Program, c.want)
		}
		n.mustAnswer(q, "deny")
		wait(t, "the result", result)
	}
}
