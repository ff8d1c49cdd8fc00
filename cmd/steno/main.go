// Command steno keeps the record of tool calls: it runs them, and reads,
// verifies and replays what was recorded.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/schema"
)

// exitInterrupt is the exit code after SIGINT (128 + 2).
const exitInterrupt = 130

func main() { os.Exit(process()) }

// process runs the command until it is done or a signal comes. After the first
// signal it ends in good order; a second one ends it at once.
func process() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		signal.Stop(signals)
		if s == syscall.SIGINT {
			cancel(errInterrupted)
		} else {
			cancel(errTerminated)
		}
	}()
	return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
}

// run is the command without the process around it.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	a := &app{in: in, out: out, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return exitInterrupt
	}
	if err == nil {
		return schema.ExitOK
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	a.report(err)
	return schema.KindOf(err).Info().Exit
}

// An exitCode ends the command without another word: what there is to say has
// been said.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit %d", int(c)) }

// Causes of the end of the command's context.
var (
	errInterrupted = errors.New("SIGINT")
	errTerminated  = errors.New("SIGTERM")
)

// app is what the commands share.
type app struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	dir    string
	format string
	nats   string
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "steno",
		Short: "keeps the record of tool calls",
		Long: "steno writes every tool call down before it runs and every result before anyone hears of it,\n" +
			"one JSON line each, in a log that one writer at a time may extend.",
		Example:       "  steno demo\n  steno run calls.jsonl\n  steno verify",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			c.SetOut(a.err)
			_ = c.Usage()
			return usage("say what to do")
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&a.dir, "dir", defaultDir(), "the store's folder; $STENO_DIR")
	f.StringVarP(&a.format, "output", "o", "", "table, json or jsonl")
	f.StringVar(&a.nats, "nats", "", "a NATS server's URL, or the path of a NATS context file")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%s", err) })
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		switch a.format {
		case "", "table", "json", "jsonl":
		default:
			return usage("-o is table, json or jsonl; got %q", a.format)
		}
		abs, err := filepath.Abs(a.dir)
		if err != nil {
			return schema.Errorf(schema.InvalidConfig, "--dir has no absolute form").Cause(err)
		}
		a.dir = abs
		return nil
	}
	root.AddCommand(a.runCommand(), a.serveCommand(), a.callCommand(), a.sessionCommand(),
		a.verifyCommand(), a.replayCommand(), a.leaseCommand(), a.versionCommand())
	for _, c := range root.Commands() {
		if c.HasSubCommands() && c.RunE == nil { // "session" alone, or with a word that is no command
			c.RunE = func(c *cobra.Command, args []string) error {
				return usage("%s needs one of its commands; see: %s --help", c.CommandPath(), c.CommandPath())
			}
		}
	}
	return root
}

func defaultDir() string {
	if d := os.Getenv("STENO_DIR"); d != "" {
		return d
	}
	return ".steno"
}

// usage is a command line that cannot be understood.
func usage(format string, args ...any) error {
	return schema.Errorf(schema.InvalidArgs, format, args...).With("next", "run: steno --help")
}

// exactly checks the number of words behind a command.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usage("%s takes %d of: %v; got %d", c.CommandPath(), len(names), names, len(args)).(*schema.Error).
			With("next", "run: "+c.CommandPath()+" --help")
	}
}

// report writes the error envelope, one line.
func (a *app) report(err error) { fmt.Fprintf(a.err, "%s\n", schema.Envelope(err)) }

// store opens the store; create makes it if it is not there.
func (a *app) store(create bool) (*journal.Files, error) { return journal.OpenFiles(a.dir, create) }

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "say which steno this is", Example: "  steno version -o json", Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Commit  string `json:"commit,omitzero"`
				Go      string `json:"go"`
				Format  int    `json:"format"`
			}{executor.Version, "", runtime.Version(), schema.Version}
			if bi, ok := debug.ReadBuildInfo(); ok {
				for _, s := range bi.Settings {
					if s.Key == "vcs.revision" {
						v.Commit = s.Value
					}
				}
			}
			if a.format == "json" || a.format == "jsonl" {
				return a.json(v)
			}
			_, err := fmt.Fprintf(a.out, "steno %s, log format %d, %s\n", v.Version, v.Format, v.Go)
			return err
		},
	}
}
