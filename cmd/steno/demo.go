package main

import (
	"context"
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/spf13/cobra"

	"steno/schema"
)

// workspaceArchive is the workspace that the demo works in.
//
//go:embed workspace.txtar
var workspaceArchive []byte

// What the demo leaves in its folder, which is a store.
const (
	demoSession   = "demo"
	demoWorkspace = "workspace"
)

// replayFiles hold the output of the two replays.
var replayFiles = []string{"replay-1.json", "replay-2.json"}

func (a *app) demoCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "demo", Short: "see an executor killed in the middle of two calls, and the session go on",
		Long: "demo starts a NATS server and two executor processes on one store, and plays an agent that mends a small Go\n" +
			"module through them. It kills the executor that holds the session while two calls run; the other one takes\n" +
			"over. Then the log is verified, replayed in two processes, and judged from the files alone. It needs Go.\n\n" +
			"The files stay in --dir, which must be new or empty (default: a new folder); its path is the last line.",
		Example: "  steno demo\n  steno demo --dir /tmp/demo\n  steno session show demo --dir /tmp/demo",
		Args:    func(c *cobra.Command, words []string) error { return noWords(c, words) },
		RunE: func(c *cobra.Command, _ []string) error {
			if a.nats != "" {
				return usage("demo has a server of its own and takes no --nats")
			}
			return a.demo(c.Context(), c.Flags().Changed("dir"))
		},
	}
	c.Flags().StringVar(&a.dir, "dir", a.dir, "a new or empty folder, which becomes a store (default: a new one)")
	c.Flags().Lookup("dir").DefValue = ""
	c.AddCommand(&cobra.Command{
		Use: "check", Short: "judge the files of a demo once more", Args: exactly(),
		Long:    "check reads the folder of a demo and says whether it shows what a demo has to show. It changes nothing.",
		Example: "  steno demo check --dir /tmp/demo",
		RunE: func(c *cobra.Command, _ []string) error {
			facts, err := judgeDemo(c.Context(), a.dir)
			if err != nil {
				return err
			}
			if a.format == "json" || a.format == "jsonl" {
				return a.json(facts)
			}
			return a.table(nil, facts.rows())
		},
	}, &cobra.Command{
		Use: "unpack FOLDER", Short: "unpack the demo's workspace, to try things on", Args: exactly("FOLDER"),
		Long:    "unpack writes the Go module of the demo into a folder that is new or empty.",
		Example: "  steno demo unpack /tmp/lighthouse\n  steno run --workspace /tmp/lighthouse testdata/runs/triage.jsonl",
		RunE:    func(_ *cobra.Command, words []string) error { return unpackWorkspace(words[0]) },
	}, &cobra.Command{
		Use: "executor", Hidden: true, Args: exactly(), Short: "one of the demo's executors; ends with its standard input",
		Example: "  steno demo executor --dir DIR --nats CONTEXT",
		RunE:    func(c *cobra.Command, _ []string) error { return a.demoExecutor(c.Context()) },
	})
	return c
}

func noWords(c *cobra.Command, words []string) error {
	if len(words) == 0 {
		return nil
	}
	return unknown(c, words)
}

// demo plays the whole demo. Whatever becomes of it, the path of its folder is
// the last line, so that one can look.
func (a *app) demo(ctx context.Context, given bool) (err error) {
	env, err := demoEnvironment(ctx)
	if err != nil {
		return err
	}
	if given {
		if err = a.checkDir(); err == nil {
			err = newFolder(a.dir)
		}
	} else if a.dir, err = os.MkdirTemp("", "steno-demo-"); err != nil {
		err = cannotMake(err)
	}
	a.dirGiven = true // of the next steps: a new folder is no default
	if err != nil {
		return err
	}
	d := &demo{app: a, dir: a.dir, env: env, out: a.out}
	if a.format == "json" || a.format == "jsonl" {
		d.out = a.err
	}
	facts, err := d.run(ctx)
	if err != nil {
		err = d.failed(ctx, err)
	}
	if d.out != a.out {
		if err == nil {
			err = a.json(facts)
		}
		return err
	}
	d.line("")
	d.line(a.dir)
	return errors.Join(err, d.broken)
}

// failed is an error of the demo as it is told: with the folder to look into.
func (d *demo) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return schema.Errorf(schema.Cancelled, "the demo was stopped by a signal").With("dir", d.dir).With("next", "run: steno demo").Cause(err)
	}
	e, ok := errors.AsType[*schema.Error](err)
	if !ok { // of the machine: a file, a process
		e = schema.Errorf(schema.KindOf(err), "the demo cannot go on: %v", err)
	}
	return e.With("dir", d.dir)
}

// demoEnvironment is the environment of the demo's executors: the caller's,
// with its Go as it is installed and its build cache. Flags that the caller
// gives to go are for other modules; whether this one lies in a repository must
// not matter.
func demoEnvironment(ctx context.Context) ([]string, error) {
	missing := func(err error) error {
		return schema.Errorf(schema.CommandFailed, "the demo runs the tests of a Go module, and there is no go that can be run").
			With("next", "install Go (https://go.dev/doc/install) or put it on PATH; then run: steno demo").Cause(err)
	}
	program, err := exec.LookPath("go")
	if err != nil {
		return nil, missing(err)
	}
	env := append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=-buildvcs=false")
	find := exec.CommandContext(ctx, program, "env", "GOCACHE")
	find.Env = env
	cache, err := find.Output()
	if err != nil {
		return nil, missing(err)
	}
	return append(env, "GOCACHE="+strings.TrimSpace(string(cache))), nil
}

// newFolder makes a folder, or takes one that is empty.
func newFolder(path string) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(path, 0o700); err != nil {
			return cannotMake(err)
		}
		return nil
	case err != nil:
		return cannotMake(err)
	case len(entries) > 0:
		return schema.Errorf(schema.AlreadyExists, "the folder %s is not empty", path).
			With("next", "name a folder that is not there yet")
	}
	return nil
}

func cannotMake(err error) error {
	return schema.Errorf(schema.WriteFailed, "the folder cannot be made").With("next", "name another folder").Cause(err)
}

// unpackWorkspace writes the demo's workspace into a folder.
func unpackWorkspace(path string) error {
	if err := newFolder(path); err != nil {
		return err
	}
	if err := txtar.Write(txtar.Parse(workspaceArchive), path); err != nil {
		return schema.Errorf(schema.WriteFailed, "the workspace cannot be unpacked").With("next", "name another folder").Cause(err)
	}
	return nil
}

// unpack unpacks the workspace inside the demo's folder.
func (d *demo) unpack() error { return unpackWorkspace(filepath.Join(d.dir, demoWorkspace)) }
