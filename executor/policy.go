package executor

import (
	"bytes"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// A Policy says which calls may run. It does not change any more, and may be
// asked from many goroutines. A nil Policy lets every valid call run but those
// of tools of tier 4 and above, which nothing ever grants.
type Policy struct {
	mode    string
	rules   []rule
	edits   bool // the phase verifying admits tools that edit
	allow   bool // there are rules that allow, so what none of them fits is denied
	hash    string
	text    []byte        // the document
	deny    bool          // nobody is asked: what would be is denied
	expires time.Duration // how long a person has to answer; 0 is for ever
	repeat  *RepeatGuard  // filled; nil if the document says nothing

	byTool sync.Map // the rules that fit a tool's name, as []*rule, by the name
}

// Modes of a policy: what becomes of a call that no rule is about.
const (
	modeAuto     = "auto"      // it runs
	modeAsk      = "ask"       // a person is asked, unless its tool is read-only and of tier 0
	modeReadOnly = "read_only" // it runs if its tool is read-only; of others no rule lets one run
)

// neverTier is the lowest tier that is never granted.
const neverTier = 4

// ParsePolicy reads a policy document, which is YAML of this form:
//
//	version: 1
//	mode: auto             # auto, ask or read_only
//	unattended: wait       # or deny: what would be asked is denied
//	expires: 15m           # how long a person has to answer; for ever if it is left out
//	repeat: {warn: 3, refuse: 5} # see [RepeatGuard]; 0 is never
//	verifying_edits: false # true: the phase verifying admits tools that edit
//	rules:
//	  - {name: no-push, do: deny, tool: bash, argument: {matches: 'git +push'}}
//	  - {name: builds, do: allow, tool: bash, argument: {pointer: /argv, matches: 'go (build|test|vet) \./\.\.\.'}}
//	  - {name: looks, do: allow, tool: '*', tier: 0}
//	  - {name: locked, do: deny, path: '**/*.lock', write: true}
//
// A rule fits a call if all that it names fits. tool is a pattern as in package
// path. tier is the highest of an allow, the lowest of a deny and of an ask.
// path is a pattern of a path from the workspace, links resolved, in which **
// stands for any number of folders, and write says whether the tool writes
// there: it must fit one of the paths that the tool declares, for an allow all.
// argument is an RE2 expression about what stands at a JSON pointer, or about
// all arguments without one: it must find something in one of the texts there,
// and for an allow it must match each of them from end to end. Texts are
// strings, numbers, true, false and null, and each list with spaces between
// what it holds.
//
// A deny wins over an ask, an ask over an allow, in whatever order they stand;
// where there is an allow, a call that no rule fits is denied.
//
// Kind invalid_config says what is wrong and in which line: also a key that is
// not known, and anchors and aliases, which are not read.
func ParsePolicy(text []byte) (*Policy, error) {
	var doc struct {
		Version    int        `json:"version"`
		Mode       string     `json:"mode"`
		Edits      bool       `json:"verifying_edits"`
		Rules      []ruleText `json:"rules"`
		Expires    span       `json:"expires"`
		Unattended string     `json:"unattended"`
		Repeat     *struct {
			Warn   *int `json:"warn"`
			Refuse *int `json:"refuse"`
		} `json:"repeat"`
	}
	if err := readYAML(text, &doc); err != nil {
		return nil, err
	}
	switch {
	case doc.Version != 1:
		return nil, schema.Errorf(schema.InvalidConfig, "version must be 1")
	case doc.Mode != modeAuto && doc.Mode != modeAsk && doc.Mode != modeReadOnly:
		return nil, schema.Errorf(schema.InvalidConfig, "mode must be auto, ask or read_only")
	case doc.Unattended != "" && doc.Unattended != "wait" && doc.Unattended != "deny":
		return nil, schema.Errorf(schema.InvalidConfig, "unattended must be wait or deny")
	case doc.Expires < 0:
		return nil, schema.Errorf(schema.InvalidConfig, "expires must be above 0")
	}
	p := &Policy{mode: doc.Mode, edits: doc.Edits, hash: journal.PolicyHash(text), text: bytes.Clone(text), deny: doc.Unattended == "deny", expires: time.Duration(doc.Expires)}
	if is := doc.Repeat; is != nil {
		g, err := RepeatGuard{orNever(is.Warn), orNever(is.Refuse)}.filled()
		if err != nil {
			return nil, err
		}
		p.repeat = &g
	}
	names := map[string]bool{}
	for i, t := range doc.Rules {
		r, err := t.compile()
		if err == nil && names[r.name] {
			err = schema.Errorf(schema.InvalidConfig, "another rule has this name")
		}
		if err != nil {
			e := schema.AsError(err)
			e.Message = "rule " + ordinal(i, t.Name) + ": " + e.Message
			return nil, e
		}
		names[r.name] = true
		p.rules = append(p.rules, r)
		p.allow = p.allow || r.do == doAllow
	}
	return p, nil
}

// Hash is the SHA-256 of the document, in hex, as sha256sum prints it. Every
// decision that the policy had a part in is recorded with it.
func (p *Policy) Hash() string {
	if p == nil {
		return ""
	}
	return p.hash
}

// A question is what a policy is asked about a call whose arguments are valid.
type question struct {
	tool  *Tool
	args  jsontext.Value
	paths []touched

	grants []replay.Grant
	now    time.Time // for grants that end
}

// A decision says whether a call may run, and what said so.
type decision struct {
	allow    bool
	gate, by string // as they are recorded; no gate: nothing was decided
	rule     string
	policy   string         // its hash
	reason   string         // for people
	ask      bool           // a person may be asked; it is a denial where nobody can be
	approval string         // the question that it answers
	grant    jsontext.Value // what a person has granted beside it
	actor    Actor          // who has decided, of a person
	kind     schema.Kind
}

// ruleUnattended is recorded where a person would have to be asked.
const ruleUnattended = "unattended"

// ruleNoMatch is recorded where no rule fits and there are some that allow.
const ruleNoMatch = "no_match"

// never is the word about a tool of tier 4 or above.
func (p *Policy) never() decision {
	d := decision{gate: "tier", by: "policy", policy: p.Hash(), kind: schema.TierDenied, reason: "tools of tier 4 and above are never granted"}
	if p == nil {
		d.by = "auto"
	}
	return d
}

// unwritten is the word about a tool that may change something, where nothing
// may.
func (p *Policy) unwritten() decision {
	return decision{gate: "mode", by: "policy", policy: p.hash, kind: schema.WritePolicyDenied,
		reason: "the policy's mode is read_only, and the tool may change something"}
}

// decide is the policy's word. It depends on the question and on nothing else.
func (p *Policy) decide(q question) decision {
	if q.tool.Tier >= neverTier {
		return p.never()
	}
	if p == nil {
		return decision{allow: true, gate: "mode", by: "auto"}
	}
	d := decision{gate: "mode", by: "policy", policy: p.hash}
	if p.mode == modeReadOnly && !q.tool.ReadOnly {
		return p.unwritten()
	}
	var first [3]*rule // that fit, by what they do
	for _, r := range p.about(q.tool.Name) {
		if first[r.do] == nil && r.fits(&q) {
			first[r.do] = r
		}
	}
	d.decideBy(p, &q, first[doDeny], first[doAsk], first[doAllow])
	if d.ask {
		if g := q.granted(); g != nil {
			return decision{allow: true, gate: "approval", by: "grant", policy: p.hash, reason: "granted at " + strconv.FormatUint(g.Seq, 10)}
		}
	}
	return d
}

// decideBy decides by the first rules that fit, and by the mode.
func (d *decision) decideBy(p *Policy, q *question, deny, ask, allow *rule) {
	switch {
	case deny != nil:
		d.gate, d.rule, d.kind, d.reason = "policy", deny.name, schema.PermissionDenied, "a rule of the policy denies the call"
	case ask != nil:
		d.unattended("rule " + ask.name + " of the policy asks a person")
	case allow != nil:
		d.allow, d.gate, d.rule = true, "policy", allow.name
	case p.allow:
		d.gate, d.rule, d.kind, d.reason = "policy", ruleNoMatch, schema.PermissionDenied, "no rule of the policy allows the call"
	case p.mode == modeAsk && !(q.tool.ReadOnly && q.tool.Tier == 0):
		d.unattended("the policy's mode asks a person")
	default:
		d.allow = true
	}
}

func (d *decision) unattended(reason string) {
	d.ask, d.gate, d.rule, d.kind, d.reason = true, "approval", ruleUnattended, schema.ApprovalDenied, reason
}

// about gives the rules that fit a tool's name. Only names of tools that there
// are get here, so they are kept.
func (p *Policy) about(tool string) []*rule {
	if list, ok := p.byTool.Load(tool); ok {
		return list.([]*rule)
	}
	var list []*rule
	for i := range p.rules {
		if p.rules[i].named(tool) {
			list = append(list, &p.rules[i])
		}
	}
	p.byTool.Store(tool, list)
	return list
}

// refusal is what a call is told that was denied.
func (d *decision) refusal(tool string) error {
	e := schema.Errorf(d.kind, "%s", d.reason).With("tool", tool)
	if d.rule != "" {
		e.With("rule", d.rule)
	}
	if d.policy != "" {
		e.With("policy_hash", d.policy)
	}
	if d.rule == ruleUnattended {
		e.Message += ", and nobody is asked here"
		e.With("next", "ask whoever sets the policy")
	}
	if d.kind == schema.Unavailable {
		e.With("next", "call the tool again in a while, under a new call id")
	}
	return e
}

// entry is the permission_decision of a call.
func (d *decision) entry(desk *desk, req *Request) journal.Entry {
	word := "deny"
	if d.allow {
		word = "allow"
	}
	o := desk.object()
	o.Grow(len(req.CallID)+384).Text("call_id", req.CallID).Text("decision", word).Text("gate", d.gate).Text("by", d.by).Text("args_sha256", req.sum)
	for _, f := range [...]struct{ key, value string }{{"rule", d.rule}, {"policy_hash", d.policy}, {"approval_id", d.approval}, {"reason", d.reason}} {
		if f.value != "" {
			o.Text(f.key, f.value)
		}
	}
	if d.grant != nil {
		o.Raw("grant", d.grant)
	}
	d.actor.record(&o)
	return journal.Entry{Type: schema.TypeDecision, Data: desk.done(&o)}
}

// ordinal names a rule: by its place, and its name if it has one.
func ordinal(i int, name string) string {
	if name == "" {
		return strconv.Itoa(i + 1)
	}
	return strconv.Itoa(i+1) + " (" + shorten(name, maxShown) + ")"
}
