package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/schema"
)

// modelCalls are calls as a model's provider gives them.
type modelCalls struct {
	format, turn string
	actor        string
	text         jsontext.Value
	dryRun       bool
}

// modelCallsAtOnce bounds the calls of one list that are asked for at a time.
const modelCallsAtOnce = 8

// modelCalls makes the calls side by side and answers each in its format, in
// their order.
func (a *app) modelCalls(ctx context.Context, session string, in modelCalls, timeout time.Duration) error {
	if err := schema.CheckSession(session); err != nil {
		return err
	}
	calls, list, err := executor.ReadModelCalls(in.format, in.text, in.turn)
	if err != nil {
		return err
	}
	return a.withBackend(ctx, timeout, func(wait context.Context, b *backend) error {
		answers, failed := make([]jsontext.Value, len(calls)), make([]error, len(calls))
		var work sync.WaitGroup
		room := make(chan struct{}, modelCallsAtOnce)
		for i := range calls {
			room <- struct{}{}
			work.Go(func() {
				defer func() { <-room }()
				calls[i].Request.Actor = executor.Actor{ID: in.actor}
				answers[i], failed[i] = b.modelCall(ctx, wait, session, &calls[i], in.dryRun, timeout)
			})
		}
		work.Wait()
		out, unknown := []byte("["), false
		var first error
		for i, err := range failed {
			var end exitCode
			switch {
			case errors.As(err, &end):
				unknown = true
			case err != nil && !slices.Contains(failed, nil): // none has a result
				return err
			case err != nil:
				// The others may have run, and each call of a list needs an answer.
				if answers[i], failed[i] = calls[i].Refuse(err); failed[i] != nil {
					return err
				}
				first = cmp.Or(first, err)
			}
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, answers[i]...)
		}
		if out = append(out, ']'); !list {
			out = answers[0]
		}
		if _, err := a.out.Write(append(out, '\n')); err != nil {
			return err
		}
		if unknown && first == nil {
			return exitCode(schema.ExitUnknown)
		}
		return first
	})
}

// modelCall makes one call. What it cannot even be asked for is for the model to
// know, whose words the arguments are.
func (b *backend) modelCall(ctx, wait context.Context, session string, c *executor.ModelCall, dryRun bool, timeout time.Duration) (jsontext.Value, error) {
	if c.Bad != nil {
		return c.Refuse(c.Bad)
	}
	c.Request.DryRun = dryRun
	answer, err := b.ask(ctx, wait, session, c.Request, timeout)
	if err != nil {
		return nil, err
	}
	out, err := c.Answer(answer.Data)
	if v, bad := resultOf(answer.Data, nil); err == nil && bad == nil && v.kind() == schema.Interrupted {
		err = exitCode(schema.ExitUnknown)
	}
	return out, err
}
