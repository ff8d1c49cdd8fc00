package executor

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// Bounds of discovery. A round asks every service of the server who it is, and
// those that are no executors what they host.
const (
	roundEvery = 5 * time.Second        // more or less, so that executors do not ask together
	roundPause = 500 * time.Millisecond // between rounds that calls of unknown tools ask for
	roundFirst = time.Second            // how long the first answer of a round may take
	roundQuiet = 500 * time.Millisecond // and each further one, where nobody owes one
	roundLong  = 2 * time.Second        // all of them
	maxMissed  = 3                      // rounds without an answer of a worker that the server knows
	maxAsked   = 512                    // services that are heard in a round
	maxSilent  = 16                     // workers that are asked once more in a round
	maxInfo    = 256 << 10              // bytes of what one says of itself
	maxOffers  = 4096                   // tools that are looked at in a round
	maxHosted  = 256                    // tools of workers, and of one
	maxRefused = 256                    // definitions that cannot be used, and are named
)

// A workerID is a process that hosts tools: the name of its service, and the id
// of this instance of it.
type workerID struct{ service, id string }

// An offer is a tool that a worker hosts.
type offer struct {
	worker workerID
	tool   string
}

// hosted is a tool that workers host. The definition is that of the worker that
// was seen first. While there are workers with another one nobody can say which
// of them would get a call, so none gets it.
type hosted struct {
	tool    Tool
	sum     [32]byte
	vouched bool
	since   time.Time
	workers map[workerID]int // those that have this definition: rounds in which they did not answer
	others  map[workerID]int // those that have another one
	gone    chan struct{}    // closed when there are no workers any more
}

// workers are the tools that are hosted elsewhere.
type workers struct {
	x      *Executor
	cfg    *Workers
	secret []byte // of the store

	every, grace time.Duration // set by New and by tests only

	asking sync.Mutex // held during a round
	ended  time.Time  // the last one; guarded by asking

	mu      sync.Mutex // guards the rest
	tools   map[string]*hosted
	refused map[string]string // why a worker's tool is not used, by the worker and the tool
	rounds  uint64            // that have ended

	late chan struct{} // a slot for each answer that is still waited for
}

func newWorkers(x *Executor, cfg *Workers) (*workers, error) {
	if cfg == nil || cfg.Accept == AcceptNone {
		return nil, nil
	}
	own := *cfg
	if err := own.check(); err != nil {
		return nil, err
	}
	secret, err := x.cfg.Store.Secret()
	return &workers{x: x, cfg: &own, secret: secret, every: roundEvery, grace: workerGrace, tools: map[string]*hosted{}, refused: map[string]string{},
		late: make(chan struct{}, maxLateWaits)}, err
}

// begin looks once, before the doors open, and then again and again.
func (w *workers) begin(ctx context.Context) {
	if w == nil {
		return
	}
	w.asking.Lock()
	w.round(ctx)
	w.asking.Unlock()
	if !w.x.begin(nil) {
		return
	}
	go func() {
		defer w.x.work.Done()
		w.watch(w.x.stopping)
	}()
}

// end takes the tools of workers out of the registry, which another executor may
// go on with. Nothing runs any more.
func (w *workers) end() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.tools {
		w.x.cfg.Tools.Remove(name)
	}
	clear(w.tools)
}

// watch looks for workers until the executor stops.
func (w *workers) watch(ctx context.Context) {
	for {
		select {
		case <-time.After(w.every*3/4 + rand.N(w.every/2)):
		case <-ctx.Done():
			return
		}
		w.asking.Lock()
		w.round(ctx)
		w.asking.Unlock()
	}
}

// find looks for the workers of a tool that is not known. Calls that come
// together share a round, and the next one comes after a pause.
func (w *workers) find(ctx context.Context, name string) {
	if w == nil || !schema.ValidToolName(name) {
		return
	}
	known := func() bool {
		_, err := w.x.cfg.Tools.lookup(name)
		return err == nil
	}
	if known() || w.x.cfg.Tools.announced(name) {
		return
	}
	w.mu.Lock()
	before := w.rounds
	w.mu.Unlock()
	w.asking.Lock()
	defer w.asking.Unlock()
	w.mu.Lock()
	shared := w.rounds > before+1 // one that began after this call
	w.mu.Unlock()
	if known() || shared {
		return
	}
	select {
	case <-time.After(time.Until(w.ended.Add(roundPause))):
		w.round(ctx)
	case <-ctx.Done():
	}
}

// round looks who hosts what. The caller holds asking.
func (w *workers) round(ctx context.Context) {
	defer func() {
		w.ended = time.Now()
		w.mu.Lock()
		w.rounds++
		w.mu.Unlock()
	}()
	if !w.x.cfg.Conn.IsConnected() {
		return // nobody can answer, which says nothing of anybody
	}
	heard, offers, err := w.ask(ctx)
	if err != nil {
		return
	}
	for _, id := range w.silent(heard) {
		// One that is gone has no subscription, and the server says so.
		o, there := w.askOne(ctx, id)
		if ctx.Err() != nil {
			return
		}
		offers = append(offers, o...)
		heard[id] = there
	}
	w.forget(heard, offers)
	for _, o := range offers {
		w.take(o)
	}
}

