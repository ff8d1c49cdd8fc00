package main

import (
	"context"
	"time"

	"steno/executor"
	"steno/schema"
)

// A queueHealth is how the queue of a serve is, or why that cannot be said.
type queueHealth struct {
	*executor.QueueState
	Error *schema.ErrorBody `json:"error,omitzero"`
}

// queueWait is how long a monitor waits for a serve.
const queueWait = 3 * time.Second

// queueHealth asks whoever serves.
func (a *app) queueHealth(ctx context.Context) *queueHealth {
	h := &queueHealth{}
	failed := func(err error) *queueHealth {
		body := schema.Body(err)
		h.Error = &body
		return h
	}
	target := a.nats
	if target == "" {
		target = a.contextFile()
	}
	nc, err := dial(target)
	if err != nil {
		return failed(err)
	}
	defer nc.Close()
	client, err := executor.NewClient(nc, "")
	if err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, queueWait)
	defer cancel()
	q, err := client.Queue(ctx)
	if err != nil {
		return failed(err)
	}
	h.QueueState = &q.QueueState
	return h
}

// What of a queue is too much, or too old.
const (
	queueFilling = 0.8
	queueFull    = 0.95
	queueOld     = 5 * time.Minute
)

func (q *queueHealth) judge(h *health) {
	if q.Error != nil {
		h.raise("critical", "the queue cannot be looked at: "+inert(q.Error.Message))
		return
	}
	if full := fullness(q.QueueState); full >= queueFull {
		h.raise("critical", "the queue is full: "+many(int(q.Messages), "call"))
	} else if full >= queueFilling {
		h.raise("warning", "the queue fills up: "+many(int(q.Messages), "call"))
	}
	if q.Parked > 0 {
		h.raise("warning", many(int(q.Parked), "call")+" parked")
	}
	if age := time.Duration(q.OldestAge * float64(time.Second)); q.Pending > 0 && q.Asking == 0 && age >= queueOld {
		h.raise("warning", "a call has been in the queue for "+age.Round(time.Second).String())
	}
}

// fullness is how much of its limits a queue has used, those of what is dead or
// parked too: where there is no room for that, it stays in the queue.
func fullness(q *executor.QueueState) float64 {
	full := 0.0
	for _, of := range [][2]float64{{float64(q.Messages), float64(q.MaxMessages)}, {float64(q.Bytes), float64(q.MaxBytes)}, {float64(q.DeadBytes), float64(q.MaxDeadBytes)}} {
		if of[1] > 0 {
			full = max(full, of[0]/of[1])
		}
	}
	return full
}

// ofQueue is a metric that is there where a queue was asked for.
func ofQueue(of func(*queueHealth) float64) func(*health) ([]string, map[string]float64) {
	return func(h *health) ([]string, map[string]float64) {
		if h.Queue == nil {
			return nil, nil
		}
		return one(of(h.Queue))
	}
}

// ofQueueUp is one that is there where the queue has answered.
func ofQueueUp(of func(*executor.QueueState) float64) func(*health) ([]string, map[string]float64) {
	return func(h *health) ([]string, map[string]float64) {
		if h.Queue == nil || h.Queue.QueueState == nil {
			return nil, nil
		}
		return one(of(h.Queue.QueueState))
	}
}
