package executor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"
)

// A contractKind is a way to make tools. A further one needs a tool that does what
// play does, in its own way.
type contractKind struct {
	// tool makes a tool that does this, one of the words of play. closed is to be
	// called when what it has made for a session, or it itself, is closed.
	tool func(t *testing.T, does string, closed func(what string)) executor.Tool
	// lacks are the words that tools of this kind cannot do, and "context",
	// "state", "away" and "close" where that does not reach them.
	lacks []string
	runs  int // 1 if they run commands
	// reached is where they leave what has reached them, in a folder of each session;
	// "" if that is the session's workspace.
	reached string
	died    schema.Kind // of the result of one that died; "" if that is no error
	// host hosts the tools, which the executor then finds; nil if it has them. began
	// says in which folder a session works, where tools are not told.
	host  func(p *place, tools []executor.Tool)
	began func(session, dir string)
}

const (
	contractInput  = `{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"}},"additionalProperties":false}`
	contractOutput = `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
)

// contractFlood is more than a line holds.
var contractFlood = strings.Repeat("0123456789abcde\n", 3<<16)

var contractWords = []string{"echo", "no", "declared", "unexpected", "dies", "slow", "flood", "broken", "told", "plans", "state", "fits", "misfit"}

// play is what the tools of the contract do. In the folder dir they leave the ids
// of the calls that have reached them.
func play(ctx context.Context, does, dir string, c *executor.Invocation) (res executor.Result, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "reached"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return res, err
	}
	_, err = f.WriteString(c.CallID + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return res, err
	}
	res.OK = true
	switch does {
	case "echo":
		res.Output = string(c.Args)
	case "no":
		res.OK, res.Output = false, "no"
	case "declared":
		return res, schema.Errorf(schema.NoMatch, "not there").With("path", "a").Cause(errors.New(secret))
	case "unexpected":
		return executor.Result{Output: secret}, errors.New(secret)
	case "dies":
		panic(secret)
	case "slow":
		<-ctx.Done()
		return res, ctx.Err()
	case "flood":
		res.Output = contractFlood
	case "broken":
		res.Output = "a\xffb"
	case "told":
		text, err := json.Marshal(contractTold{c.Session, c.CallID, c.Key, c.Attempt, c.Epoch, c.Seq, c.Actor.ID, c.Actor.Via, string(c.Context)})
		res.Output = string(text)
		return res, err
	case "plans":
		res.Output = "dry: " + strconv.FormatBool(c.DryRun)
	case "state":
		res.Output = string(c.State())
	case "fits":
		res.Output = `{"n":1}`
		res.Structured = jsontext.Value(res.Output)
	case "misfit":
		res.Output = `{"n":"` + secret + `"}`
		res.Structured = jsontext.Value(res.Output)
	default:
		err = fmt.Errorf("it cannot %s", does)
	}
	return res, err
}

// contractTold is what a tool is told of its call.
type contractTold struct {
	Session, CallID, Key string
	Attempt              int
	Epoch, Seq           uint64
	Actor, Via, Context  string
}

// contractProgram is play as a program of its own, this one.
func contractProgram(does string) error {
	args, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	number := func(name string) (n uint64) {
		if n, err = strconv.ParseUint(os.Getenv(name), 10, 64); err != nil {
			n = 0
		}
		return n
	}
	c := &executor.Invocation{Session: os.Getenv("STENO_SESSION"), CallID: os.Getenv("STENO_CALL_ID"), Key: os.Getenv("STENO_KEY"),
		Attempt: int(number("STENO_ATTEMPT")), Epoch: number("STENO_EPOCH"), Seq: number("STENO_SEQ"), Args: bytes.TrimSpace(args),
		Actor: executor.Actor{ID: os.Getenv("STENO_ACTOR"), Via: os.Getenv("STENO_ACTOR_VIA")}, DryRun: os.Getenv("STENO_DRY_RUN") == "1"}
	ctx := context.Background()
	switch does {
	case "slow": // until it is killed; never, if that fails
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*journaltest.Deadline)
		defer cancel()
	case "dies":
		defer syscall.Kill(os.Getpid(), syscall.SIGKILL)
		does = "echo"
	}
	res, err := play(ctx, does, ".", c)
	if err == nil {
		_, err = os.Stdout.WriteString(res.Output)
	}
	if err == nil && !res.OK {
		err = errors.New("") // the exit code says it
	}
	return err
}

// contractTool is what all tools of the contract have.
func contractTool(does string) executor.Tool {
	t := executor.Tool{Name: does, Description: "Does " + does + ". Nothing else.", Input: jsontext.Value(contractInput), Tier: 2, DryRun: does == "plans"}
	if does == "fits" || does == "misfit" {
		t.Output = jsontext.Value(contractOutput)
	}
	return t
}

func TestT1ContractOfAToolInGo(t *testing.T) {
	testContract(t, contractKind{died: schema.ToolFailed, tool: func(_ *testing.T, does string, closed func(string)) executor.Tool {
		x := contractTool(does)
		x.Run = func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
			return play(ctx, does, c.Workspace.Dir(), c)
		}
		x.Close = func() error { closed(does); return nil }
		return x
	}})
}

func TestT3ContractOfADefinedFunction(t *testing.T) {
	type input struct {
		Text string `json:"text,omitzero"`
		N    int    `json:"n,omitzero"`
	}
	testContract(t, contractKind{died: schema.ToolFailed, tool: func(_ *testing.T, does string, closed func(string)) executor.Tool {
		like := contractTool(does)
		x := executor.Define(does, like.Description, func(ctx context.Context, in input) (executor.Result, error) {
			c := executor.InvocationOf(ctx)
			return play(ctx, does, c.Workspace.Dir(), c)
		})
		x.Output, x.Tier, x.DryRun = like.Output, like.Tier, like.DryRun
		x.Close = func() error { closed(does); return nil }
		return x
	}})
}

func TestT31ContractOfABoundInstance(t *testing.T) {
	testContract(t, contractKind{died: schema.ToolFailed, tool: func(_ *testing.T, does string, closed func(string)) executor.Tool {
		x := contractTool(does)
		x.Bind = func(_ context.Context, s executor.Session) (executor.Instance, error) {
			return executor.Instance{Run: func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
				if c.Session != s.ID {
					return executor.Result{}, errors.New("the instance of another session")
				}
				return play(ctx, does, c.Workspace.Dir(), c)
			}, Close: func() error { closed(does + " of " + s.ID); return nil }}, nil
		}
		return x
	}})
}

func TestT16ContractOfACommandOfAFile(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	if runtime.GOOS == "linux" {
		runs = 1
	}
	testContract(t, contractKind{runs: runs, lacks: []string{"declared", "unexpected", "context", "state", "close"}, tool: func(t *testing.T, does string, _ func(string)) executor.Tool {
		like := contractTool(does)
		text := "version: 1\ntools:\n  - name: " + does + "\n    description: " + like.Description + "\n    tier: 2\n    input: " + contractInput +
			"\n    argv: [" + strconv.Quote(self) + ", contract-tool, " + does + "]\n    dry_run: " + strconv.FormatBool(like.DryRun) + "\n"
		if like.Output != nil {
			text += "    output: " + contractOutput + "\n"
		}
		list, _, err := executor.ParseTools([]byte(text), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return list[0]
	}})
}

func TestT1ContractOfAToolOfAWorker(t *testing.T) {
	var dirs sync.Map
	testContract(t, contractKind{died: schema.ToolFailed, lacks: []string{"state", "away", "close"},
		began: func(session, dir string) { dirs.Store(session, dir) },
		host:  func(p *place, tools []executor.Tool) { p.hosts(tools...) },
		tool: func(_ *testing.T, does string, _ func(string)) executor.Tool {
			x := contractTool(does)
			x.Run = func(ctx context.Context, c *executor.Invocation) (executor.Result, error) {
				dir, _ := dirs.Load(c.Session)
				return play(ctx, does, dir.(string), c)
			}
			return x
		}})
}

// testContract holds the tools of a kind to what every tool is promised and
// promises, at an executor.
func testContract(t *testing.T, kind contractKind) {
	options := journaltest.NATSOptions{}
	if kind.host != nil {
		options.MaxPayload = 2 * len(contractFlood) // an answer is one message
	}
	p := newPlace(t, options)
	var closed notes
	var tools []executor.Tool
	has := func(word string) bool { return !slices.Contains(kind.lacks, word) }
	for _, does := range contractWords {
		if has(does) {
			tools = append(tools, kind.tool(t, does, func(what string) { closed.add("%s", what) }))
		}
	}
	for i, more := range []func(*executor.Tool){
		func(x *executor.Tool) { x.Name, x.Phases = "verifies", []string{executor.PhaseVerifying} },
		func(x *executor.Tool) { x.Name, x.Available = "away", func(executor.Session) bool { return false } },
		func(x *executor.Tool) { x.Name, x.Timeout = "overdue", 100*time.Millisecond },
	} {
		x := kind.tool(t, []string{"echo", "echo", "slow"}[i], func(string) {})
		if more(&x); x.Name != "away" || has("away") {
			tools = append(tools, x)
		}
	}
	registered, workers := tools, (*executor.Workers)(nil)
	if kind.host != nil {
		registered, workers = nil, new(executor.Workers)
		hosted := slices.Clone(tools)
		for i, x := range tools {
			workers.Tools = append(workers.Tools, executor.Vouched{Name: x.Name, Tier: &x.Tier, Phases: x.Phases, DryRun: x.DryRun})
			hosted[i].Phases = nil
		}
		kind.host(p, hosted)
	}
	var registry *executor.Registry
	n := p.node(registered, func(c *executor.Config) {
		registry, c.Workers = c.Tools, workers
		c.Policy = policy(t, "version: 1\nmode: auto\nrules:\n  - {name: never, do: deny, tool: '*', argument: {pointer: /text, matches: forbidden}}\n")
	})
	dirs := map[string]string{}
	begin := func(t *testing.T, session, phase string) {
		t.Helper()
		dirs[session] = t.TempDir()
		for _, x := range tools { // one may have died before, and its server with it
			eventually(t, x.Name+" is there", func() bool { return x.Ready == nil || x.Ready() == nil })
		}
		if kind.began != nil {
			kind.began(session, dirs[session])
		}
		if _, err := n.client.Open(within(t), executor.OpenRequest{Session: session, Workspace: dirs[session], Phase: phase}); err != nil {
			t.Fatal(err)
		}
	}
	reached := func(session string) []string {
		if kind.reached != "" {
			return effects(t, filepath.Join(kind.reached, session, "reached"))
		}
		return effects(t, filepath.Join(dirs[session], "reached"))
	}
	// result makes a call, whose answer is what is recorded.
	result := func(t *testing.T, session string, req executor.Request) jsontext.Value {
		t.Helper()
		a, err := n.client.Call(within(t), session, req)
		if err != nil {
			t.Fatalf("%s: %v", req.Name, err)
		}
		p.wantRecorded(session, a)
		return p.whole(session, a.Data)
	}
	ok := func(data jsontext.Value) bool { return field[bool](t, data, "ok") }
	output := func(data jsontext.Value) string { return field[string](t, data, "output") }

	for name, test := range map[string]func(t *testing.T, s string){
		"specification as registered": func(t *testing.T, s string) {
			begin(t, s, "")
			answer, err := n.client.Tools(within(t), executor.ToolsRequest{Session: s})
			there := len(tools)
			if has("away") {
				there--
			}
			if err != nil || len(answer.Tools) != there {
				t.Fatalf("%d tools, %v", len(answer.Tools), err)
			}
			for _, spec := range answer.Tools {
				if kind.host != nil { // it also says by whom
					var info executor.ToolInfo
					if err := schema.Unmarshal(spec, &info); err != nil || info.Hosted == nil || !info.Hosted.Vouched || len(info.Hosted.Workers) != 1 {
						t.Errorf("told is %s, %v", spec, err)
					}
					info.Hosted = nil
					if spec, err = info.Tool().Spec(""); err != nil {
						t.Error(err)
					}
				}
				name := field[string](t, spec, "name")
				i := slices.IndexFunc(tools, func(x executor.Tool) bool { return x.Name == name })
				if want, err := tools[i].Spec(""); err != nil || !bytes.Equal(want, spec) {
					t.Errorf("told is %s, and it is %s", spec, want)
				}
			}
		},
		"validation says all": func(t *testing.T, s string) {
			begin(t, s, "")
			data := result(t, s, request("c1", "echo", `{"text":1,"n":"x","more":true}`))
			wantKindOfResult(t, data, schema.InvalidArgs)
			var pointers []string
			for _, v := range field[[]executor.Violation](t, field[jsontext.Value](t, field[jsontext.Value](t, data, "error"), "details"), "violations") {
				pointers = append(pointers, v.Pointer)
			}
			if slices.Sort(pointers); !slices.Equal(pointers, []string{"/more", "/n", "/text"}) && !slices.Equal(pointers, []string{"", "/n", "/text"}) {
				t.Errorf("what is wrong is at %q", pointers)
			}
			if got := reached(s); len(got) > 0 {
				t.Errorf("it reached the tool: %q", got)
			}
		},
		"refused calls do not reach the tool": func(t *testing.T, s string) {
			begin(t, s, executor.PhaseEditing)
			for id, c := range map[string]struct {
				req  executor.Request
				want schema.Kind
			}{
				"policy":    {request("policy", "echo", `{"text":"a forbidden one"}`), schema.PermissionDenied},
				"phase":     {request("phase", "verifies", `{}`), schema.PhaseDenied},
				"available": {request("available", "away", `{}`), schema.PhaseDenied},
				"unknown":   {request("unknown", "none", `{}`), schema.UnknownTool},
			} {
				if id == "available" && !has("away") {
					continue
				}
				data := result(t, s, c.req)
				wantKindOfResult(t, data, c.want)
				if field[int](t, data, "attempt") != 0 {
					t.Errorf("%s is recorded as %s", id, data)
				}
			}
			if got := reached(s); len(got) > 0 {
				t.Errorf("they reached the tool: %q", got)
			}
		},
		"a dry run": func(t *testing.T, s string) {
			begin(t, s, "")
			var want []string
			for _, name := range []string{"echo", "plans"} {
				if !has(name) {
					continue
				}
				if name == "plans" {
					want = append(want, name)
				}
				req := request(name, name, `{"n":1}`)
				req.DryRun = true
				if data := result(t, s, req); !ok(data) || (output(data) == "dry: true") != (name == "plans") || output(data) == "" {
					t.Errorf("%s plans %s", name, data)
				}
			}
			if got := reached(s); !slices.Equal(got, want) {
				t.Errorf("reached were %q", got)
			}
		},
		"the deadline": func(t *testing.T, s string) {
			begin(t, s, "")
			wantKindOfResult(t, result(t, s, request("c1", "overdue", `{}`)), schema.Timeout)
		},
		"a cancellation": func(t *testing.T, s string) {
			begin(t, s, "")
			asked := n.background(s, "c1", "slow")
			eventually(t, "the tool runs", func() bool { return len(reached(s)) == 1 })
			a := n.cancel(s, "c1", "enough")
			wantKindOfResult(t, a.Data, schema.Cancelled)
			if other := wait(t, "the answer", asked); field[string](t, a.Data, "by") != "user ada" || !bytes.Equal(other.Data, a.Data) {
				t.Errorf("the canceller gets %s, the caller %s", a.Data, other.Data)
			}
		},
		"what dies": func(t *testing.T, s string) {
			begin(t, s, "")
			data := result(t, s, request("c1", "dies", `{}`))
			if kindOfResult(t, data) != kind.died || ok(data) || strings.Contains(string(data), secret) {
				t.Errorf("its death is told as %s", data)
			}
			if data := result(t, s, request("c2", "echo", `{"n":2}`)); output(data) != `{"n":2}` {
				t.Errorf("afterwards: %s", data)
			}
		},
		"an answer of no": func(t *testing.T, s string) {
			begin(t, s, "")
			data := result(t, s, request("c1", "no", `{}`))
			if wantKindOfResult(t, data, ""); ok(data) || output(data) != "no" {
				t.Errorf("got %s", data)
			}
		},
		"large output": func(t *testing.T, s string) {
			begin(t, s, "")
			if data := result(t, s, request("c1", "flood", `{}`)); !ok(data) || output(data) != contractFlood {
				t.Errorf("%d bytes are recorded of %d", len(output(data)), len(contractFlood))
			}
		},
		"text that is not UTF-8": func(t *testing.T, s string) {
			begin(t, s, "")
			if data := result(t, s, request("c1", "broken", `{}`)); !ok(data) || output(data) != "a\uFFFDb" {
				t.Errorf("recorded is %q", output(data))
			}
		},
		"what it is told": func(t *testing.T, s string) {
			begin(t, s, "")
			req := request("c1", "told", `{}`)
			req.Key, req.Actor, req.Context = "key-7", executor.Actor{ID: "ada"}, jsontext.Value(`{"tenant":7}`)
			var got contractTold
			if err := json.Unmarshal([]byte(output(result(t, s, req))), &got); err != nil {
				t.Fatal(err)
			}
			want := contractTold{Session: s, CallID: "c1", Key: "key-7", Attempt: 1, Actor: "ada", Via: "request"}
			if has("context") {
				want.Context = `{"tenant":7}`
			}
			for _, e := range p.read(s).Events {
				if e.Type == schema.TypeToolStarted {
					want.Epoch, want.Seq = e.Epoch, e.Seq
				}
			}
			if got != want || want.Seq == 0 {
				t.Errorf("it is told %+v, want %+v", got, want)
			}
		},
		"the working state": func(t *testing.T, s string) {
			begin(t, s, "")
			if _, err := n.client.Append(within(t), s, executor.AppendEvent{Type: schema.TypeStateChanged, Data: jsontext.Value(`{"patch":{"at":3}}`)}); err != nil {
				t.Fatal(err)
			}
			if data := result(t, s, request("c1", "state", `{}`)); output(data) != `{"at":3}` {
				t.Errorf("it reads %s", data)
			}
		},
		"an answer as data": func(t *testing.T, s string) {
			begin(t, s, "")
			if data := result(t, s, request("c1", "fits", `{}`)); !ok(data) || string(field[jsontext.Value](t, data, "structured")) != `{"n":1}` {
				t.Errorf("got %s", data)
			}
			data := result(t, s, request("c2", "misfit", `{}`))
			if wantKindOfResult(t, data, schema.ToolFailed); strings.Contains(string(data), secret) || !strings.Contains(string(data), `"/n"`) {
				t.Errorf("what does not fit is told as %s", data)
			}
		},
		"T22 errors that are safe": func(t *testing.T, s string) {
			begin(t, s, "")
			data := result(t, s, request("c1", "declared", `{}`))
			if wantKindOfResult(t, data, schema.NoMatch); field[schema.ErrorBody](t, data, "error").Message != "not there" {
				t.Errorf("got %s", data)
			}
			wantKindOfResult(t, result(t, s, request("c2", "unexpected", `{}`)), schema.ToolFailed)
			if !strings.Contains(n.log.String(), secret) {
				t.Error("the operator is not told the cause")
			}
			for _, e := range p.read(s).Events {
				if strings.Contains(string(e.Data), secret) {
					t.Errorf("the log has the cause: %s", e.Data)
				}
			}
		},
		"one result": func(t *testing.T, s string) {
			begin(t, s, "")
			for _, name := range []string{"echo", "no", "dies"} {
				first := result(t, s, request(name, name, `{"n":1}`))
				for range 2 {
					if again := result(t, s, request(name, name, `{"n":1}`)); !bytes.Equal(again, first) {
						t.Errorf("a repeat gets %s, not %s", again, first)
					}
				}
			}
			if got := reached(s); !slices.Equal(got, []string{"echo", "no", "dies"}) {
				t.Errorf("reached were %q", got)
			}
			one := []string{schema.TypeToolCall, schema.TypeDecision, schema.TypeToolStarted, schema.TypeToolResult}
			p.wantTypes(s, slices.Concat(one, one, one)...)
		},
	} {
		if !has(map[string]string{"the working state": "state", "T22 errors that are safe": "unexpected"}[name]) {
			continue
		}
		t.Run(name, func(t *testing.T) { test(t, strings.ReplaceAll(name, " ", "-")) })
	}

	if told := strings.Count(n.log.String(), "commands are confined"); told != kind.runs {
		t.Errorf("what confines commands is told %d times in\n%s", told, n.log)
	}
	n.stop()
	for range 2 {
		if err := registry.Close(); err != nil {
			t.Error(err)
		}
	}
	all := closed.all()
	if slices.Sort(all); len(slices.Compact(slices.Clone(all))) != len(all) || (len(all) > 0) != has("close") {
		t.Errorf("closed were %q", all)
	}
}