// ask asks all services who they are, and those that may host tools what. heard
// has true for those that have said what they host.
func (w *workers) ask(ctx context.Context) (heard map[workerID]bool, offers []sighting, err error) {
	in, err := w.x.answers.newInbox(maxAsked)
	if err != nil {
		return nil, nil, err
	}
	defer in.close()
	conn := w.x.cfg.Conn
	if err := conn.PublishRequest("$SRV.PING", in.subject, nil); err != nil {
		return nil, nil, err
	}
	heard = map[workerID]bool{}
	end := time.Now().Add(roundLong)
	owed := 0 // answers to what was asked of one
	for patience := roundFirst; time.Now().Before(end); {
		m, err := in.next(ctx, patience)
		if errors.Is(err, nats.ErrNoResponders) && len(heard) > 0 {
			continue // one that was there a moment ago
		}
		if err != nil {
			return heard, offers, ctx.Err() // nil where nobody serves, or nobody has more to say
		}
		id, info := readInfo(m.Data)
		_, known := heard[id]
		switch {
		case !id.sound() || id.service == serviceName || len(heard) >= maxAsked && !known:
		case info.Type != micro.PingResponseType:
			if len(offers) < maxOffers && !heard[id] {
				offers = append(offers, w.read(id, info)...)
			}
			if known && !heard[id] {
				owed--
			}
			heard[id] = true
		case !known:
			heard[id] = false
			if err := conn.PublishRequest(id.subject(), in.subject, nil); err != nil {
				return nil, nil, err
			}
			owed++
		}
		if patience = roundQuiet; owed > 0 {
			patience = roundFirst
		}
	}
	return heard, offers, nil
}

// askOne asks one that is known what it hosts. there is false if it is gone.
func (w *workers) askOne(ctx context.Context, id workerID) (offers []sighting, there bool) {
	in, err := w.x.answers.newInbox(maxAnswers)
	if err != nil {
		return nil, true
	}
	defer in.close()
	if w.x.cfg.Conn.PublishRequest(id.subject(), in.subject, nil) != nil {
		return nil, true
	}
	m, err := in.next(ctx, roundQuiet)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, false
	}
	if err != nil {
		return nil, true
	}
	if is, info := readInfo(m.Data); is == id {
		offers = w.read(id, info)
	}
	return offers, true
}

// readInfo reads who a service is, and what it says of itself; no info if that is
// too much.
func readInfo(text []byte) (workerID, *micro.Info) {
	var who struct {
		Name string `json:"name"`
		ID   string `json:"id"`
	}
	text = bytes.TrimSpace(text)
	if json.Unmarshal(text, &who) != nil {
		return workerID{}, nil
	}
	id := workerID{who.Name, who.ID}
	if len(text) > maxInfo {
		return id, &micro.Info{}
	}
	info := new(micro.Info)
	if json.Unmarshal(text, info) != nil {
		return workerID{}, nil
	}
	return id, info
}

func (id workerID) subject() string { return "$SRV.INFO." + id.service + "." + id.id }

// sound reports whether it may stand in a subject, and among what people read.
func (id workerID) sound() bool {
	return schema.ValidSession(id.service) && schema.ValidSession(id.id)
}

func (id workerID) String() string { return id.service + " " + id.id }

// silent are the workers that are known and were not heard.
func (w *workers) silent(heard map[workerID]bool) (list []workerID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.tools {
		for _, of := range []map[workerID]int{h.workers, h.others} {
			for id := range of {
				if !heard[id] && !slices.Contains(list, id) && len(list) < maxSilent {
					list = append(list, id)
				}
			}
		}
	}
	return list
}

// forget takes out the workers that do not host a tool any more: those that have
// said so, those that are gone, and those that have been silent for too long. A
// tool without any is gone.
func (w *workers) forget(heard map[workerID]bool, offers []sighting) {
	still := map[offer][32]byte{}
	said := map[workerID]bool{}
	keys := map[string]bool{}
	for _, o := range offers {
		still[o.offer] = o.sum
		said[o.worker] = true
		keys[o.key()] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, h := range w.tools {
		for ours, of := range map[bool]map[workerID]int{true: h.workers, false: h.others} {
			for id, missed := range of {
				sum, hosts := still[offer{id, name}]
				there, asked := heard[id]
				switch {
				case hosts && (sum == h.sum) == ours:
					of[id] = 0
				case said[id], asked && !there, missed+1 >= maxMissed:
					delete(of, id)
				default:
					of[id] = missed + 1
				}
			}
		}
		if len(h.workers) > 0 {
			continue
		}
		delete(w.tools, name)
		w.x.cfg.Tools.Remove(name)
		close(h.gone)
		w.x.log.Warn("a tool has no workers any more", "tool", name)
	}
	maps.DeleteFunc(w.refused, func(key, _ string) bool { return !keys[key] })
}
