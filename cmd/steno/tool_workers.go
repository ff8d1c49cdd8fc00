package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"steno/executor"
	"steno/schema"
)

// workersWait bounds the question what workers host.
const workersWait = 5 * time.Second

// hosted asks the serve on this store, or the server of --nats, which tools workers
// host. ok is false where there is nobody to ask.
func (a *app) hosted(ctx context.Context) (answer executor.WorkersAnswer, ok bool, err error) {
	var nc *nats.Conn
	if a.nats != "" {
		if err := a.notElsewhere(); err != nil {
			return answer, false, err
		}
		nc, err = dial(a.nats)
	} else if served, e := a.served(); e != nil || !served {
		return answer, false, nil // what is wrong with the store is not for this command to say
	} else {
		nc, err = a.throughServe(ctx)
	}
	if err != nil || nc == nil {
		return answer, false, err
	}
	defer nc.Close()
	if err := a.someoneServes(ctx, nc); err != nil {
		return answer, false, err
	}
	c, err := executor.NewClient(nc, "")
	if err != nil {
		return answer, false, err
	}
	wait, cancel := context.WithTimeout(ctx, workersWait)
	defer cancel()
	answer, err = c.Workers(wait)
	return answer, err == nil, err
}

// hostedTool is a tool that workers host, all there is of it; nil if none is.
func (a *app) hostedTool(ctx context.Context, name string) (*executor.Tool, error) {
	answer, _, err := a.hosted(ctx)
	if err != nil {
		return nil, err
	}
	for _, spec := range answer.Tools {
		var t executor.ToolInfo
		if err := schema.Unmarshal(spec, &t); err != nil {
			return nil, schema.Errorf(schema.Internal, "a tool cannot be read").Cause(err)
		}
		if t.Name == name {
			tool := t.Tool()
			return &tool, nil
		}
	}
	return nil, nil
}

// aboutWorkers says who hosts a tool, in the words of the list.
func aboutWorkers(h *executor.WorkerInfo) string {
	words := many(len(h.Workers), "worker")
	if len(h.Others) > 0 {
		words += fmt.Sprintf(", %d of another definition", len(h.Others))
	}
	if !h.Vouched {
		return words + ", not vouched for"
	}
	return words
}

// workers says what workers host, and what is wrong with it.
func (d *doctor) workers(ctx context.Context) {
	answer, ok, err := d.a.hosted(ctx)
	if err != nil || !ok {
		return // whether there is somebody to ask is told elsewhere
	}
	for _, spec := range answer.Tools {
		var t executor.ToolInfo
		if schema.Unmarshal(spec, &t) != nil || t.Hosted == nil {
			continue
		}
		v := diagnosis{Check: "workers", Status: statusOK, Text: t.Name + ": " + aboutWorkers(t.Hosted)}
		if len(t.Hosted.Others) > 0 {
			v.Status, v.Kind = statusWarning, schema.Unavailable
			v.Next = "nobody gets calls of it; stop the workers of one definition: " + strings.Join(t.Hosted.Others, ", ")
		}
		d.tell(v)
	}
	for _, r := range answer.Refused {
		d.tell(diagnosis{Check: "workers", Status: statusWarning, Kind: schema.InvalidConfig, Text: r.Worker + " is not used: " + r.Why, Next: "mend the definition in the worker, and start it again"})
	}
}
