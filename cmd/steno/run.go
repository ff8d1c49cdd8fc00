package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

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
		Long: "run takes one JSON object a line, {\"call_id\"?, \"name\", \"args\", \"actor\"?}, runs each call in order and prints one\n" +
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
	a.logFlag(c)
	a.ownFlags(c)
	return c
}

// A job is one line of the file.
type job struct {
	number  int
	call    executor.Request
	answer  executor.Answer
	err     error
	bad     bool          // the line was no call
	stopped bool          // a signal came first; nothing is known of a result
	done    chan struct{} // closed once the rest is set
}

func (a *app) runFile(ctx context.Context, path, session, workspace string, parallel int) (err error) {
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return schema.Errorf(schema.NotFound, "the file of calls cannot be opened: %s", path).With("next", "check the path of FILE").Cause(err)
		}
		defer f.Close()
		if fi, err := f.Stat(); err == nil && fi.IsDir() {
			return usage("%s is a folder and no file of calls", path).With("next", "name a file of calls, one {\"name\",\"args\"} a line, or - for standard input")
		}
		in = f
	}
	abs, err := filepath.Abs(workspace)
	if err != nil {
		return schema.Errorf(schema.InvalidConfig, "--workspace has no absolute form").Cause(err)
	}
	if session != "" {
		if err := schema.CheckSession(session); err != nil {
			return err
		}
	}
	a.asks = path != "-" || !typed(a.in) // whoever types calls would have their next line taken for an answer
	b, err := a.backend(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	opened, err := b.client.Open(ctx, executor.OpenRequest{Session: session, Workspace: abs})
	if err != nil {
		return err
	}
	if !opened.Created && opened.Workspace != abs {
		fmt.Fprintf(a.err, "session %s keeps the workspace it was made with: %s\n", opened.Session, inert(opened.Workspace))
	}
	fmt.Fprintf(a.err, "session %s\n", opened.Session)
	if a.nats == "" { // of another server's store nothing is known here
		fmt.Fprintf(a.err, "log     %s\n", filepath.Join(a.dir, "sessions", opened.Session))
	}
	return a.runLines(ctx, b, opened.Session, in, parallel)
}

// runLines runs the calls, parallel at a time, and prints their results in the
// order of the lines. After a signal no call begins; those that run have their
// grace, and what has a result by then is printed too.
func (a *app) runLines(signal context.Context, b *backend, session string, in io.Reader, parallel int) error {
	seen, err := a.ids(b)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(signal)
	defer stop()
	if b.exec != nil { // elsewhere what runs goes on without us
		defer a.tellStopping(signal, grace)()
	}
	lines, order, work := make(chan rawLine), make(chan *job, parallel), make(chan *job)
	go readLines(ctx, in, lines)
	var readErr error // set before order is closed
	go func() {
		defer close(order)
		defer close(work)
		readErr = makeJobs(ctx, seen, lines, order, work)
	}()
	for range parallel {
		go func() {
			for j := range work {
				if j.stopped = ctx.Err() != nil; !j.stopped {
					j.answer, j.err = b.callTool(ctx, b.calls, session, j.call)
					j.stopped = j.err != nil && ctx.Err() != nil && b.calls.Err() != nil
					if b.exec == nil && errors.Is(j.err, schema.Unavailable) {
						stop() // it has been waited for; the other calls need not wait as long
					}
				}
				close(j.done)
			}
		}()
	}
	var sum summary
	var writeErr error
	for j := range order { // to the end, so that nobody is left behind
		<-j.done
		if j.stopped {
			continue
		}
		sum.add(j)
		if writeErr == nil {
			if writeErr = a.printJob(j); writeErr != nil {
				stop() // nobody sees what the other calls would do
			}
		}
	}
	if writeErr != nil {
		return schema.Errorf(schema.WriteFailed, "the results cannot be printed; they are recorded").With("session", session).
			With("next", "run: steno session show "+session).Cause(writeErr)
	}
	if signal.Err() != nil {
		return schema.Errorf(schema.Cancelled, "stopped by a signal; %d calls have their results", sum.results).With("session", session).
			With("next", "run the same file again with --session "+session+"; what is recorded is not run twice")
	}
	if readErr != nil {
		return readErr
	}
	return sum.exit()
}

