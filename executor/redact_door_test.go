package executor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"

	"steno/executor"
	"steno/executor/redact"
	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

// None of these is a real secret.
const (
	madeKey   = "sk-test-A1b2C3d4A1b2C3d4A1b2C3d4A1b2C3d4"
	madeValue = "c0rrect/horse \"battery\""
)

var operatorRules = redact.Rules{
	Keys:   []string{"badge_number"},
	Values: []redact.Secret{{Name: "DB", Value: madeValue}, {Name: "PIN", Value: "90210443"}},
}

// redacted is a change of a node's settings: its rules.
func (p *place) redacted(more redact.Rules) func(*executor.Config) {
	return func(cfg *executor.Config) {
		secret, err := cfg.Store.Secret()
		if err == nil {
			cfg.Redact, err = redact.New(secret, more)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// nowhere fails the test if one of the secrets is in a file below a folder or
// in one of the texts. Folders of the queue are passed over: calls that wait
// must be able to run.
func nowhere(t *testing.T, secrets []string, dirs []string, texts map[string]string) {
	t.Helper()
	look := func(where, text string) {
		for _, s := range secrets {
			if strings.Contains(text, s) {
				t.Errorf("%q is in %s", s, where)
			}
		}
	}
	files := 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && d.Name() == executor.StreamQueue {
					return fs.SkipDir
				}
				return err
			}
			files++
			b, err := os.ReadFile(path)
			look(path, unpacked(t, path, b))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < len(dirs) {
		t.Fatalf("%d files were looked at", files)
	}
	for where, text := range texts {
		look(where, text)
	}
}

// unpacked is what is in a file that is packed.
func unpacked(t *testing.T, path string, b []byte) string {
	t.Helper()
	if !strings.HasSuffix(path, ".zst") {
		return string(b)
	}
	r, err := zstd.NewReader(bytes.NewReader(b))
	if err == nil {
		defer r.Close()
		b, err = io.ReadAll(r)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if !strings.HasSuffix(path, ".tar.zst") {
		return string(b)
	}
	var all strings.Builder
	for members := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := members.Next()
		if err == io.EOF {
			return all.String()
		}
		if err == nil {
			b, err = io.ReadAll(members)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all.WriteString(unpacked(t, h.Name, b))
	}
}

// exported is the folder of an export of a store.
func exported(t *testing.T, store *journal.Files) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "export")
	if err := store.Export(within(t), dir, journal.ExportOptions{NewState: func() journal.State { return replay.New() }, Each: func(journal.Exported) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRedactionCases(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	for _, c := range journaltest.Cases(t, "redaction") {
		var rules struct {
			Keys, Patterns, Values []string
		}
		var calls []struct {
			CallID string          `json:"call_id"`
			Name   string          `json:"name"`
			Args   json.RawMessage `json:"args"`
			Output string          `json:"output"`
			Error  *struct {
				Kind    schema.Kind    `json:"kind"`
				Message string         `json:"message"`
				Details map[string]any `json:"details"`
			} `json:"error"`
		}
		var never, still []string
		for name, v := range map[string]any{"redact.json": &rules, "calls.json": &calls, "must-not-appear.json": &never, "must-survive.json": &still} {
			if err := json.Unmarshal(c.Read(t, name), v); err != nil {
				t.Fatal(err)
			}
		}
		more := redact.Rules{Keys: rules.Keys}
		for _, m := range rules.Patterns {
			more.Patterns = append(more.Patterns, redact.Pattern{Match: m})
		}
		for i, v := range rules.Values {
			more.Values = append(more.Values, redact.Secret{Name: fmt.Sprint("V", i), Value: v})
		}
		var tools []executor.Tool
		named := map[string]bool{}
		for _, call := range calls {
			if named[call.Name] {
				continue
			}
			named[call.Name] = true
			tools = append(tools, toolOf(call.Name, func(_ context.Context, inv *executor.Invocation) (executor.Result, error) {
				for _, call := range calls {
					if call.CallID != inv.CallID {
						continue
					}
					if want := compact(t, call.Args); string(inv.Args) != want {
						t.Errorf("%s: the tool got %s, want %s", c.Name, inv.Args, want)
					}
					if e := call.Error; e != nil {
						return executor.Result{}, &schema.Error{Kind: e.Kind, Message: e.Message, Details: e.Details}
					}
					return executor.Result{OK: true, Output: call.Output}, nil
				}
				return executor.Result{}, errors.New("no such call")
			}))
		}
		n := p.node(tools, p.redacted(more))
		n.open("b147")
		var answers strings.Builder
		for _, call := range calls {
			a := n.call("b147", call.CallID, call.Name, string(call.Args))
			answers.Write(a.Data)
		}
		n.stop()
		l := p.read("b147")
		for _, id := range []string{"call-1", "call-3"} {
			if l.State.Call(id).Redacted == "" {
				t.Errorf("%s: %s has no mark", c.Name, id)
			}
		}
		nowhere(t, never, []string{p.dir, exported(t, p.store())}, map[string]string{"the log of the process": n.log.String(), "the answers": answers.String()})
		text := recorded(t, l)
		for _, s := range still {
			if !strings.Contains(text, s) {
				t.Errorf("%s: %q is gone", c.Name, s)
			}
		}
	}
}

func compact(t *testing.T, b []byte) string {
	t.Helper()
	out, _, err := schema.Compact(nil, b, 2)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// recorded are the data of a log's events, one a line.
func recorded(t *testing.T, l *journaltest.Log) string {
	t.Helper()
	var b strings.Builder
	for _, e := range l.Events {
		b.Write(e.Data)
		b.WriteByte('\n')
	}
	return b.String()
}

// No secret of calls and results is in the store, in the server's folder, in
// events, answers, dead letters, exports or the log of the process, and every
// tool gets the values themselves.
func TestNoSecretIsAnywhere(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{JetStream: true})
	const inKey, inText = "hun+ter-2", "swordfish9"
	secrets := []string{madeKey, "hun+ter", inText, "90210443", "c0rrect/horse", "MIIBVgIB"}
	pem := "-----BEGIN PRIVATE KEY-----\nMIIBVgIB\n-----END PRIVATE KEY-----\n"
	var mu sync.Mutex
	got := map[string]string{}
	keep := func(inv *executor.Invocation) {
		mu.Lock()
		defer mu.Unlock()
		got[inv.CallID] = string(inv.Args) + string(inv.Context) + inv.Key
	}
	tools := []executor.Tool{
		toolOf("tell", func(_ context.Context, inv *executor.Invocation) (executor.Result, error) {
			keep(inv)
			inv.Progress("with " + madeKey)
			return executor.Result{OK: true, Output: "is " + madeKey + "\nPASSWORD=" + inText + "\n" + pem, Summary: "pin 90210443",
				Content: jsontext.Value(`[{"text":"` + madeKey + `"}]`), Structured: jsontext.Value(`{"password" : "hun+ter","n":1e400}`),
				Artifacts: jsontext.Value(`[{"name":"` + madeKey + `"}]`), Patch: jsontext.Value(`{"token":"hun+ter"}`), FilesRead: []string{"a", "b/" + madeKey}, FilesChanged: []string{madeKey}}, nil
		}),
		toolOf("large", func(_ context.Context, inv *executor.Invocation) (executor.Result, error) {
			// A secret lies over each border: of what is shown, of what is inline, of a blob.
			var b strings.Builder
			for b.Len() < schema.MaxInline+1<<10 {
				b.WriteString(madeKey + " ")
			}
			return executor.Result{OK: true, Output: b.String(), Structured: jsontext.Value(`["` + b.String() + `"]`)}, nil
		}),
		toolOf("refuse", func(_ context.Context, inv *executor.Invocation) (executor.Result, error) {
			return executor.Result{}, schema.Errorf(schema.ToolFailed, "no %s", madeKey).With("url", "https://h/?token="+inText).With("api_key", []string{inKey}).With("n", 1<<60)
		}),
		toolOf("panic", func(context.Context, *executor.Invocation) (executor.Result, error) { panic("with " + madeKey) }),
		toolOf("oops", func(context.Context, *executor.Invocation) (executor.Result, error) {
			return executor.Result{}, errors.New("with " + madeKey)
		}),
		{Name: "strict", Description: "x", Input: jsontext.Value(`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`),
			Run: func(context.Context, *executor.Invocation) (executor.Result, error) {
				return executor.Result{OK: true}, nil
			}},
	}
	n := p.node(tools, p.redacted(operatorRules), func(c *executor.Config) { c.Queue = true })
	events := p.nats.Listen("steno.v1.event.>")
	n.open("s1")
	args := `{"api_key":"` + inKey + `","cmd":"run \u0070assword=` + inText + ` on ` + strings.ReplaceAll(madeValue, `"`, `\"`) + `","pin":90210443}`
	var texts strings.Builder
	req := request("c1", "tell", args)
	req.Context, req.Turn, req.Key = jsontext.Value(`{"token":"`+inKey+`"}`), jsontext.Value(`"`+madeKey+`"`), madeKey
	a, err := n.client.Call(within(t), "s1", req)
	if err != nil {
		t.Fatal(err)
	}
	texts.Write(a.Data)
	if want := compact(t, []byte(args)) + string(req.Context) + req.Key; got["c1"] != want {
		t.Errorf("the tool got %s, want %s", got["c1"], want)
	}
	for i, tool := range []string{"large", "refuse", "panic", "oops", "nobody"} {
		texts.Write(n.call("s1", fmt.Sprint("d", i), tool, `{"x":"`+madeKey+`"}`).Data)
	}
	texts.Write(n.call("s1", "d9", "strict", `{"`+madeKey+`":"x"}`).Data)
	for _, body := range []string{`{"call_id":"` + madeKey + `","name":"tell"}`, `{"call_id":"e1","name":"` + madeKey + `"}`, `{"call_id":"e1","name":"tell","` + madeKey + `":1}`} {
		_, err := ask(t, n.conn, "steno.v1.call.s1", body)
		if !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%s: %v", body, err)
		}
		texts.WriteString(fmt.Sprint(err, schema.AsError(err).Details))
	}
	if _, err := n.client.Phase(within(t), executor.PhaseRequest{Session: "s1", Phase: executor.PhaseEditing, Trigger: jsontext.Value(`{"reason":"PASSWORD=` + inText + ` and ` + madeKey + `"}`)}); err != nil {
		t.Error(err)
	}
	// The same call again is the same, another value is another call.
	if again, err := n.client.Call(within(t), "s1", req); err != nil || string(again.Data) != string(a.Data) {
		t.Errorf("the same again: %s, %v", again.Data, err)
	}
	other := req
	other.Args = jsontext.Value(strings.Replace(args, inKey, "hun+ter-3", 1))
	if _, err := n.client.Call(within(t), "s1", other); !errors.Is(err, schema.CallConflict) {
		t.Errorf("with another value: %v", err)
	}
	js, err := jetstream.New(p.nats.Connect())
	if err != nil {
		t.Fatal(err)
	}
	dead := p.nats.Listen("steno.v1.dead.>")
	for _, body := range []string{`{"call_id":"c1","name":"tell","args":{"api_key":"` + inKey + `"}}`, `no call, PASSWORD=` + inText, `{"call_id":"q1","name":"tell","args":[],"token":"` + inKey + `"}`} {
		if _, err := js.Publish(within(t), "steno.v1.queue.s1", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		m, err := dead.NextMsg(journaltest.Deadline)
		if err != nil {
			t.Fatal(err)
		}
		texts.WriteString(fmt.Sprint(string(m.Data), m.Header))
	}
	eventually(t, "the dead letters are recorded", func() bool { return strings.Count(strings.Join(p.types("s1"), " "), schema.TypeDeadLetter) == 3 })
	n.stop()
	for {
		m, err := events.NextMsg(10 * time.Millisecond)
		if err != nil {
			break
		}
		texts.Write(m.Data)
	}
	nowhere(t, secrets, []string{p.dir, p.nats.Dir(), exported(t, p.store())}, map[string]string{"the log of the process": n.log.String(), "what was sent": texts.String()})
	l := p.read("s1")
	for _, want := range []string{`"structured":{"password":"[redacted]","n":1e400}`, `"files_read":["a","b/[redacted]"]`, `"summary":"pin [redacted]"`, `"key":"[redacted]"`,
		`"context":{"token":"[redacted]"}`, `"cmd":"run password=[redacted] on [redacted]"`, `"pointer":"/files_changed","rule":"pattern:api-key"`, `"n":1152921504606846976`, `"artifacts":[{"name":"[redacted]"}]`, `{"patch":{"token":"[redacted]"}}`} {
		if !strings.Contains(recorded(t, l), want) {
			t.Errorf("there is no %s in\n%s", want, recorded(t, l))
		}
	}
}

// While a call runs, a request with another secret is another call; the same
// one joins.
func TestARequestJoinsItsOwnSecretOnly(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	begun, end := make(chan struct{}), make(chan struct{})
	n := p.node([]executor.Tool{toolOf("hold", func(context.Context, *executor.Invocation) (executor.Result, error) {
		close(begun)
		<-end
		return executor.Result{OK: true}, nil
	})})
	n.open("s1")
	answers := make(chan error, 2)
	call := func(secret string) error {
		_, err := n.client.Call(within(t), "s1", request("c1", "hold", `{"password":"`+secret+`"}`))
		return err
	}
	go func() { answers <- call("one") }()
	wait(t, "the tool runs", begun)
	if err := call("two"); !errors.Is(err, schema.CallConflict) {
		t.Errorf("another secret: %v", err)
	}
	go func() { answers <- call("one") }()
	close(end)
	for range 2 {
		if err := wait(t, "an answer", answers); err != nil {
			t.Error(err)
		}
	}
}

// A call that was recorded before there was a rule is the same call behind it.
func TestARuleThatCameLater(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	count := newCounter(false)
	tools := []executor.Tool{count.tool("act", false)}
	before := p.node(tools)
	before.open("s1")
	first := before.call("s1", "c1", "act", `{"badge_number":"17"}`)
	before.stop()
	after := p.node(tools, p.redacted(operatorRules))
	if a := after.call("s1", "c1", "act", `{"badge_number":"17"}`); string(a.Data) != string(first.Data) {
		t.Errorf("answered with %s", a.Data)
	}
	if _, err := after.client.Call(within(t), "s1", request("c1", "act", `{"badge_number":"18"}`)); !errors.Is(err, schema.CallConflict) {
		t.Errorf("another value: %v", err)
	}
	if n := count.of("c1"); n != 1 {
		t.Errorf("it ran %d times", n)
	}
}

// What a call with a secret has left open is interrupted by whoever takes the
// session, and a request that carries the secret gets that answer.
func TestACallWithASecretDoesNotRunFromTheLog(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	store := p.store()
	begun := make(chan struct{})
	stuck := p.node([]executor.Tool{{Name: "act", Description: "x", Input: jsontext.Value(anyArgs), Repeatable: true,
		Run: func(ctx context.Context, _ *executor.Invocation) (executor.Result, error) {
			close(begun)
			<-ctx.Done()
			return executor.Result{}, ctx.Err()
		}}})
	stuck.open("s1")
	ctx, cancel := context.WithCancel(within(t))
	go stuck.client.Call(ctx, "s1", request("c1", "act", `{"password":"one"}`))
	wait(t, "the tool runs", begun)
	cancel()
	stopped, stop := context.WithCancel(context.Background())
	stop()
	stuck.drain.Do(func() {
		if err := stuck.Drain(stopped); err != nil {
			t.Errorf("drain: %v", err)
		}
	})
	count := newCounter(false)
	n := p.node([]executor.Tool{count.tool("act", true)})
	a := n.call("s1", "c1", "act", `{"password":"one"}`)
	if !strings.Contains(string(a.Data), `"kind":"interrupted"`) || count.of("c1") != 0 {
		t.Errorf("it ran %d times, and the answer is %s", count.of("c1"), a.Data)
	}
	l, err := journaltest.Read(store, "s1", journal.ScanOptions{})
	if err != nil || l.State.Call("c1").State != replay.Interrupted {
		t.Errorf("%v, %v", l.State.Call("c1"), err)
	}
}

// Half a secret is not found, so nothing is cut before it is redacted: neither
// what a killed command has said, nor an output that is too long.
func TestWhatIsCutIsRedactedBefore(t *testing.T) {
	p := newPlace(t, journaltest.NATSOptions{})
	n := p.node(executor.Builtin())
	if _, err := n.client.Open(within(t), executor.OpenRequest{Session: "s1", Workspace: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	script := `for i in $(seq 400); do printf '%s\n' "sk-""` + strings.TrimPrefix(madeKey, "sk-") + `"; done; sleep 60`
	a := n.call("s1", "c1", "bash", string(marshalled(t, map[string]any{"command": script, "timeout_s": 1})))
	if s := string(a.Data); !strings.Contains(s, `"kind":"timeout"`) || strings.Contains(s, "A1b2") || !strings.Contains(s, "bytes left out") {
		t.Errorf("of a killed command: %s", s)
	}
	for _, c := range []struct{ head, tail, wantHead, wantTail string }{
		{"a\nb", "c\nd", "a\n", "d"},
		{"a\n" + strings.Repeat("é", 64<<10), strings.Repeat("é", 64<<10), "a\n" + strings.Repeat("é", 62<<10), strings.Repeat("é", 62<<10)},
		{"short", "ends", "", ""},
	} {
		if h, tl := executor.WholeLines(c.head, c.tail); h != c.wantHead || tl != c.wantTail {
			t.Errorf("%.20q and %.20q: %d and %d bytes, want %d and %d", c.head, c.tail, len(h), len(tl), len(c.wantHead), len(c.wantTail))
		}
	}
}

func marshalled(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
