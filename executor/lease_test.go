package executor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

func TestAHolderLetsGoWhenItIsAskedAndNobodyIsAtWork(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	held := newCounter(true)
	a := p.node([]executor.Tool{echo, held.tool("held", false)})
	a.open("s1")
	a.open("s2")
	release := func(session, reason string) (executor.ReleaseAnswer, error) {
		t.Helper()
		return a.client.Release(within(t), a.holder, executor.ReleaseRequest{Session: session, Reason: reason})
	}
	done := make(chan executor.Answer, 1)
	go func() { done <- a.call("s1", "c1", "held", `{}`) }()
	wait(t, "the tool", held.begun)
	for reason, kind := range map[string]schema.Kind{"now": schema.Backpressure, strings.Repeat("x", 1025): schema.InvalidArgs} {
		_, err := release("s1", reason)
		wantErr(t, err, kind)
		if kind == schema.Backpressure && strings.Contains(err.Error(), "2") { // one call is one, whoever else counts as using the session
			t.Error(err)
		}
	}
	_, err := ask(t, a.conn, "steno.v1.to."+a.holder+".release.s1", "{\"session\":\"s1\",\"reason\":\"\xff\"}")
	wantErr(t, err, schema.InvalidArgs)
	p.wantLease("s1", lease.Active)
	close(held.hold)
	wait(t, "the answer", done)

	answer, err := release("s1", "it moves")
	if err != nil || !answer.OK || answer.Session != "s1" {
		t.Fatalf("%+v, %v", answer, err)
	}
	p.wantLease("s1", lease.Available)
	p.wantLease("s2", lease.Active) // whoever else it holds stays
	l := p.read("s1")
	last := l.Events[len(l.Events)-1]
	if last.Type != schema.TypeWriterReleased || field[string](t, last.Data, "reason") != "it moves" || last.Head().String() != answer.Head {
		t.Errorf("the log ends in %s %s, the answer has head %s", last.Type, last.Data, answer.Head)
	}
	_, err = release("s1", "")
	wantErr(t, err, schema.SessionWriterLost)
	_, err = release("nobody", "")
	wantErr(t, err, schema.SessionWriterLost)
	_, err = release("no session", "")
	wantErr(t, err, schema.InvalidArgs)

	// Whoever is asked next takes it in good order, the same process too.
	a.call("s1", "c2", "echo", `{}`)
	if how := p.read("s1").State.Epochs[1].How; how != schema.HowResumed {
		t.Errorf("the next holder came by it as %s", how)
	}

	// A holder that is gone cannot be asked.
	eventually(t, "word that nobody is there", func() bool {
		ctx, cancel := context.WithTimeout(within(t), 300*time.Millisecond)
		defer cancel()
		_, err := a.client.Release(ctx, lease.Self("gone").ID, executor.ReleaseRequest{Session: "s1"})
		if k := schema.KindOf(err); k != schema.Unavailable && k != schema.Timeout { // a slow machine says nothing in time
			t.Fatalf("a release by nobody: %v", err)
		}
		return errors.Is(err, schema.Unavailable)
	})
	_, err = a.client.Release(within(t), "a.b", executor.ReleaseRequest{Session: "s1"})
	wantErr(t, err, schema.InvalidArgs)
}

// Calls and releases at once: each call has its result, whoever holds the
// session then.
func TestReleasesBetweenCallsLoseNothing(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	a := p.node([]executor.Tool{echo})
	a.open("s1")
	stop := make(chan struct{})
	var releases sync.WaitGroup
	var let atomic.Int32
	releases.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, err := a.client.Release(within(t), a.holder, executor.ReleaseRequest{Session: "s1"})
			switch schema.KindOf(err) {
			case "":
				let.Add(1)
			case schema.Backpressure, schema.SessionWriterLost:
			default:
				t.Errorf("a release got %v", err)
			}
		}
	})
	var calls sync.WaitGroup
	for w := range 2 {
		calls.Go(func() {
			for n := range 50 {
				before := let.Load()
				a.call("s1", fmt.Sprintf("c%d.%d", w, n), "echo", `{"text":"x"}`)
				if n%10 == 9 { // the call has taken the session, so it can be let go of again
					eventually(t, "a release", func() bool { return let.Load() > before })
				}
			}
		})
	}
	calls.Wait()
	close(stop)
	releases.Wait()
	l := p.read("s1")
	if n := len(l.State.Calls); n != 100 || len(l.Findings) > 0 {
		t.Errorf("%d calls, findings %v", n, l.Findings)
	}
	for _, c := range l.State.Calls {
		if c.State != "ok" {
			t.Errorf("call %s is %s", c.ID, c.State)
		}
	}
	if n := let.Load(); n < 5 || int(n)+1 < l.Epochs {
		t.Errorf("%d releases, %d epochs", n, l.Epochs)
	}
}

