package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"steno/executor"
	"steno/schema"
)

func (a *app) runCommand() *cobra.Command {
	var session, workspace string
	var parallel int
	c := &cobra.Command{
		Use: "run FILE|-", Short: "run a file of calls and record them",
		Long: "run takes one JSON object a line, {\"call_id\"?, \"name\", \"args\"}, runs each call in order and prints one\n" +
			"recorded result a line. A line without call_id gets an id made from its tool and arguments, so the same\n" +
			"file on the same session runs nothing twice and prints the same bytes.\n\n" +
			"Exit 0: every line has a genuine recorded result, failed ones too. 2: a line was no call.\n" +
			"8: an outcome is unknown. Otherwise the code of the first error's kind.",
		Example: "  steno run calls.jsonl\n  steno run --session demo --workspace ./repo --parallel 4 calls.jsonl\n  echo '{\"name\":\"list\",\"args\":{}}' | steno run -",
		Args:    exactly("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			if parallel < 1 || parallel > 256 {
				return usage("--parallel is 1 to 256; got %d", parallel)
			}
			return a.runFile(c.Context(), args[0], session, workspace, parallel)
		},
	}
	c.Flags().StringVar(&session, "session", "", "the session to go on with; it is made if it is not there (default: a new one)")
	c.Flags().StringVar(&workspace, "workspace", ".", "the folder that the tools work in; recorded when the session is made")
	c.Flags().IntVar(&parallel, "parallel", 1, "how many calls run side by side")
	return c
}

// A job is one line of the file.
type job struct {
	number int
	call   executor.Request
	answer executor.Answer
	err    error
	bad    bool          // the line was no call
	done   chan struct{} // closed once answer or err is set
}

func (a *app) runFile(ctx context.Context, path, session, workspace string, parallel int) (err error) {
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return schema.Errorf(schema.NotFound, "the file of calls cannot be opened").With("next", "check the path of FILE").Cause(err)
		}
		defer f.Close()
		in = f
	}
	abs, err := filepath.Abs(workspace)
	if err != nil {
		return schema.Errorf(schema.InvalidConfig, "--workspace has no absolute form").Cause(err)
	}
	b, err := a.backend(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	opened, err := b.client.Open(ctx, executor.OpenRequest{Session: session, Workspace: abs})
	if err != nil {
		return err
	}
	if opened.Workspace != abs && workspace != "." {
		fmt.Fprintf(a.err, "session %s keeps the workspace it was made with: %s\n", inert(opened.Session), inert(opened.Workspace))
	}
	fmt.Fprintf(a.err, "session %s\nlog     %s\n", opened.Session, filepath.Join(a.dir, "sessions", opened.Session))
	return a.runLines(ctx, b.client, opened.Session, in, parallel)
}

// runLines runs the calls, parallel at a time, and prints their results in the
// order of the lines.
func (a *app) runLines(ctx context.Context, client *executor.Client, session string, in io.Reader, parallel int) error {
	order, work := make(chan *job, parallel), make(chan *job)
	var readErr error // set before order is closed
	go func() {
		defer close(order)
		defer close(work)
		readErr = readJobs(ctx, in, order, work)
	}()
	for range parallel {
		go func() {
			for j := range work {
				j.answer, j.err = client.Call(ctx, session, j.call)
				close(j.done)
			}
		}()
	}
	var sum summary
	var writeErr error
	for j := range order { // to the end, so that nobody is left behind
		select {
		case <-j.done:
		case <-ctx.Done():
			<-j.done
		}
		sum.add(j)
		if writeErr == nil {
			writeErr = a.printJob(j)
		}
	}
	if ctx.Err() != nil {
		return schema.Errorf(schema.Cancelled, "stopped by a signal").With("session", session).
			With("next", "run the same file on the same session again; what is recorded is not run twice")
	}
	if err := errors.Join(readErr, writeErr); err != nil {
		return err
	}
	return sum.exit()
}

