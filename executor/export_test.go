package executor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/replay"
	"steno/schema"
)

// SetAckWait makes deliveries of the queue come again sooner. It must be called
// before Start.
func SetAckWait(x *Executor, d time.Duration) { x.ackWait = d }

// ParseRequest is the door for calls: the event that a request becomes, and the
// sum of its arguments.
func ParseRequest(payload []byte) (typ string, data []byte, sum string, err error) {
	r, err := parseRequest(payload)
	if err != nil {
		return "", nil, "", err
	}
	e := r.entry(new(desk))
	return e.Type, e.Data, r.sum, nil
}

// ReadRequest reads the text of a request in the quick way, where it is plain
// enough, and in the strict way.
func ReadRequest(text []byte) (quick Request, plain bool, slow Request, err error) {
	plain = quick.read(text)
	return quick, plain, slow, strict(text, &slow)
}

// ReadArgs reads arguments that came from Compact in the quick way and in the
// strict way.
func ReadArgs(args []byte) (quick, strict any, bad, strictlyBad []Violation) {
	quick, bad = readSound(args)
	strict, strictlyBad = parseStrict(args)
	return quick, strict, bad, strictlyBad
}

// RecordedRequest reads a recorded call back, and gives the sum of its
// arguments.
func RecordedRequest(data []byte) (sum string, err error) {
	var r Request
	if err := schema.Unmarshal(data, &r); err != nil {
		return "", err
	}
	err = r.check()
	return r.sum, err
}

// Loaded is how many bytes are on their way to the server.
func Loaded(x *Executor) int64 { return x.load.bytes.Load() }

// SetStopWait makes a drain give up on tools sooner.
func SetStopWait(x *Executor, d time.Duration) { x.stopWait = d }

// SetRetryFirst makes deliveries of the queue come again sooner.
func SetRetryFirst(x *Executor, d time.Duration) { x.retryFirst = d }

// SetWorkerGrace makes an executor sooner give up on the answer of workers that are
// gone.
func SetWorkerGrace(x *Executor, d time.Duration) { x.workers.grace = d }

// SetPatience makes a client give up sooner where nobody is there.
func SetPatience(c *Client, d time.Duration) { c.patience = d }

// Decide is what a policy says of a call, in words.
func Decide(p *Policy, t Tool, args string) string {
	d := p.decide(question{tool: &t, args: jsontext.Value(args)})
	word := string(d.kind)
	if d.allow {
		word = "allow"
	}
	return strings.TrimSpace(strings.Join([]string{word, d.gate, d.by, d.rule}, " "))
}

// Granted is Decide at a time, with what was granted before.
func Granted(p *Policy, t Tool, args string, now time.Time, grants ...replay.Grant) string {
	d := p.decide(question{tool: &t, args: jsontext.Value(args), now: now, grants: grants})
	word := string(d.kind)
	if d.allow {
		word = "allow"
	}
	return word + " " + d.by
}

// FitsPath reports whether a pattern of a rule fits a path; an error says that it
// is none.
func FitsPath(pattern, path string) (bool, error) {
	return fitsPath(strings.Split(pattern, "/"), components(path)), checkPattern(pattern)
}

// Fits reports whether a policy has a rule that does this and fits the call.
func Fits(p *Policy, do string, t Tool, args string) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		return r.do == doWords[do] && r.named(t.Name) && r.fits(&question{tool: &t, args: jsontext.Value(args)})
	})
}

// Backwards is the policy with its rules in the other order.
func Backwards(p *Policy) *Policy {
	back := &Policy{mode: p.mode, rules: slices.Clone(p.rules), allow: p.allow, hash: p.hash}
	slices.Reverse(back.rules)
	return back
}

// Disposition says what becomes of a delivery whose call ended in an error of
// this kind, "" for a recorded result.
func Disposition(k schema.Kind) string {
	err := error(nil)
	if k != "" {
		err = schema.Errorf(k, "a test")
	}
	return map[disposed]string{ack: "ack", dead: "dead", again: "again"}[disposition(err)]
}

// Idle reports whether nobody uses a session that is held, or was.
func Idle(x *Executor, session string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sessions[session]
	return s == nil || s.users.Load() == 0
}

// EncodeRequest encodes a request in the quick way, where it is plain, and in
// the general one.
func EncodeRequest(r Request) (quick, general []byte, err, generalErr error) {
	quick, err = r.encode()
	general, generalErr = encode(r)
	return quick, general, err, generalErr
}

// ParseToolsFile reads the text of a tools file that stands in the folder dir.
func ParseToolsFile(text []byte, dir string) (ToolsFile, error) { return parseTools(text, dir) }

// ParseTools reads the text of a tools file that stands in the folder dir.
func ParseTools(text []byte, dir string) ([]Tool, Commands, error) {
	f, err := parseTools(text, dir)
	return f.Tools, f.Commands, err
}

// Load is how many bytes are on their way to the server, and how many of those who
// have more wait.
func Load(x *Executor) (bytes, waiting int64) { return x.load.bytes.Load(), x.load.waiting.Load() }

// Bare is t without walls around its command, as on a machine that has none.
func Bare(t Tool) Tool {
	run := t.Run
	t.Run = func(ctx context.Context, call *Invocation) (Result, error) {
		c := *call
		c.bare = true
		return run(ctx, &c)
	}
	return t
}

// HoldLive keeps what is only ever live from being sent until release is called.
// It must be called before any tool runs.
func HoldLive(x *Executor) (release func()) {
	hold := make(chan struct{})
	x.relay.Do(func() {
		go func() {
			<-hold
			x.sendLive()
		}()
	})
	return sync.OnceFunc(func() { close(hold) })
}

// MaxLive is how much may wait to be sent.
const MaxLive = maxLive

// CutText cuts an output as it is recorded.
func CutText(text string, whole, limit int) (string, int) { return cutText(text, whole, limit) }

// WholeLines cuts at a gap.
func WholeLines(head, tail string) (string, string) { return wholeLines(head, tail) }
