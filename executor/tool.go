package executor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"strconv"
	"syscall"
	"time"

	"steno/schema"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Tool is something an agent may call. The zero values of its flags are the
// safe ones: not repeatable and not read-only.
//
// Run may be called from many goroutines at the same time, for one session or
// for many. It returns an error only if the tool refuses or could not do its
// work. A *schema.Error is shown to the agent as it is; of any other error the
// agent sees only that there was one. A command that ran and exited non-zero
// has not failed: that is a Result with OK false. A structured answer that does
// not fit Output is tool_failed. A [Question] is asked a person. When ctx ends, Run stops what it has begun and
// returns kind timeout or cancelled.
//
// [Define] makes a Tool of a function.
type Tool struct {
	Name        string         // 1–64 of [A-Za-z0-9_-]
	Original    string         // its name where it comes from, if Name was made of that with [schema.ToolName]; shown and recorded, decides nothing
	Description string         // what it does and when to use it, for the model; required
	Input       jsontext.Value // JSON Schema of the arguments, of type object; see [Registry.Register]
	Output      jsontext.Value // JSON Schema of the structured answer, of type object; nil if there is none
	Repeatable  bool           // a second attempt may follow one whose outcome is unknown
	ReadOnly    bool           // it changes nothing
	Tier        int            // 0 read, 1 workspace edit, 2 tests and linters, 3 arbitrary command; 4 and above is never granted
	Idempotent  bool           // a second call with the same arguments changes nothing more; shown to clients, decides nothing
	Destructive *bool          // it may take away what was there; nil is not said, and shown as true; decides nothing
	OpenWorld   *bool          // it reaches beyond this machine; nil is not said, and shown as true; decides nothing
	Phases      []string       // of the session in which it may run; none is all
	Escalates   bool           // its success makes an edit task of an investigate task
	Paths       []PathArg      // which arguments are paths of the workspace
	Exclusive   bool           // no other call of an exclusive tool runs beside it in its session
	Timeout     time.Duration  // the longest an attempt may take; [DefaultTimeout] if zero

	// Program says what a call runs, for a tool that runs programs: a person may
	// grant one of them. "" if it cannot be told. Nil: a grant is for the tool.
	Program func(args jsontext.Value) string

	// Check says what became of an attempt that was cut short: that it took
	// effect, and then what its result is, or that it did not, and then another
	// attempt follows. An error says that it cannot tell; the outcome then stays
	// open. It changes nothing, and has 30 seconds. nil if the tool cannot be asked.
	Check func(ctx context.Context, call *Invocation) (Checked, error)

	// Available says whether the tool is there for a session now; it always is
	// if this is nil. It is asked often and must not wait for anything.
	Available func(s Session) bool
	// Ready says why no session can call the tool now, as when the server that hosts
	// it is away: an error that may pass, of kind unavailable. It is asked often and
	// must not wait for anything. nil if the tool is always there.
	Ready func() error
	// Host says where the tool comes from, if it is not of this process; it is shown
	// to people and decides nothing.
	Host Host
	// DryRun says that Run knows dry runs. A dry run of any other tool is
	// answered with its name and arguments, and Run is not called.
	DryRun bool

	Run func(ctx context.Context, call *Invocation) (Result, error)
	// Bind stands in place of Run for a tool that has an instance for each
	// session, so that what it keeps is never shared between sessions. It is
	// called when a session first needs it, with the context of that call, which
	// is not to be kept. After an error the next call of the session tries again.
	Bind func(ctx context.Context, s Session) (Instance, error)
	// Close is called by [Registry.Close]; it may be nil.
	Close func() error

	bad   error              // why Define could not make it
	of    *registered        // what it is in its registry
	asked time.Duration      // the limit of its command, above which Timeout has some room; 0 is Timeout
	walls func() string      // what is around the commands that it runs; nil if it runs none
	hosts func() *WorkerInfo // its workers; nil if it has none
}

// A Host is where a tool comes from.
type Host struct {
	Server  string `json:"server"`           // as the operator calls it
	Trusted bool   `json:"trusted,omitzero"` // what the server says of it is believed
}

// An Invocation is one attempt at one call, as it was recorded. The tool must
// not change it.
type Invocation struct {
	Session string // id of the session
	CallID  string // id of the call, unique in the session
	Key     string // idempotency key: the caller's, else the call id
	Attempt int    // from 1

	// Epoch and Seq are the fencing token: the epoch of the writer and the
	// number of the tool_started event. A system that a tool writes to can
	// refuse a token lower than one it has seen.
	Epoch, Seq uint64

	Args      jsontext.Value // valid against the tool's Input, as recorded
	Context   jsontext.Value // what the application says about the call, or nil; never the model's words
	Actor     Actor          // on whose behalf, as the application says; zero if it does not
	DryRun    bool           // say what would be done, and change nothing
	Workspace *Workspace     // nil if the session has none
	of        *session       // whose call it is; nil for one of a test
	says      *speech        // its progress; nil where nobody is told
	tell      func(string)   // that of a call in a worker, in place of says
	noFolder  error          // why it has one that cannot be used now
	log       *slog.Logger   // of operators; nil discards
	bare      bool           // its command goes without walls; set by tests only
	state     func() jsontext.Value
}

