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
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"steno/executor"
	"steno/journal"
	"steno/schema"
)

// exitInterrupt is the exit code after SIGINT (128 + 2).
const exitInterrupt = 130

func main() {
	executor.Helper()
	os.Exit(process())
}

// process runs the command until it is done or a signal comes. After the first
// signal it ends in good order; a second one ends it at once.
func process() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-signals
		go func() { os.Exit(128 + int((<-signals).(syscall.Signal))) }()
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
	a := &app{in: in, out: printer{out}, err: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	code, said := errors.AsType[exitCode](err)
	if _, more := errors.AsType[*schema.Error](err); err != nil && (more || !said) {
		a.report(err)
	}
	switch {
	case errors.Is(context.Cause(ctx), errInterrupted):
		return exitInterrupt
	case err == nil:
		return schema.ExitOK
	case said:
		return int(code)
	}
	return schema.KindOf(err).Info().Exit
}

// An exitCode ends the command without another word: what there is to say has
// been said.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit %d", int(c)) }

// Causes of the end of the command's context.
var (
	errInterrupted = schema.Errorf(schema.Cancelled, "stopped by SIGINT").With("next", nextStopped)
	errTerminated  = schema.Errorf(schema.Cancelled, "stopped by SIGTERM").With("next", nextStopped)
)

const nextStopped = "what was recorded stays; run the command again if it is still wanted"

// app is what the commands share.
type app struct {
	in  io.Reader
	out io.Writer
	err io.Writer
	dir string
	// What the command line gave, for the next steps that are told.
	dirGiven bool   // by --dir
	reason   string // of --reason
	format   string
	nats     string
	noLog    bool
	policy   string // the file of --policy
	redact   string // the file of --redact
	tools    string // the file of --tools
	asks     bool   // a person at the terminal may be asked
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
		Args:          func(c *cobra.Command, words []string) error { return unknown(c, words) },
		RunE: func(c *cobra.Command, _ []string) error {
			c.SetOut(a.err)
			_ = c.Usage()
			return usage("say what to do")
		},
		SuggestionsMinimumDistance: 2,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(helpCommand())
	f := root.PersistentFlags()
	f.StringVar(&a.dir, "dir", defaultDir(), "the store's folder; $STENO_DIR")
	f.StringVarP(&a.format, "output", "o", "", "table, json or jsonl")
	f.StringVar(&a.nats, "nats", "", "a NATS server: its URL, a NATS context file, or the name of a NATS context")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%s", err).With("next", "run: "+c.CommandPath()+" --help")
	})
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		switch a.format {
		case "", "table", "json", "jsonl":
		default:
			return usage("-o is table, json or jsonl; got %q", a.format)
		}
		abs, err := filepath.Abs(a.dir)
		if err != nil {
			return schema.Errorf(schema.InvalidConfig, "--dir has no absolute form").Cause(err)
		}
		a.dir, a.dirGiven = abs, c.Flags().Changed("dir")
		if f := c.Flags().Lookup("reason"); f != nil {
			a.reason = f.Value.String()
		}
		return nil
	}
	root.AddCommand(a.demoCommand(), a.runCommand(), a.serveCommand(), a.callCommand(), a.toolCommand(), a.sessionCommand(),
		a.verifyCommand(), a.headCommand(), a.repairCommand(), a.replayCommand(), a.leaseCommand(), a.callsCommand(), a.approvalsCommand(), a.exportCommand(),
		a.diffCommand(), a.searchCommand(), a.mcpCommand(), a.doctorCommand(), a.checkCommand(), a.versionCommand())
	placed(root)
	for _, c := range root.Commands() {
		if c.HasSubCommands() && c.RunE == nil { // "session" alone, or with a word that is no command
			c.SuggestionsMinimumDistance = root.SuggestionsMinimumDistance
			c.RunE = unknown
		}
	}
	return root
}

// placed gives the errors of a command line the command that explains it.
func placed(c *cobra.Command) {
	if f := c.RunE; f != nil {
		c.RunE = func(c *cobra.Command, words []string) error {
			err := f(c, words)
			if e, ok := errors.AsType[*schema.Error](err); ok && e.Kind == schema.InvalidArgs {
				switch e.Details["next"] {
				case nil, e.Kind.Info().Next, seeHelp:
					e.With("next", "run: "+c.CommandPath()+" --help")
				}
			}
			return err
		}
	}
	for _, sub := range c.Commands() {
		placed(sub)
	}
}