// A call for the session of a holder that does not beat is not sent there to
// wait: who asks is told whose it is and what to do.
func TestAHolderThatDoesNotBeatIsNotWaitedFor(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{Listen: true})
	a := p.child(child{Effects: filepath.Join(t.TempDir(), "effects")})
	open(t, p.client(), "s1")
	b := p.node([]executor.Tool{echo})
	a.Stop()
	journaltest.Silence(t, p.store(), "s1")
	// What reaches the one that is stopped waits there, and is repeated.
	said := func(subject, body string) (m *nats.Msg) {
		t.Helper()
		eventually(t, "an answer of the one that is not stopped", func() (ok bool) {
			var err error
			m, err = b.conn.Request(subject, []byte(body), 300*time.Millisecond)
			return err == nil
		})
		return m
	}
	for subject, body := range map[string]string{
		"steno.v1.call.s1":        `{"call_id":"c1","name":"echo"}`,
		"steno.v1.session.append": `{"session":"s1","events":[{"type":"note","data":{}}]}`,
	} {
		err := schema.ParseEnvelope(said(subject, body).Data)
		if e := schema.AsError(err); !errors.Is(err, schema.SessionWriterAmbiguous) || e.Details["holder"] != a.holder || e.Details["next"] == nil {
			t.Errorf("%s: got %v, %v", subject, err, e.Details)
		}
	}
	m := said("steno.v1.lease.get", `{"session":"s1"}`)
	var got executor.LeaseAnswer
	err := json.Unmarshal(m.Data, &got)
	if l := got.Lease; err != nil || l.State != lease.Ambiguous || l.Holder == nil || l.Holder.ID != a.holder || l.BeatAge == nil || *l.BeatAge < lease.Window.Milliseconds() || l.Next == "" {
		t.Errorf("the lease is %s, %v", m.Data, err)
	}
	journaltest.Release(t, journaltest.Force(t, p.store(), "s1"))
	if m := said("steno.v1.call.s1", `{"call_id":"c2","name":"echo"}`); m.Header.Get("Steno-Error-Kind") != "" || m.Header.Get("Steno-Executor") != b.holder {
		t.Errorf("after the force: %s, %v", m.Data, m.Header)
	}
}

// However many sessions an executor has, it beats once.
func TestAnExecutorHasOneBeat(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	a := p.node([]executor.Tool{echo})
	for n := range 30 {
		a.open(fmt.Sprint("s", n))
	}
	holders := filepath.Join(p.dir, "holders")
	list, err := os.ReadDir(holders)
	if err != nil || len(list) != 1 || list[0].Name() != a.holder {
		t.Errorf("the holders are %v, %v", list, err)
	}
	if list, err = os.ReadDir(filepath.Join(holders, a.holder)); err != nil || len(list) != 1 {
		t.Errorf("the holder has %v, %v", list, err)
	}
	for n := range 30 {
		p.wantLease(fmt.Sprint("s", n), lease.Active)
	}
	m, err := ask(t, a.conn, "steno.v1.lease.list", `{"after":"s1","limit":3}`)
	var got executor.LeasesAnswer
	if err == nil {
		err = json.Unmarshal(m.Data, &got)
	}
	if err != nil || len(got.Leases) != 3 || !got.More || got.Leases[0].Session != "s10" || got.Leases[0].State != lease.Active {
		t.Errorf("the list is %+v, %v", got, err)
	}
	a.stop()
	if list, err := os.ReadDir(holders); err != nil || len(list) != 0 {
		t.Errorf("after the drain the holders are %v, %v", list, err)
	}
}
