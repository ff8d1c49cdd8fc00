package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"steno/executor/redact"
	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A ToolsFile is what a file of tools declares.
type ToolsFile struct {
	Tools    []Tool   // each a command
	Commands Commands // how they, and bash, are run
	Servers  []MCPServer
	Workers  Workers // which tools of workers are called
}

// Secrets are the values that tools and servers get, for [redact.Rules]; as of other
// variables those that could be words are left out.
func (f ToolsFile) Secrets() []redact.Secret {
	list := f.Commands.Secrets()
	for _, s := range f.Servers {
		list = append(list, s.secrets...)
	}
	return list
}

// LoadTools reads the tools that a YAML file declares, each a command:
//
//	version: 1
//	commands:                    # optional, and for bash too: see [Commands]
//	  writable: [/home/me/.cache/go-build]   # commands write there and in the workspace, and nowhere else
//	  user: nobody               # commands run as nobody; takes root
//	tools:
//	  - name: word_count
//	    description: Count the words of a text.
//	    argv: [wc, -w]           # run as it stands: no shell, no templates
//	    input:                   # JSON Schema of the arguments
//	      type: object
//	      properties: {text: {type: string}}
//	      required: [text]
//	    output: {type: object}   # optional: JSON Schema of what it prints
//	    tier: 0                  # 3 if it is left out
//	    read_only: true          # it changes nothing
//	    phases: [verifying]      # of the session in which it may run; all if there are none
//	    idempotent: true         # for clients: to call it twice changes nothing more
//	    destructive: false       # for clients: it takes nothing away; true if it is left out
//	    open_world: false        # for clients: it stays on this machine; true if it is left out
//	    repeatable: true         # it may run again when nobody knows what became of a run
//	    escalates: true          # its success makes an edit task of an investigate task
//	    exclusive: true          # no other exclusive tool runs beside it in its session
//	    check: [./was-it-sent]   # asked about a run that was cut short; see below
//	    dry_run: true            # it is run on a dry run too, with STENO_DRY_RUN=1
//	    paths: [{pointer: /file, write: false}]   # arguments that are paths of the workspace
//	    env: [MAIL_HOST]         # variables that it gets besides the usual few
//	    limits: {timeout: 60s, output: 1MiB, cpu: 30s, memory: 512MiB, processes: 64, file_size: 64MiB, files: 256}
//
// The command reads the arguments of the call as one JSON object from its
// standard input. It runs in the workspace, in a process group of its own, with
// the environment of bash: the usual few variables, STENO_SESSION,
// STENO_CALL_ID, STENO_KEY, STENO_ATTEMPT, STENO_EPOCH and STENO_SEQ, and what
// env names. Exit code 0 is a result that is OK, any other one is a result that
// is not. What it prints is the output, standard error in its place between
// standard output. With an output schema, standard output is JSON that must fit
// it once the command says that all is well; standard error is kept apart: its
// lines are told as progress while it runs, and its last 4,000 bytes are in the
// summary, or behind the output of a failure. TMPDIR is an empty folder of its own,
// which is removed afterwards.
//
// check is run, like argv, when an executor died before it had a result: exit code
// 0 says that the run took effect, and what it prints is the result; 1 says that
// it did not, and then it is run again; any other one that nobody knows. It has
// 30 seconds.
//
// A program without a slash is looked up in PATH now, one with a slash that is
// not absolute is beside the file. After limits.timeout (120s, at most 1h) it is
// killed; output above limits.output (64MiB, which is the most) loses its middle.
// Where commands have walls (see [Helper]) each of its processes is ended that
// takes more than limits.cpu of processor time, or writes a file of more than
// limits.file_size, and none has more than limits.files open at a time. All of them
// together have limits.memory and limits.processes, threads counted, where control
// groups can be made; elsewhere memory is bounded for each process (RLIMIT_DATA),
// and processes by the bound that all commands have. What holds is in the tool's
// [ToolInfo].
//
// Servers of the Model Context Protocol are named in the form that its hosts have,
// so a JSON file of such a host can be read too; it needs no version:
//
//	mcpServers:
//	  github:                    # their tools are github_…
//	    command: github-mcp-server   # a program, looked up as those above are
//	    args: [stdio]
//	    env: {GITHUB_TOKEN: "${GITHUB_TOKEN}"}   # of this process; "${NAME:-otherwise}" where it may not be set
//	    cwd: .                   # the folder of this file if it is left out
//	    trust: true              # what the server says of its tools is believed
//	    tools:                   # what you say of them wins; by the names that the server has
//	      create_issue: {tier: 2, repeatable: false, exclusive: true, timeout: 60s}
//	  search:
//	    type: http               # streamable; left out where there is an url
//	    url: https://example.com/mcp
//	    headers: {Authorization: "Bearer ${SEARCH_TOKEN}"}
//
// What a tool of a server may have are tier, read_only, repeatable, idempotent,
// destructive, open_world, exclusive, phases, paths and timeout, as above. Values of
// env and headers are secrets.
//
// What is known of tools that workers host is said by their names; see [Workers]:
//
//	workers:
//	  accept: any                # vouched: only those below; none
//	  tools:
//	    - {name: word_count, tier: 0, read_only: true, timeout: 10s}
//	    - {name: refund, tier: 3, repeatable: true, exclusive: true, phases: [editing]}
//
// What such a tool may have besides are idempotent, destructive, open_world, dry_run
// and paths, as above.
//
// The file is plain YAML of at most 256 KiB. Kind invalid_config says what
// cannot be used and names the line: a key that is not above or stands twice, an
// anchor, a tool that cannot be registered, a program that is not there.
func LoadTools(path string) (ToolsFile, error) {
	failed := func(err *schema.Error) (ToolsFile, error) {
		err.Message = quoted(path) + ": " + err.Message
		return ToolsFile{}, err.With("file", path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return failed(schema.Errorf(schema.InvalidConfig, "it has no absolute path").Cause(err))
	}
	f, err := os.Open(abs)
	if err != nil {
		return failed(schema.Errorf(schema.InvalidConfig, "it cannot be opened: %s", lastWords(err)).Cause(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxYAML+1))
	if err != nil {
		return failed(schema.Errorf(schema.InvalidConfig, "it cannot be read: %s", lastWords(err)).Cause(err))
	}
	file, err := parseTools(text, filepath.Dir(abs))
	if err != nil {
		return failed(schema.AsError(err))
	}
	return file, nil
}

type toolsFile struct {
	Version  int `json:"version"`
	Commands struct {
		Writable []string `json:"writable"`
		User     string   `json:"user"`
	} `json:"commands"`
	Tools   []commandTool       `json:"tools"`
	Servers map[string]mcpEntry `json:"mcpServers"`
	Workers *workersEntry       `json:"workers"`
}

// A commandTool is a tool of the file.
type commandTool struct {
	Name        string         `json:"name"`
	Description string         `json:"description"`
	Argv        []string       `json:"argv"`
	Input       jsontext.Value `json:"input"`
	Output      jsontext.Value `json:"output"`
	Tier        *int           `json:"tier"`
	ReadOnly    bool           `json:"read_only"`
	Repeatable  bool           `json:"repeatable"`
	Idempotent  bool           `json:"idempotent"`
	Destructive *bool          `json:"destructive"`
	OpenWorld   *bool          `json:"open_world"`
	Phases      []string       `json:"phases"`
	Escalates   bool           `json:"escalates"`
	Exclusive   bool           `json:"exclusive"`
	DryRun      bool           `json:"dry_run"`
	Check       []string       `json:"check"`
	Paths       []PathArg      `json:"paths"`
	Env         []string       `json:"env"`
	Limits      struct {
		Timeout  span `json:"timeout"`
		Output   size `json:"output"`
		CPU      span `json:"cpu"`
		FileSize size `json:"file_size"`
		Files    int  `json:"files"`
		Memory   size `json:"memory"`
		Procs    int  `json:"processes"`
	} `json:"limits"`
}

// parseTools is LoadTools for a text that stands in the folder dir.
func parseTools(text []byte, dir string) (ToolsFile, error) {
	var file toolsFile
	if err := readYAML(text, &file); err != nil {
		return ToolsFile{}, err
	}
	how := Commands{Writable: file.Commands.Writable, User: file.Commands.User}
	settled := how.User != "" || how.Writable != nil || file.Workers != nil
	ofHosts := len(file.Servers) > 0 && len(file.Tools) == 0 && !settled // files of hosts have no version
	if file.Version != 1 && (file.Version != 0 || !ofHosts) {
		return ToolsFile{}, schema.Errorf(schema.InvalidConfig, "version: 1 is wanted; got %d", file.Version)
	}
	if err := how.settle(); err != nil {
		return ToolsFile{}, err
	}
	if len(file.Tools) == 0 && len(file.Servers) == 0 && !settled {
		return ToolsFile{}, schema.Errorf(schema.InvalidConfig, "it has no tools")
	}
	reg, err := NewRegistry()
	if err != nil {
		return ToolsFile{}, err
	}
	made := ToolsFile{Commands: how, Tools: make([]Tool, 0, len(file.Tools))}
	for i, c := range file.Tools {
		t, err := c.tool(dir, how)
		if err == nil {
			err = reg.Register(t)
		}
		if err != nil {
			e := schema.AsError(err)
			e.Kind = schema.InvalidConfig // also where a name is taken
			e.Message = fmt.Sprintf("tool %d: %s", i+1, e.Message)
			return ToolsFile{}, e
		}
		made.Tools = append(made.Tools, t)
		made.Commands.Env = append(made.Commands.Env, c.Env...)
	}
	if made.Workers, err = file.Workers.workers(); err != nil {
		return ToolsFile{}, err
	}
	made.Servers, err = servers(file.Servers, dir)
	return made, err
}

const (
	commandDefault = 120 * time.Second
	commandMax     = time.Hour
	// commandRoom is how much longer the runtime waits than a command may take:
	// the command's own limit comes first and says more.
	commandRoom = 10 * time.Second
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (c commandTool) tool(dir string, how Commands) (Tool, error) {
	bad := func(format string, args ...any) (Tool, error) {
		return Tool{}, badTool(Tool{Name: c.Name}, fmt.Sprintf(format, args...))
	}
	argv, err := found(c.Argv, dir)
	if err != nil {
		return bad("argv: %s", err)
	}
	for _, name := range c.Env {
		if !variable.MatchString(name) || strings.HasPrefix(name, "STENO_") || name == "PWD" {
			return bad("env names %s, which cannot be passed on", quoted(name))
		}
	}
	limit, output := commandDefault, MaxOutput
	if n := time.Duration(c.Limits.Timeout); n != 0 {
		limit = n
	}
	if n := int(c.Limits.Output); n != 0 {
		output = n
	}
	if limit < time.Second || limit > commandMax {
		return bad("limits.timeout is 1s to 1h")
	}
	if output < 1<<10 || output > MaxOutput {
		return bad("limits.output is 1KiB to 64MiB")
	}
	bounds := bounds{CPU: uint64(time.Duration(c.Limits.CPU).Seconds()), FileSize: uint64(c.Limits.FileSize), Files: uint64(c.Limits.Files),
		Memory: uint64(c.Limits.Memory), Processes: uint64(c.Limits.Procs)}
	if d := time.Duration(c.Limits.CPU); d != 0 && (d < time.Second || d > commandMax) {
		return bad("limits.cpu is 1s to 1h")
	}
	if n := c.Limits.Files; n != 0 && (n < 16 || n > 1<<20) {
		return bad("limits.files is 16 to 1048576")
	}
	if n := c.Limits.Memory; n != 0 && n < 8<<20 {
		return bad("limits.memory is 8MiB at least")
	}
	if n := c.Limits.Procs; n != 0 && (n < 1 || n > 1<<20) {
		return bad("limits.processes is 1 to 1048576")
	}
	tier := 3
	if c.Tier != nil {
		tier = *c.Tier
	}
	p := program{
		command: command{argv: argv, how: how, apart: c.Output != nil, limit: limit, most: output, bounds: bounds},
		pass:    slices.Clone(c.Env), dryRun: c.DryRun,
	}
	t := Tool{
		Name: c.Name, Description: c.Description, Input: c.Input, Output: c.Output,
		Tier: tier, ReadOnly: c.ReadOnly, Repeatable: c.Repeatable, Phases: c.Phases, Escalates: c.Escalates, Exclusive: c.Exclusive, Paths: c.Paths,
		Idempotent: c.Idempotent, Destructive: c.Destructive, OpenWorld: c.OpenWorld,
		Timeout: limit + commandRoom, asked: limit, DryRun: true, Run: p.run,
		walls: func() string { return confinement(how, bounds) },
	}
	if c.Check == nil {
		return t, nil
	}
	ask := checker{program: p}
	ask.limit = checkTimeout
	if ask.argv, err = found(c.Check, dir); err != nil {
		return bad("check: %s", err)
	}
	if c.Output != nil {
		if ask.output, err = compile(c.Output); err != nil {
			return bad("the schema of its answer: %s", err)
		}
	}
	t.Check = ask.check
	return t, nil
}

// found is argv with the path of its program.
func found(argv []string, dir string) ([]string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("it names no program")
	}
	for _, s := range argv {
		if strings.ContainsRune(s, 0) {
			return nil, errors.New("a zero character cannot be passed to a program")
		}
	}
	path := argv[0]
	if strings.Contains(path, "/") && !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	path, err := exec.LookPath(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be run: %s", quoted(argv[0]), lastWords(err))
	case !filepath.IsAbs(path): // PATH may name folders in other ways
		return nil, fmt.Errorf("%s is found in a folder of PATH that is not absolute", quoted(argv[0]))
	}
	return append([]string{path}, argv[1:]...), nil
}

// A program is what a tool of the file runs.
type program struct {
	command
	pass   []string // names of variables
	dryRun bool     // it knows dry runs
}

func (p program) run(ctx context.Context, call *Invocation) (Result, error) {
	if err := call.runnable(); err != nil {
		return Result{}, err
	}
	if call.DryRun && !p.dryRun {
		return planned(p.argv), nil
	}
	c := p.called(call)
	c.tell = func(line string) { call.Progress(line + "\n") }
	r, err := c.run(ctx, call)
	if err != nil {
		return Result{}, err
	}
	return p.answer(&r, call.DryRun)
}

// called is the command as it is run for call.
func (p program) called(call *Invocation) command {
	c := p.command
	c.stdin = append(slices.Clone(call.Args), '\n')
	for _, name := range p.pass {
		if v, ok := os.LookupEnv(name); ok {
			c.env = append(c.env, name+"="+v)
		}
	}
	if call.DryRun {
		c.env = append(c.env, "STENO_DRY_RUN=1")
	}
	return c
}

// answer is what the tool answers once its command has ended. Without a dry run
// data is still to be held against the schema.
func (p program) answer(r *ran, dry bool) (Result, error) {
	res := r.result()
	if !p.apart {
		return res, nil
	}
	said := r.errs.text()
	if !res.OK {
		res.Output += said // why, most likely
		res.Structured = nil
		return res, nil
	}
	if res.Bytes > 0 {
		return Result{}, schema.Errorf(schema.ToolFailed, "the command ran, and printed %d bytes; %d are the most", res.Bytes, p.most).
			With("next", "look whether it took effect; raise limits.output of the tool, or have it print less")
	}
	res.Structured = jsontext.Value(res.Output)
	if dry && !res.Structured.IsValid() {
		res.Structured = nil // a plan may be anything
	}
	res.Summary = strings.TrimSuffix(res.Summary+"; "+strings.Join(strings.Fields(said), " "), "; ")
	return res, nil
}

// A checker is what a tool of the file asks about an attempt that was cut short.
type checker struct {
	program
	output *jsonschema.Schema // nil if it has none
}

func (p checker) check(ctx context.Context, call *Invocation) (Checked, error) {
	if err := call.runnable(); err != nil {
		return Checked{}, err
	}
	r, err := p.called(call).run(ctx, call)
	switch {
	case err != nil:
		return Checked{}, err
	case r.code == 1:
		return Checked{}, nil
	case r.code != 0:
		return Checked{}, fmt.Errorf("the check ended with exit code %d", r.code)
	}
	res, err := p.answer(&r, false)
	if err == nil && p.output != nil && (!res.Structured.IsValid() || len(violations(p.output, res.Structured, parseStrict)) > 0) {
		err = errors.New("what the check printed does not fit the schema of the answer")
	}
	return Checked{Took: true, Result: res}, err
}