func defaultDir() string {
	if d := os.Getenv("STENO_DIR"); d != "" {
		return d
	}
	return ".steno"
}

// helpCommand is cobra's, but a word that is no command is an error.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "explain a command", Example: "  steno help run",
		RunE: func(c *cobra.Command, words []string) error {
			about, rest, err := c.Root().Find(words)
			if err != nil || about == nil || len(rest) > 0 {
				return usage("there is no command %q", "steno "+strings.Join(words, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// unknown is what a command says that only has commands below it, when none
// of them is named.
func unknown(c *cobra.Command, words []string) error {
	if len(words) == 0 && !c.HasParent() {
		return nil
	}
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	next := "run: " + c.CommandPath() + " --help"
	if len(words) == 0 {
		return usage("%s needs one of: %s", c.CommandPath(), strings.Join(names, ", ")).With("next", next)
	}
	e := usage("%s has no command %q; it has: %s", c.CommandPath(), words[0], strings.Join(names, ", ")).With("next", next)
	if near := c.SuggestionsFor(words[0]); len(near) > 0 {
		e.With("did_you_mean", near[0])
	}
	return e
}

// usage is a command line that cannot be understood.
func usage(format string, args ...any) *schema.Error {
	return schema.Errorf(schema.InvalidArgs, format, args...).With("next", seeHelp)
}

const seeHelp = "run: steno --help"

// exactly checks the number of words behind a command.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		takes := "no words"
		if len(names) > 0 {
			takes = strings.Join(names, " ")
		}
		return usage("%s takes %s; got %d words", c.CommandPath(), takes, len(args)).With("next", "run: "+c.CommandPath()+" --help")
	}
}

// report writes the error envelope, one line.
func (a *app) report(err error) { fmt.Fprintf(a.err, "%s\n", schema.Envelope(a.local(err))) }

// tellStopping says on a signal what it waits for. The caller calls what it
// returns when there is nothing more to wait for.
func (a *app) tellStopping(signal context.Context, wait time.Duration) (done func() bool) {
	return context.AfterFunc(signal, func() {
		fmt.Fprintf(a.err, "stopping: what runs has %s to end; another signal ends it at once\n", wait)
	})
}

// store opens the store; create makes it if it is not there.
func (a *app) store(create bool) (*journal.Files, error) {
	if err := a.checkDir(); err != nil {
		return nil, err
	}
	f, err := journal.OpenFiles(a.dir, create)
	if err == nil && a.noLog {
		f = f.WithoutLog()
	}
	return f, err
}

// logFlag lets a command that writes a lot do without the commit log.
func (a *app) logFlag(c *cobra.Command) {
	c.Flags().BoolVar(&a.noLog, "no-commit-log", false, "sync the session's file at each append, in place of one log for all sessions")
}

// policyFlag lets a command that may run tools say which calls may run.
func (a *app) policyFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.policy, "policy", "", "a policy: a YAML file that says which calls may run; the README has its form")
}

// readPolicy reads the file of --policy; nil without one.
func (a *app) readPolicy() (*executor.Policy, error) {
	if a.policy == "" {
		return nil, nil
	}
	b, err := os.ReadFile(a.policy)
	if err != nil {
		return nil, schema.Errorf(schema.InvalidConfig, "the policy cannot be read: %s", a.policy).With("next", "check the path of --policy").Cause(err)
	}
	p, err := executor.ParsePolicy(b)
	if err != nil {
		e := schema.AsError(err)
		e.Message = a.policy + ": " + e.Message
		return nil, e.With("next", "mend the file; the README has its form")
	}
	return p, nil
}

// reader opens the store for a command that reads logs through. What it keeps
// of them is little; the limit makes Go collect as early as that needs, and
// where a log needs more there is more.
func (a *app) reader() (*journal.Files, error) {
	debug.SetMemoryLimit(min(debug.SetMemoryLimit(-1), 32<<20))
	return a.store(false)
}

// checkDir tells a mistyped --dir from a disk that fails.
func (a *app) checkDir() error {
	if fi, err := os.Stat(a.dir); err == nil && !fi.IsDir() {
		return schema.Errorf(schema.InvalidConfig, "the store's place, %s, is a file and no folder", a.dir).
			With("next", "name the store's folder with --dir")
	}
	return nil
}

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