// readJobs reads lines until their end. Each goes into order, and those that
// are calls also to the workers.
func readJobs(ctx context.Context, in io.Reader, order, work chan<- *job) error {
	r := bufio.NewReaderSize(in, 64<<10)
	seen := ids{}
	for number := 1; ; number++ {
		line, err := readLine(r)
		if err != nil && err != io.EOF && !errors.Is(err, schema.PayloadTooLarge) {
			return schema.Errorf(schema.StdinError, "the calls cannot be read").Cause(err)
		}
		j := &job{number: number, done: make(chan struct{})}
		if errors.Is(err, schema.PayloadTooLarge) {
			j.err = err
		} else if len(bytes.TrimSpace(line)) > 0 {
			j.call, j.err = parseLine(line, seen)
		} else if err == io.EOF {
			return nil
		} else {
			continue
		}
		j.bad = j.err != nil
		if j.bad {
			close(j.done)
		}
		select {
		case order <- j:
		case <-ctx.Done():
			return nil
		}
		if !j.bad {
			work <- j // a worker takes it, also after a signal: its call then ends at once
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readLine reads a line without its newline; one that is too long for a call
// is skipped and PayloadTooLarge.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if !long {
			line = append(line, part...)
		}
		if long = long || len(line) > schema.MaxLine; long {
			line = nil
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if long {
			return nil, schema.Errorf(schema.PayloadTooLarge, "the line has more than %d bytes", schema.MaxLine)
		}
		return bytes.TrimSuffix(line, []byte("\n")), err
	}
}

// printJob writes the result line of a call to stdout; a line that was no call
// is reported on stderr.
func (a *app) printJob(j *job) error {
	if j.bad {
		a.report(schema.AsError(j.err).With("line", j.number))
		return nil
	}
	if a.format == "table" {
		return a.printRow(j)
	}
	line := []byte(j.answer.Data)
	if j.err != nil {
		var o schema.Object
		head := o.Text("call_id", j.call.CallID).Bytes()
		line = append(append(head[:len(head)-1], ','), schema.Envelope(j.err)[1:]...)
	}
	_, err := a.out.Write(append(line, '\n'))
	return err
}

func (a *app) printRow(j *job) error {
	v, err := resultOf(j.answer.Data, j.err)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%-24s  %-8s  %-12s  %s\n", inert(short(j.call.CallID, 24)), inert(short(j.call.Name, 8)), v.state(), inert(short(v.text(), 80)))
	return err
}

// summary decides the exit code of a run.
type summary struct {
	bad, unknown bool
	first        error // of the calls that got no result
}

func (s *summary) add(j *job) {
	switch {
	case j.bad:
		s.bad = true
	case errors.Is(j.err, schema.OutcomeUnknown), errors.Is(j.err, schema.ToolResultRecordFailed):
		s.unknown = true
	case j.err != nil:
		if s.first == nil {
			s.first = j.err
		}
	default:
		v, err := resultOf(j.answer.Data, nil)
		s.unknown = s.unknown || err != nil || v.kind() == schema.Interrupted
	}
}

func (s *summary) exit() error {
	switch {
	case s.bad:
		return exitCode(schema.ExitUsage)
	case s.unknown:
		return exitCode(schema.ExitUnknown)
	case s.first != nil:
		return exitCode(schema.KindOf(s.first).Info().Exit)
	}
	return nil
}

// A result is what is shown of a tool_result.
type result struct {
	OK       bool              `json:"ok"`
	Output   string            `json:"output"`
	Summary  string            `json:"summary"`
	Error    *schema.ErrorBody `json:"error"`
	ExitCode *int              `json:"exit_code"`
}

func resultOf(data []byte, err error) (result, error) {
	if err != nil {
		b := schema.Body(err)
		return result{Error: &b}, nil
	}
	var v result
	if err := schema.Unmarshal(data, &v); err != nil {
		return result{}, schema.Errorf(schema.Internal, "a result cannot be read").Cause(err)
	}
	return v, nil
}

func (r *result) kind() schema.Kind {
	if r.Error == nil {
		return ""
	}
	return r.Error.Kind
}

func (r *result) state() string {
	switch {
	case r.Error != nil:
		return string(r.Error.Kind)
	case r.ExitCode != nil && *r.ExitCode != 0:
		return "exit " + strconv.Itoa(*r.ExitCode)
	case r.OK:
		return "ok"
	}
	return "failed"
}

func (r *result) text() string {
	switch {
	case r.Error != nil:
		return r.Error.Message
	case r.Summary != "":
		return r.Summary
	}
	return r.Output
}

// ids counts equal lines, to give each its own call id.
type ids map[string]int

// id is the call id of a line without one: made from its tool and arguments,
// and from how many equal lines came before.
func (n ids) id(name string, args []byte) string {
	h := sha256.New()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write(args)
	key := hex.EncodeToString(h.Sum(nil))[:16]
	n[key]++
	return "a-" + key + "-" + strconv.Itoa(n[key])
}

// parseLine reads one line of a file of calls.
func parseLine(line []byte, n ids) (executor.Request, error) {
	text, _, err := schema.Compact(nil, line, 1)
	if err != nil {
		return executor.Request{}, err
	}
	var r struct {
		executor.Request
	}
	if text[0] != '{' || schema.Unmarshal(text, &r) != nil || r.Name == "" {
		return executor.Request{}, schema.Errorf(schema.InvalidArgs, "the line is not {\"call_id\"?, \"name\", \"args\"}")
	}
	if len(r.Args) == 0 {
		r.Args = jsontext.Value("{}")
	}
	if r.CallID == "" {
		r.CallID = n.id(r.Name, r.Args)
	}
	return r.Request, nil
}
