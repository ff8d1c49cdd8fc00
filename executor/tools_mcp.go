package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"steno/executor/redact"
	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
)

// An MCPServer is a server of the Model Context Protocol that a tools file names;
// package executor/mcp speaks with it. It is either a program that is started and
// spoken to over its standard input and output, or one that is reached by HTTP.
type MCPServer struct {
	Name string // as the file has it; see [schema.ToolName] for what becomes of it in names of tools

	Argv []string // of a program: its absolute path and its arguments
	Env  []string // NAME=value, besides the usual few variables
	Dir  string   // its working folder

	URL     string // of one that is reached by HTTP
	Headers map[string]string

	// Trust says that what the server says of its tools is believed: that they
	// change nothing, or that a second call does no harm.
	Trust bool
	// Tools is what the operator says of tools, by the names that the server has
	// for them. It wins over what the server says.
	Tools map[string]MCPTool

	secrets []redact.Secret
}

// An MCPTool is what an operator says of a tool; what is nil, empty or zero stays
// as it was.
type MCPTool struct {
	Tier        *int      `json:"tier"`
	ReadOnly    *bool     `json:"read_only"`
	Repeatable  *bool     `json:"repeatable"`
	Idempotent  *bool     `json:"idempotent"`
	Destructive *bool     `json:"destructive"`
	OpenWorld   *bool     `json:"open_world"`
	Exclusive   *bool     `json:"exclusive"`
	Phases      []string  `json:"phases"`
	Paths       []PathArg `json:"paths"`
	Timeout     span      `json:"timeout"`
}

// Over puts what the operator says over what is said of t.
func (m MCPTool) Over(t *Tool) {
	if m.Tier != nil {
		t.Tier = *m.Tier
	}
	for _, f := range []struct {
		says *bool
		of   *bool
	}{{m.ReadOnly, &t.ReadOnly}, {m.Repeatable, &t.Repeatable}, {m.Idempotent, &t.Idempotent}, {m.Exclusive, &t.Exclusive}} {
		if f.says != nil {
			*f.of = *f.says
		}
	}
	if m.Destructive != nil {
		t.Destructive = m.Destructive
	}
	if m.OpenWorld != nil {
		t.OpenWorld = m.OpenWorld
	}
	if m.Phases != nil {
		t.Phases = m.Phases
	}
	if m.Paths != nil {
		t.Paths = m.Paths
	}
	if m.Timeout != 0 {
		t.Timeout = time.Duration(m.Timeout)
	}
}

// A mcpEntry is a server of the file, in the form that hosts of the protocol have.
type mcpEntry struct {
	Type    string             `json:"type"`
	Command string             `json:"command"`
	Args    []string           `json:"args"`
	Env     map[string]filled  `json:"env"`
	Cwd     string             `json:"cwd"`
	URL     string             `json:"url"`
	Headers map[string]filled  `json:"headers"`
	Trust   bool               `json:"trust"`
	Tools   map[string]MCPTool `json:"tools"`
}

// servers are those of the file, sorted by name: a mapping has no order.
func servers(entries map[string]mcpEntry, dir string) ([]MCPServer, error) {
	list := make([]MCPServer, 0, len(entries))
	prefixes := map[string]string{GatewayServer: "that a gateway has"}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		s, err := entries[name].server(name, dir)
		if err != nil {
			return nil, schema.Errorf(schema.InvalidConfig, "the MCP server %s: %s", quoted(name), err).With("server", shorten(name, maxShown))
		}
		prefix := schema.ToolName(name)
		for other, of := range prefixes { // a tool b_c of a would be called as c of a_b
			if strings.HasPrefix(prefix+"_", other+"_") || strings.HasPrefix(other+"_", prefix+"_") {
				return nil, schema.Errorf(schema.InvalidConfig, "the MCP servers %s and %s could both have a tool %s_…", quoted(of), quoted(name), max(prefix, other)).
					With("next", "give one of them another name")
			}
		}
		prefixes[prefix] = name
		list = append(list, s)
	}
	return list, nil
}

// GatewayServer is the name that a gateway gives to a server that no file names: its
// tools are mcp_… in the log. No server of a file has it.
const GatewayServer = "mcp"

// maxServerName leaves room for the names of tools.
const maxServerName = 40

