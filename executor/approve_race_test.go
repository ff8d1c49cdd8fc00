package executor_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// An answer that comes at the moment at which its question expires is the
// decision, or the expiry is: one of them is recorded, whichever came first, and
// whoever made the call, whoever answered and whoever asks later, of another
// process too, is told that one.
func TestT25AnAllowMeetsTheExpiry(t *testing.T) {
	const window, sessions, rounds = 150 * time.Millisecond, 4, 10
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false)}
	n := p.node(tools, withPolicy(t, asking+"expires: "+window.String()+"\n"))
	type answered struct {
		q       executor.ApprovalInfo
		allowed bool
	}
	var mu sync.Mutex
	all := map[string]answered{}
	met := map[bool]int{} // by whether the answer was first

	// round makes a call and answers it so long before it expires, and says
	// whether that was in time.
	round := func(session, id string, before time.Duration) bool {
		results := make(chan executor.Answer, 2)
		for range 2 {
			go func() {
				a, err := n.client.Call(within(t), session, request(id, "act", `{}`))
				if err != nil {
					t.Errorf("call %s %s: %v", session, id, err)
				}
				results <- a
			}()
		}
		q := executor.ApprovalInfo{Session: session, CallID: id}
		eventually(t, "the question", func() bool { // also where it has expired meanwhile
			for _, e := range p.read(session).Events {
				if e.Type == schema.TypeApprovalRequested && field[string](t, e.Data, "call_id") == id {
					q.ApprovalID, q.Expires = field[string](t, e.Data, "approval_id"), field[string](t, e.Data, "expires_at")
				}
			}
			return q.ApprovalID != ""
		})
		at, err := time.Parse(time.RFC3339Nano, q.Expires)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Until(at.Add(-before))) // the moment is what is tried
		var told [2]error
		var answers sync.WaitGroup
		for i := range told {
			answers.Go(func() {
				_, told[i] = n.client.Answer(within(t), executor.AnswerRequest{Session: session, CallID: id, ApprovalID: q.ApprovalID, Decision: "allow"})
			})
		}
		answers.Wait()
		one, two := wait(t, "a result", results), wait(t, "the other result", results)
		decisions := p.read(session).State.Call(id).Decisions
		if len(decisions) != 1 || decisions[0].ApprovalID != q.ApprovalID {
			t.Fatalf("%s %s: decided is %+v", session, id, decisions)
		}
		allowed := decisions[0].Decision == "allow"
		want, result, runs := schema.ApprovalExpired, schema.ApprovalExpired, 0
		if allowed {
			want, result, runs = "", "", 1
		}
		if schema.KindOf(told[0]) != want || schema.KindOf(told[1]) != want || kindOfResult(t, one.Data) != result || string(one.Data) != string(two.Data) || count.of(id) != runs {
			t.Errorf("%s %s: decided is %+v; the answers are told %v and %v, the callers %s and %s; it ran %d times",
				session, id, decisions[0], told[0], told[1], one.Data, two.Data, count.of(id))
		}
		mu.Lock()
		defer mu.Unlock()
		all[session+" "+id] = answered{q, allowed}
		met[allowed]++
		return allowed
	}
	both := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return met[true] > 0 && met[false] > 0
	}
	var racers sync.WaitGroup
	for i := range sessions {
		session := fmt.Sprint("s", i)
		n.open(session)
		racers.Go(func() {
			// Each round is aimed at where the last ones turned.
			before, step := time.Duration(i)*time.Millisecond, 8*time.Millisecond
			for k := 0; (k < rounds || !both()) && k < 20*rounds && !t.Failed(); k++ {
				if round(session, fmt.Sprint(session, "c", k), before) {
					before -= step
				} else {
					before += step
				}
				step = max(step*3/4, 200*time.Microsecond)
				if before > window/2 || before < -window/2 { // a slow machine: anew
					before, step = 0, window/4
				}
			}
		})
	}
	racers.Wait()
	if !both() {
		t.Errorf("tried was one order only: %v", met)
	}
	n.stop()

	n = p.node(tools, withPolicy(t, asking))
	for at, is := range all {
		a, err := n.client.Answer(within(t), executor.AnswerRequest{Session: is.q.Session, CallID: is.q.CallID, ApprovalID: is.q.ApprovalID, Decision: "allow"})
		if want := map[bool]schema.Kind{true: "", false: schema.ApprovalExpired}[is.allowed]; schema.KindOf(err) != want || a.First {
			t.Errorf("%s: another process says %+v, %v", at, a, err)
		}
		if d := p.read(is.q.Session).State.Call(is.q.CallID).Decisions; len(d) != 1 {
			t.Errorf("%s: decided is %+v", at, d)
		}
	}
}

// Where whoever makes a call has the person who answers, they are told at once
// that it waits, and for which answer; nothing of it is lost meanwhile.
func TestT25WhoMakesACallMayAskThePerson(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	attended := func(c *executor.Config) { c.Attended = true }
	n := p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking), attended)
	n.open("s1")
	waits := func(n *node, id string) executor.ApprovalInfo {
		t.Helper()
		_, err := n.client.Call(within(t), "s1", request(id, "act", `{}`))
		bad := wantKind(t, err, schema.Backpressure)
		q := n.question("s1", id)
		if bad.Details["approval_id"] != q.ApprovalID {
			t.Errorf("%s waits for %v, and asked is %+v", id, bad.Details, q)
		}
		return q
	}
	q := waits(n, "c1")
	if again := waits(n, "c1"); again.ApprovalID != q.ApprovalID {
		t.Errorf("asked is %+v, and before %+v", again, q)
	}
	n.mustAnswer(q, "allow")
	wantKindOfResult(t, n.call("s1", "c1", "act", `{}`).Data, "")
	no, later := waits(n, "c2"), waits(n, "c3")
	n.mustAnswer(no, "deny")
	wantKindOfResult(t, n.call("s1", "c2", "act", `{}`).Data, schema.ApprovalDenied)
	n.stop()

	n = p.node([]executor.Tool{count.tool("act", false)}, withPolicy(t, asking), attended)
	if again := waits(n, "c3"); again.ApprovalID != later.ApprovalID {
		t.Errorf("asked is %+v, and before %+v", again, later)
	}
	n.mustAnswer(later, "allow")
	wantKindOfResult(t, n.call("s1", "c3", "act", `{}`).Data, "")
	if count.of("c1") != 1 || count.of("c2") != 0 || count.of("c3") != 1 {
		t.Errorf("they ran %d, %d and %d times", count.of("c1"), count.of("c2"), count.of("c3"))
	}
}
