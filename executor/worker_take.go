package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// A sighting is an offer with what it says of the tool, or why that cannot be used.
type sighting struct {
	offer
	sum [32]byte // of the definition
	def *definition
	bad error
}

func (o sighting) key() string { return o.worker.String() + " " + o.tool }

// read gives the tools among a service's endpoints.
func (w *workers) read(id workerID, info *micro.Info) (list []sighting) {
	if info.Name == "" {
		return []sighting{{offer: offer{worker: id}, bad: fmt.Errorf("what it says of itself is longer than %d bytes", maxInfo)}}
	}
	begins := w.x.toolSubject("")
	for _, e := range info.Endpoints {
		name, is := strings.CutPrefix(e.Subject, begins)
		if !is || strings.Contains(name, ".") || len(list) == maxHosted {
			continue
		}
		o := sighting{offer: offer{worker: id, tool: name}}
		switch {
		case !schema.ValidToolName(name):
			o.tool, o.bad = shorten(name, 64), errors.New("a tool's name is 1 to 64 of A-Z, a-z, 0-9, _ and -")
		case e.QueueGroup != micro.DefaultQueueGroup:
			o.bad = fmt.Errorf("its queue group is %s; it must be %s, so that one worker gets a call and not each", quoted(e.QueueGroup), micro.DefaultQueueGroup)
		default:
			o.def, o.sum, o.bad = readDefinition(name, e.Metadata[MetadataTool])
		}
		if !slices.ContainsFunc(list, func(other sighting) bool { return other.tool == o.tool }) {
			list = append(list, o)
		}
	}
	return list
}

// take makes a tool of what a worker offers, or counts one more worker of it.
func (w *workers) take(o sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	why := o.bad
	if h := w.tools[o.tool]; why == nil && h != nil {
		of := h.workers
		if h.sum != o.sum {
			if _, known := h.others[o.worker]; !known {
				w.x.log.Warn("a worker has another definition of a tool; it is not called while both are there", "tool", o.tool, "worker", o.worker.String())
			}
			of = h.others
		}
		if _, known := of[o.worker]; !known && len(of) < maxAsked {
			of[o.worker] = 0
		}
		return
	}
	if why == nil {
		why = w.host(o)
	}
	if why == nil {
		delete(w.refused, o.key())
		return
	}
	text := shorten(schema.AsError(why).Message, 4*maxShown)
	if schema.KindOf(why) == schema.Internal {
		text = shorten(why.Error(), 4*maxShown)
	}
	if was, known := w.refused[o.key()]; was == text || !known && len(w.refused) >= maxRefused {
		return
	}
	w.refused[o.key()] = text
	w.x.log.Warn("a tool of a worker cannot be used", "tool", o.tool, "worker", o.worker.String(), "why", text)
}

// host registers a tool that nobody has offered before. The caller holds mu.
func (w *workers) host(o sighting) error {
	if w.x.cfg.Tools.announced(o.tool) {
		return errors.New("names that begin so are those of an MCP server")
	}
	if len(w.tools) >= maxHosted {
		return fmt.Errorf("%d tools of workers are the most", maxHosted)
	}
	h := &hosted{sum: o.sum, since: time.Now(), workers: map[workerID]int{o.worker: 0}, others: map[workerID]int{}, gone: make(chan struct{})}
	var err error
	if h.tool, h.vouched, err = w.cfg.tool(o.def); err != nil {
		return err
	}
	h.tool.Run = func(ctx context.Context, call *Invocation) (Result, error) { return w.run(ctx, h, call) }
	h.tool.Ready = func() error { return w.agreed(h) }
	h.tool.hosts = func() *WorkerInfo { return w.info(h) }
	if err := w.x.cfg.Tools.Register(h.tool); err != nil {
		return err
	}
	w.tools[o.tool] = h
	w.x.log.Info("workers host a tool", "tool", o.tool, "worker", o.worker.String(), "vouched", h.vouched)
	return nil
}

// agreed is the tool's Ready: it says which workers have another definition than
// the one by which it is called.
func (w *workers) agreed(h *hosted) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(h.others) == 0 {
		return nil
	}
	return schema.Errorf(schema.Unavailable, "workers disagree about what the tool is, and none is called; another definition have: %s",
		shorten(strings.Join(named(h.others), ", "), 4*maxShown))
}
