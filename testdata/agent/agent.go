package main

import (
	"context"
	"encoding/json"
	"strings"

	"steno/executor"
	"steno/replay"
)

// A message is what this agent reads of one in OpenAI's form.
type message struct {
	Role    string
	Content any
	Calls   []struct {
		ID       string
		Function struct{ Name, Arguments string }
	} `json:"tool_calls"`
}

// act is the whole agent. It keeps nothing: whatever instant it was killed at, it
// goes on from what the session says.
func act(ctx context.Context, c *executor.Client, session string) error {
	if _, err := c.Open(ctx, executor.OpenRequest{Session: session}); err != nil {
		return err
	}
	for {
		at, err := c.Resume(ctx, executor.ResumeRequest{Session: session, Format: replay.FormatOpenAI})
		if err != nil || at.Outcome != "" {
			return err
		}
		turns, last, open := 0, message{}, false
		for _, raw := range at.Messages {
			var m message
			if err := json.Unmarshal(raw, &m); err != nil {
				return err
			}
			if m.Role == "assistant" {
				turns, last, open = turns+1, m, false
			}
			text, _ := m.Content.(string)
			open = open || m.Role == "tool" && strings.Contains(text, `"synthetic":true`) // nobody has done it yet
		}
		for _, call := range last.Calls {
			if open { // those that are done are answered from the record
				f := call.Function
				if _, err := c.Call(ctx, session, executor.Request{CallID: call.ID, Name: f.Name, Args: []byte(f.Arguments)}); err != nil {
					return err
				}
			}
		}
		typ, said := model(turns, len(at.Messages))
		switch {
		case open:
		case said == "":
			_, err = c.End(ctx, executor.EndRequest{Session: session, Outcome: "completed"})
		default:
			_, err = c.Append(ctx, session, executor.AppendEvent{Type: typ, Data: []byte(said)})
		}
		if err != nil {
			return err
		}
	}
}
