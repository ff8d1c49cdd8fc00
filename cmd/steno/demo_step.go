package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/schema"
)

// A step is a call of the agent, or something it says.
type step struct {
	says     string
	id, tool string
	args     string
	show     string // the first line of the output to show
	lines    int    // how many from there on
}

type answered struct {
	result result
	err    error
}

// ask calls a tool and waits for the answer.
func (d *demo) ask(ctx context.Context, s step) answered {
	a, err := d.client.Call(ctx, demoSession, executor.Request{CallID: s.id, Name: s.tool, Args: jsontext.Value(s.args)})
	if err != nil {
		return answered{err: err}
	}
	r, err := resultOf(a.Data, nil)
	return answered{r, err}
}

// begin calls a tool that does not end by itself, and returns once its start is
// recorded.
func (d *demo) begin(ctx context.Context, s step) (<-chan answered, error) {
	out := make(chan answered, 1)
	running, ended := context.WithCancelCause(ctx)
	go func() {
		a := d.ask(ctx, s)
		if a.err == nil {
			ended(schema.Errorf(schema.Internal, "%s has ended that was to run on: %s", s.id, a.result.text()))
		}
		ended(a.err)
		out <- a
	}()
	err := d.await(running, func(e *schema.Event) bool { return e.Type == schema.TypeToolStarted && concerns(e, s.id) })
	if err == nil {
		d.say(s.id, "%-40s runs on executor 1", s.what())
	}
	return out, err
}

// call calls a tool and tells its result.
func (d *demo) call(ctx context.Context, s step) error { return d.tell(s, d.ask(ctx, s)) }

func (d *demo) tell(s step, a answered) error {
	if a.err != nil {
		return a.err
	}
	text := a.result.text()
	if a.result.Error != nil {
		text = string(a.result.kind()) + ": " + text
	}
	d.say(s.id, "%-40s %s", s.what(), text)
	if s.lines > 0 {
		for _, l := range from(strings.Split(a.result.Output, "\n"), s.show, s.lines) {
			d.say("", "    %s", strings.ReplaceAll(strings.TrimSpace(l), "\t", " "))
		}
	}
	return nil
}

// from gives n lines from the first one that holds text on.
func from(lines []string, text string, n int) []string {
	for i, l := range lines {
		if strings.Contains(l, text) {
			return lines[i:min(i+n, len(lines))]
		}
	}
	return nil
}

// what is the call in a few words.
func (s step) what() string {
	var args struct {
		Path, Command, Pattern string
		Argv                   []string
	}
	_ = json.Unmarshal([]byte(s.args), &args, json.MatchCaseInsensitiveNames(true)) // they are ours
	return strings.TrimSpace(s.tool + " " + args.Path + args.Command + args.Pattern + strings.Join(args.Argv, " "))
}

// message records what the user or the agent says, and tells it.
func (d *demo) message(ctx context.Context, typ, text string) error {
	var data schema.Object
	if _, err := d.client.Append(ctx, demoSession, executor.AppendEvent{Type: typ, Data: data.Text("text", text).Bytes()}); err != nil {
		return err
	}
	who := "agent"
	if typ == schema.TypeUserMessage {
		who = "user"
	}
	d.say(who, "%s", text)
	return nil
}

// say tells one thing: what it is about, and a sentence.
func (d *demo) say(about, format string, args ...any) {
	d.line(fmt.Sprintf("%-11s ", about) + inert(fmt.Sprintf(format, args...)))
}

func (d *demo) line(text string) {
	if d.broken == nil {
		_, d.broken = fmt.Fprintln(d.out, strings.TrimRight(text, " "))
	}
}