// MaxOutput is the most bytes that a tool may give as output, as content and as
// structured data. Longer output loses its middle, longer data is left out, and
// the record says so. What is above schema.MaxInline is kept whole as a blob,
// and the agent is shown its beginning and its end.
const MaxOutput = 64 << 20

// MaxWindow is the most bytes of text that the built-in tools for files show at
// once. With what JSON adds it stays below schema.MaxInline, as a rule: the
// agent is shown all of it.
const MaxWindow = 224 << 10

// A Result is what a tool answers.
type Result struct {
	OK         bool           // false if the tool ran and the answer is no, as with a non-zero exit
	Output     string         // what the model may see
	Bytes      int            // of the whole output, where Output holds only part of it
	limit      int            // to which the tool has cut it, if not MaxOutput
	replaced   int            // characters of it that were no Unicode, where they are replaced already
	ExitCode   *int           // of a command; 128+n if signal n ended it
	Summary    string         // one line for people
	Content    jsontext.Value // content blocks, or nil
	Structured jsontext.Value // the answer as data, or nil
	Artifacts  jsontext.Value // what it has made and where it is, at most 64 KiB of JSON, or nil
	Meta       jsontext.Value // what the tool's protocol says beside the answer, at most 64 KiB of JSON, or nil
	// Patch is a merge patch (RFC 7396) of the session's working state, or nil.
	// It is recorded in one write with the result, and not of a dry run.
	Patch jsontext.Value

	// FilesRead and FilesChanged are paths from the workspace, links resolved.
	FilesRead, FilesChanged []string

	Terminate bool // the agent's turn ends with this result
}

// Builtin returns the tools that steno brings along: read, write, edit, list,
// search and bash. They need a [Workspace].
func Builtin() []Tool { return Commands{}.Builtin() }

func fileTools() []Tool {
	list := []Tool{readTool(), writeTool(), editTool(), listTool(), searchTool()}
	for i := range list {
		list[i].Run = patient(list[i].Run)
	}
	return list
}

// decodeArgs fills a T from the arguments of a call. The schema has let them
// pass, but it takes 1.0 for an integer and has no bound where Go has one, so
// this can still find them invalid.
func decodeArgs[T any](call *Invocation) (T, error) {
	var args T
	err := json.Unmarshal(call.Args, &args)
	if err == nil {
		return args, nil
	}
	pointer, message := "", "cannot be understood"
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		pointer = string(e.JSONPointer)
		if e.GoType != nil {
			message = "must fit into " + e.GoType.String()
		}
	}
	return args, invalidArg(pointer, message).Cause(err)
}

// invalidArg is kind invalid_args about one place in the arguments.
func invalidArg(pointer, message string) *schema.Error {
	return invalidArgs([]Violation{{pointer, message}}, 0)
}

// folder is the call's workspace.
func (call *Invocation) folder() (*Workspace, error) {
	if call.noFolder != nil {
		return nil, call.noFolder
	}
	if call.Workspace == nil {
		return nil, noWorkspace()
	}
	return call.Workspace, nil
}

// nextWorkspace is the next step where a session has none: it cannot be given one
// later.
const nextWorkspace = "open another session, with a workspace; this one stays without"

func noWorkspace() error {
	return schema.Errorf(schema.OutsideWorkspace, "the session has no workspace, so no path is inside it").With("next", nextWorkspace)

}

// ctxError is nil while ctx lives, and then kind timeout or cancelled.
func ctxError(ctx context.Context) error {
	err := ctx.Err()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return schema.Errorf(schema.Timeout, "the deadline passed").Cause(err)
	}
	return schema.Errorf(schema.Cancelled, "cancelled").Cause(err)
}

// fileError is a failure of the operating system at path, as kind k; a missing
// file or folder is resource_missing whatever k is. The system's error may hold
// paths of this machine, so only its last words are shown.
func fileError(k schema.Kind, path, what string, err error) error {
	if e, ok := errors.AsType[*schema.Error](err); ok {
		return e
	}
	if noFiles(err) {
		return tooManyFiles(err)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return schema.Errorf(schema.ResourceMissing, "%s is not there", quoted(path)).With("path", shorten(path, maxShown)).Cause(err)
	}
	return schema.Errorf(k, "%s %s", quoted(path), what).
		With("path", shorten(path, maxShown)).With("cause", lastWords(err)).Cause(err)
}

// lastWords is the innermost text of err, such as "permission denied".
func lastWords(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return shorten(err.Error(), maxShown)
		}
		err = inner
	}
}

// maxShown is how many bytes of a caller's text an error repeats.
const maxShown = 200

func quoted(s string) string { return strconv.Quote(shorten(s, maxShown)) }

// asJSON is v as JSON. File names need not be UTF-8, JSON must be.
func asJSON(v any) jsontext.Value {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(err) // v is a struct of this package; it always has a JSON form
	}
	return b
}
