package executor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor/redact"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// BenchmarkSteps are the parts of a call that need the processor alone, each
// with what it allocates: the request as a client writes it, as the door reads
// it, a look for secrets in it and in its result, a policy's word, the whole gate
// with that and the validation, the four lines, the state that they move, and the
// head of the answer.
func BenchmarkSteps(b *testing.B) {
	args := `{"text":"` + strings.Repeat("a", 200-len(`{"text":""}`)) + `"}`
	tools, err := NewRegistry(Tool{Name: "trivial", Description: "answers", Input: jsontext.Value(`{"type":"object"}`),
		Run: func(context.Context, *Invocation) (Result, error) { return Result{}, nil }})
	if err != nil {
		b.Fatal(err)
	}
	tool, err := tools.lookup("trivial")
	if err != nil {
		b.Fatal(err)
	}
	req := &Request{CallID: "c00000000", Name: "trivial", Args: jsontext.Value(args)}
	payload, err := req.encode()
	if err != nil {
		b.Fatal(err)
	}
	req, err = parseRequest(payload)
	if err != nil {
		b.Fatal(err)
	}
	x := &Executor{}
	x.cfg.Holder.ID = journal.NewID().String()
	out := verdict{result: Result{OK: true, Output: strings.Repeat("r", 1<<10)}, duration: time.Millisecond}
	allowed := (*Policy)(nil).decide(question{tool: &tool.tool, args: req.Args})
	data := func(before, after *desk) [4]journal.Entry {
		e := [4]journal.Entry{req.entry(before), allowed.entry(before, req), {Type: schema.TypeToolStarted}, out.record(after, req, 1)}
		o := before.object()
		e[2].Data = before.done(o.Text("call_id", req.CallID).Uint("attempt", 1).Text("executor", x.cfg.Holder.ID))
		return e
	}

	b.Run("client", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := req.encode(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("door", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := parseRequest(payload); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("redact", func(b *testing.B) {
		b.ReportAllocs()
		if x.redact, err = redact.New([]byte("a secret"), redact.Rules{}); err != nil {
			b.Fatal(err)
		}
		v := verdict{result: Result{OK: true, Output: strings.Repeat("row 17: value=4711 status=ok\n", 36)}}
		for b.Loop() {
			if err := req.hide(x.redact); err != nil || req.hid != nil {
				b.Fatal(err)
			}
			if x.inspect(&v); len(v.marks) > 0 {
				b.Fatal(v.marks)
			}
		}
	})
	p, err := ParsePolicy([]byte("version: 1\nmode: auto\nrules:\n" +
		"  - {name: a, do: deny, tool: bash}\n  - {name: b, do: deny, argument: {pointer: /text, matches: 'git +push'}}\n" +
		"  - {name: c, do: ask, tool: 'deploy_*'}\n  - {name: d, do: allow, tool: '*', tier: 1}\n"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("policy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if d := p.decide(question{tool: &tool.tool, args: req.Args}); !d.allow {
				b.Fatal(d)
			}
		}
	})
	b.Run("gate", func(b *testing.B) {
		b.ReportAllocs()
		posture := postureOf(p.mode, p.hash)
		var started schema.Object
		j, err := journal.Open(b.Context(), journaltest.NewMemory(), "s1", journal.Options{Holder: x.cfg.Holder, Create: true,
			NewState: func() journal.State { return replay.New() }, Started: started.Text("phase", PhaseEditing).Raw("posture", posture.Bytes()).Bytes()})
		if err != nil {
			b.Fatal(err)
		}
		defer j.Close()
		x.cfg.Tools, x.cfg.Policy, x.cfg.Repeat = tools, p, RepeatGuard{Warn: 3, Refuse: 5}
		s := &session{id: "s1", x: x, journal: j}
		for b.Loop() {
			policy, err := s.policy()
			if err == nil {
				_, err = s.gate(req, policy, false)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("lines", func(b *testing.B) {
		b.ReportAllocs()
		e := schema.Event{Session: "s1", Epoch: 1, Time: time.Now().UTC()}
		var lines []byte
		for b.Loop() {
			before, after := desks.Get().(*desk), desks.Get().(*desk)
			lines = lines[:0]
			for _, in := range data(before, after) {
				e.Seq, e.Dur, e.ID, e.Prev, e.Type, e.Data = e.Seq+1, e.Seq, journal.NewID(), e.Sum, in.Type, in.Data
				lines = e.Append(lines)
			}
			before.back()
			after.back()
		}
		b.SetBytes(int64(len(lines)))
	})
	b.Run("state", func(b *testing.B) {
		b.ReportAllocs()
		st := replay.New()
		var events [4]schema.Event
		var fields [4]schema.Fields
		for i, in := range data(new(desk), new(desk)) {
			events[i] = schema.Event{Session: "s1", Epoch: 1, Type: in.Type, Data: in.Data}
		}
		for n := uint64(0); b.Loop(); n++ {
			for i := range events { // the next call
				e := &events[i]
				e.Seq = 4*n + uint64(i) + 1
				id := e.Data[len(`{"call_id":"`):][:len(req.CallID)]
				for at, v := len(id)-1, n; at > 0; at, v = at-1, v/10 {
					id[at] = '0' + byte(v%10)
				}
			}
			for _, part := range [][]schema.Event{events[:3], events[3:]} {
				for i := range part {
					part[i].Read(&fields[i])
				}
				if err := st.Check(part); err != nil {
					b.Fatal(err)
				}
				for i := range part {
					st.Apply(&part[i])
				}
			}
		}
	})
	b.Run("answer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if h := x.headers("s1", schema.Head{Epoch: 1, Seq: 1}, "c1"); len(h) != 4 {
				b.Fatal(h)
			}
		}
	})
}