// A rawLine is a line of the file, or why there is none.
type rawLine struct {
	text []byte
	err  error
}

// readLines reads lines to their end. It may stay behind, waiting for an input
// that says nothing, when everybody else has gone.
func readLines(ctx context.Context, in io.Reader, lines chan<- rawLine) {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		text, err := readLine(r)
		select {
		case lines <- rawLine{text, err}:
		case <-ctx.Done():
			return
		}
		if err != nil && !errors.Is(err, schema.PayloadTooLarge) {
			return
		}
	}
}

// makeJobs makes a job of each line. All go into order, and those that are
// calls also to the workers.
func makeJobs(ctx context.Context, seen *ids, lines <-chan rawLine, order, work chan<- *job) error {
	for number := 1; ; number++ {
		var line rawLine
		select {
		case line = <-lines:
		case <-ctx.Done():
			return nil
		}
		last := errors.Is(line.err, io.EOF)
		j := &job{number: number, done: make(chan struct{})}
		switch {
		case errors.Is(line.err, schema.PayloadTooLarge):
			j.err = line.err
		case line.err != nil && !last:
			return schema.Errorf(schema.StdinError, "the calls cannot be read, from line %d on", number).With("line", number).Cause(line.err)
		case len(bytes.TrimSpace(line.text)) > 0:
			j.call, j.err = parseLine(line.text, seen)
		case last:
			return nil
		default:
			continue
		}
		if j.bad = j.err != nil; j.bad {
			close(j.done)
		}
		order <- j
		if !j.bad {
			work <- j
		}
		if last {
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
		if long = long || len(line) > executor.MaxRequest; long {
			line = nil
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if long {
			return nil, schema.Errorf(schema.PayloadTooLarge, "the line has more than %d bytes", executor.MaxRequest)
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
	if j.err == nil && a.dirGiven {
		if v, err := resultOf(line, nil); err == nil {
			a.tellNext(v)
		}
	}
	if j.err != nil {
		var o schema.Object
		head := o.Text("call_id", j.call.CallID).Bytes()
		line = append(append(head[:len(head)-1], ','), schema.Envelope(a.local(j.err))[1:]...)
	}
	_, err := a.out.Write(append(line, '\n'))
	return err
}

func (a *app) printRow(j *job) error {
	v, err := resultOf(j.answer.Data, j.err)
	if err != nil {
		return err
	}
	took := time.Duration(v.Duration) * time.Microsecond
	_, err = fmt.Fprintf(a.out, "%-26s  %-8s  %-17s  %9s  %s\n", inert(short(j.call.CallID, 26)), inert(short(j.call.Name, 8)), v.state(),
		took.Round(10*time.Microsecond), inert(short(v.text(), 80)))
	return err
}

// summary decides the exit code of a run.
type summary struct {
	results      int
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
		s.results++
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

// parseLine reads one line of a file of calls.
func parseLine(line []byte, n *ids) (executor.Request, error) {
	if _, _, err := schema.Compact(nil, line, 1); err != nil {
		return executor.Request{}, err
	}
	// The values go on as they stand here: what must be replaced in them is
	// replaced, and counted, where they are recorded.
	var r executor.Request
	if schema.Unmarshal(line, &r) != nil || r.Name == "" {
		return executor.Request{}, schema.Errorf(schema.InvalidArgs, "the line is not {\"call_id\"?, \"name\", \"args\"}")
	}
	if r.Actor == (executor.Actor{}) {
		r.Actor.ID = byUser()
	}
	if len(r.Args) == 0 {
		r.Args = jsontext.Value("{}")
	}
	if r.CallID == "" {
		args, _, err := schema.Compact(nil, r.Args, 2)
		if err != nil {
			return executor.Request{}, err
		}
		if r.CallID, err = n.id(r.Name, args); err != nil {
			return executor.Request{}, err
		}
	} else if n.stood(r.CallID) {
		return executor.Request{}, schema.Errorf(schema.DuplicateCall, "call id %s stood in a line before", r.CallID).With("call_id", r.CallID).
			With("next", "give each line an id of its own, or none")
	}
	return r, nil
}
