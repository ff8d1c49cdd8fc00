package executor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// A WorkerInfo is what is told of the workers of a tool.
type WorkerInfo struct {
	Workers []string  `json:"workers"`          // name and id of each
	Others  []string  `json:"others,omitempty"` // that have another definition: while they are there nobody gets a call
	Since   time.Time `json:"since"`            // when the first was seen
	Vouched bool      `json:"vouched"`          // the operator says what the tool may do
}

// A RefusedTool is a tool of a worker that is not called.
type RefusedTool struct {
	Worker string `json:"worker"` // and the tool's name, if it has one
	Why    string `json:"why"`
}

// WorkersAnswer lists the tools that workers host, as one executor sees them.
type WorkersAnswer struct {
	OK      bool             `json:"ok"`
	Tools   []jsontext.Value `json:"tools"` // each a ToolInfo
	Refused []RefusedTool    `json:"refused"`
}

// Workers lists the tools that workers host, after a look for new ones.
func (c *Client) Workers(ctx context.Context) (a WorkersAnswer, err error) {
	return a, c.ask(ctx, workersVerb.name, struct{}{}, &a)
}

var (
	workersVerb          = verb{"workers.list", (*Executor).runWorkers, false, ofLooks}
	workersListEndpoints = []endpoint{{"workers-list", workersVerb.name, `{"type":"object"}`, workersAnswerSchema, workersVerb, false}}
)

const workersAnswerSchema = `{"type":"object","required":["ok","tools","refused"],"properties":{"ok":{"const":true},"tools":{"type":"array","items":{"type":"object"}},` +
	`"refused":{"type":"array","items":{"type":"object","required":["worker","why"],"properties":{"worker":{"type":"string"},"why":{"type":"string"}}}}}}`

// runWorkers looks for workers and lists what they host.
func (x *Executor) runWorkers(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	if _, err := door(payload, &struct{}{}, levelData); err != nil {
		return reply{}, err
	}
	a := WorkersAnswer{OK: true, Tools: []jsontext.Value{}, Refused: []RefusedTool{}}
	if w := x.workers; w != nil {
		w.see(ctx)
		w.mu.Lock()
		names, refused := slices.Sorted(maps.Keys(w.tools)), maps.Clone(w.refused)
		w.mu.Unlock()
		for _, name := range names {
			t, err := x.cfg.Tools.Get(name)
			if err != nil {
				continue // it is being taken out
			}
			spec, err := t.Spec(FormatSteno)
			if err != nil {
				return reply{}, err
			}
			a.Tools = append(a.Tools, spec)
		}
		for _, key := range slices.Sorted(maps.Keys(refused)) {
			a.Refused = append(a.Refused, RefusedTool{key, refused[key]})
		}
	}
	return answer(a, x, "", schema.Head{})
}

// see looks for workers, unless somebody has just looked.
func (w *workers) see(ctx context.Context) {
	w.asking.Lock()
	defer w.asking.Unlock()
	if time.Since(w.ended) > roundPause {
		w.round(ctx)
	}
}

// info is what is told of the workers of a tool.
func (w *workers) info(h *hosted) *WorkerInfo {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &WorkerInfo{Workers: named(h.workers), Others: named(h.others), Since: h.since.UTC().Truncate(time.Second), Vouched: h.vouched}
}

func named(of map[workerID]int) (list []string) {
	for _, id := range slices.SortedFunc(maps.Keys(of), func(a, b workerID) int { return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.id, b.id)) }) {
		list = append(list, id.String())
	}
	return list
}

// Tool is the tool as it was told, for [Tool.Spec]. It cannot be registered.
func (i ToolInfo) Tool() Tool {
	t := Tool{Name: i.Name, Description: i.Description, Tier: i.Tier, Phases: i.Phases, Escalates: i.Escalates, ReadOnly: i.ReadOnly, Repeatable: i.Repeatable,
		Idempotent: i.Idempotent, Destructive: &i.Destructive, OpenWorld: &i.OpenWorld, Timeout: time.Duration(i.TimeoutMS) * time.Millisecond, Input: i.Input, Output: i.Output}
	if i.Hosted != nil {
		t.hosts = func() *WorkerInfo { return i.Hosted }
	}
	if i.Host != nil {
		t.Host = *i.Host
	}
	if i.Away != "" {
		t.Ready = func() error { return schema.Errorf(schema.Unavailable, "%s", i.Away) }
	}
	if i.Confined != "" {
		t.walls = func() string { return i.Confined }
	}
	return t
}
