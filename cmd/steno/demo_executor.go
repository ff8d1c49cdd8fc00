package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/executor"
	"steno/schema"
)

// ready is the line with which an executor of the demo says that it serves.
type ready struct {
	Holder string `json:"holder"`
	PID    int    `json:"pid"`
}

// demoGrace is how long the demo's executors let tools run when they are told
// to end.
const demoGrace = time.Second

// demoExecutor is an executor process of the demo. It ends with its standard
// input, so it does not outlive the demo, whatever ends that.
func (a *app) demoExecutor(ctx context.Context) error {
	if a.nats == "" {
		return usage("--nats is missing")
	}
	store, err := a.store(false)
	if err != nil {
		return err
	}
	defer store.Close()
	nc, err := dial(a.nats)
	if err != nil {
		return err
	}
	defer nc.Close()
	cfg, err := a.executorConfig(nc, store, slog.LevelWarn, append(executor.Builtin(), waitForFile())...)
	if err != nil {
		return err
	}
	// The workspace lies beside the sessions in the same folder.
	cfg.Protect = []string{filepath.Join(a.dir, "sessions"), filepath.Join(a.dir, "nats")}
	x, err := executor.New(cfg)
	if err != nil {
		return err
	}
	if err := x.Start(ctx); err != nil {
		return err
	}
	if err := a.json(ready{cfg.Holder.ID, os.Getpid()}); err != nil {
		return err
	}
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, a.in) // an error ends it too
		close(end)
	}()
	select {
	case <-end:
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), demoGrace)
	defer cancel()
	return x.Drain(drain)
}

// waitForFile is the demo's own tool. It changes nothing, so it may be run
// again when nobody knows what became of an attempt.
func waitForFile() executor.Tool {
	return executor.Tool{
		Name:        "wait_for_file",
		Description: "Wait until a file is there in the workspace, and give its text.",
		Input: jsontext.Value(`{"type":"object","properties":{
			"path":{"type":"string","minLength":1,"maxLength":4096,"description":"the file, from the workspace"}},
			"required":["path"],"additionalProperties":false}`),
		Repeatable: true,
		ReadOnly:   true,
		DryRun:     true,
		Run: func(ctx context.Context, call *executor.Invocation) (executor.Result, error) {
			var args struct {
				Path string `json:"path"`
			}
			if err := json.Unmarshal(call.Args, &args); err != nil {
				return executor.Result{}, schema.Errorf(schema.InvalidArgs, "the arguments cannot be read").Cause(err)
			}
			if call.Workspace == nil {
				return executor.Result{}, schema.Errorf(schema.OutsideWorkspace, "the session has no workspace")
			}
			if call.DryRun {
				return executor.Result{OK: true, Output: "would wait for " + args.Path}, nil
			}
			root, err := os.OpenRoot(call.Workspace.Dir())
			if err != nil {
				return executor.Result{}, err
			}
			defer root.Close()
			look := time.NewTicker(20 * time.Millisecond)
			defer look.Stop()
			for {
				text, err := root.ReadFile(args.Path)
				if err == nil {
					return executor.Result{OK: true, Output: string(text), Summary: args.Path + " is there", FilesRead: []string{args.Path}}, nil
				}
				if !errors.Is(err, fs.ErrNotExist) {
					return executor.Result{}, schema.Errorf(schema.ReadFailed, "%q cannot be read", args.Path).Cause(err)
				}
				select {
				case <-look.C:
				case <-ctx.Done():
					return executor.Result{}, ctx.Err()
				}
			}
		},
	}
}

// A demoProcess is an executor of the demo, seen from outside.
type demoProcess struct {
	ready
	cmd  *exec.Cmd
	in   io.Closer
	done chan struct{} // closed once it has ended
	err  error         // how; set before done is closed
}

// startTimeout bounds the start of an executor process.
const startTimeout = 30 * time.Second

// start starts an executor process and waits until it serves. Its log becomes
// executor-<number>.log; what is secret reaches it through a file.
func (d *demo) start(ctx context.Context, number int) (*demoProcess, error) {
	name := fmt.Sprintf("executor-%d.log", number)
	log, err := os.OpenFile(filepath.Join(d.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	out, in := io.Pipe()
	p := &demoProcess{cmd: exec.Command(d.self, "demo", "executor", "--dir", d.dir, "--nats", d.app.contextFile()), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = d.env, in, log, startTimeout
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		in.CloseWithError(io.EOF)
		close(p.done)
	}()
	first := make(chan []byte, 1)
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadBytes('\n')
		first <- line
		_, _ = io.Copy(io.Discard, r)
	}()
	var line []byte
	select {
	case line = <-first:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(startTimeout):
	}
	if err == nil && json.Unmarshal(line, &p.ready) != nil || p.Holder == "" {
		err = schema.Errorf(schema.Unavailable, "executor %d of the demo does not start", number).
			With("next", "look at "+filepath.Join(d.dir, name))
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// kill ends the process as a power cut would, without a last word.
func (p *demoProcess) kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	return err
}

// stop lets the process end in good order, and returns when it has.
func (p *demoProcess) stop() error {
	p.in.Close()
	select {
	case <-p.done:
	case <-time.After(demoGrace + grace):
		_ = p.kill()
	}
	return p.err
}