func (e mcpEntry) server(name, dir string) (MCPServer, error) {
	s := MCPServer{Name: name, Trust: e.Trust, Tools: e.Tools}
	bad := func(format string, args ...any) (MCPServer, error) { return MCPServer{}, fmt.Errorf(format, args...) }
	if name == "" || len(name) > maxServerName {
		return bad("a name has 1 to %d bytes", maxServerName)
	}
	byHTTP := false
	switch e.Type {
	case "":
		byHTTP = e.URL != ""
	case "stdio":
	case "http", "streamable-http":
		byHTTP = true
	default:
		return bad("there is no type %s; there are stdio and http (streamable)", quoted(e.Type))
	}
	for _, tool := range slices.Sorted(maps.Keys(e.Tools)) {
		if err := e.Tools[tool].check(); err != nil {
			return bad("%s: %s", quoted(tool), err)
		}
	}
	if byHTTP {
		if e.Command != "" || e.Args != nil || e.Env != nil || e.Cwd != "" {
			return bad("command, args, env and cwd are for a program, and this one is reached by HTTP")
		}
		if err := checkURL(e.URL, len(e.Headers) > 0); err != nil {
			return bad("url: %s", err)
		}
		s.URL, s.Headers = e.URL, map[string]string{}
		for _, key := range slices.Sorted(maps.Keys(e.Headers)) {
			v := e.Headers[key]
			if !headerName.MatchString(key) || strings.ContainsAny(v.text, "\r\n\x00") {
				return bad("headers: %s is no header", quoted(key))
			}
			s.Headers[key] = v.text
			s.secret(name, key, v)
		}
		return s, nil
	}
	if e.URL != "" || e.Headers != nil {
		return bad("url and headers are for a server that is reached by HTTP, and this one is a program")
	}
	var err error
	if s.Argv, err = found(append([]string{e.Command}, e.Args...), dir); err != nil {
		return bad("command: %s", err)
	}
	if s.Dir = dir; e.Cwd != "" {
		if s.Dir = e.Cwd; !filepath.IsAbs(s.Dir) {
			s.Dir = filepath.Join(dir, s.Dir)
		}
	}
	if info, err := os.Stat(s.Dir); err != nil || !info.IsDir() {
		return bad("cwd: %s is no folder", quoted(s.Dir))
	}
	for _, key := range slices.Sorted(maps.Keys(e.Env)) {
		v := e.Env[key]
		if !variable.MatchString(key) || strings.HasPrefix(key, "STENO_") || key == "PWD" || strings.ContainsRune(v.text, 0) {
			return bad("env: %s cannot be set", quoted(key))
		}
		s.Env = append(s.Env, key+"="+v.text)
		s.secret(name, key, v)
	}
	return s, nil
}

// check says whether what the operator says can be said of a tool.
func (m MCPTool) check() error {
	t := Tool{Name: "tool", Description: "A tool.", Input: jsontext.Value(`{"type":"object"}`),
		Run: func(context.Context, *Invocation) (Result, error) { return Result{}, nil }}
	m.Over(&t)
	if d := time.Duration(m.Timeout); d != 0 && (d < time.Second || d > commandMax) {
		return errors.New("timeout is 1s to 1h")
	}
	if _, err := NewRegistry(t); err != nil {
		_, why, _ := strings.Cut(schema.AsError(err).Message, "registered: ")
		return errors.New(why)
	}
	return nil
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")

// checkURL says whether a server can be reached there. What is secret in a header
// does not leave this machine in the clear.
func checkURL(text string, secrets bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("it is to be http://… or https://…")
	case u.User != nil:
		return errors.New("it holds a password: put that into headers, as Authorization: Basic …")
	case u.Scheme == "http" && secrets && !loopback(u.Hostname()):
		return errors.New("headers go to another machine by https:// only")
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// secret notes what is not to come back in a record or a log: the value, the word
// at its end, as of "Bearer …", and what was filled in.
func (s *MCPServer) secret(server, key string, v filled) {
	words := append([]string{v.text, v.text[strings.LastIndexByte(v.text, ' ')+1:]}, v.values...)
	slices.Sort(words)
	for _, w := range slices.Compact(words) {
		if redact.LooksSecret(w) {
			s.secrets = append(s.secrets, redact.Secret{Name: server + "/" + key, Value: w})
		}
	}
}

// A filled value has its ${NAME} replaced by variables of this process.
type filled struct {
	text   string
	values []string // of the variables
}

var reference = regexp.MustCompile(`\$\{([^}]*)\}`)

func (f *filled) UnmarshalText(text []byte) error {
	var err error
	f.text = reference.ReplaceAllStringFunc(string(text), func(ref string) string {
		name, otherwise, has := strings.Cut(ref[2:len(ref)-1], ":-")
		v, set := os.LookupEnv(name)
		switch {
		case !variable.MatchString(name):
			err = fmt.Errorf("%s names no variable", quoted(ref))
		case !set && !has:
			err = fmt.Errorf("the variable %s is not set", name)
		case !set:
			v = otherwise
		default:
			f.values = append(f.values, v)
		}
		return v
	})
	return err
}
