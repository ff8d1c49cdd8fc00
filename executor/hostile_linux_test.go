package executor_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"steno/executor"
	"steno/journal/journaltest"
	"steno/schema"

	"github.com/go-json-experiment/json"
)

// Each of these commands ends in its kind and in time, as a tool of a file and
// through bash, within walls and without, and the log stays whole: the place
// verifies it at the end.
func TestHostileCommandsEndInTheirKind(t *testing.T) {
	const holds = "exec 9>lifeline; echo up >&9; "
	cases := []struct {
		name, line string
		kind       schema.Kind // "" for a result
		code       int
		output     string // what is in it
		bytes      int    // that were said, if not all are recorded
		lives      bool   // it holds the lifeline, and must be gone
	}{
		{name: "children without end", line: holds + "i=0; while [ $i -lt 200 ]; do sh -c 'sleep 1000 & sleep 1000' & i=$((i+1)); done; wait", kind: schema.Timeout, lives: true},
		{name: "a grandchild of its own session", line: "mkfifo gate; setsid sh -c 'echo $$ >pid; echo go >gate; exec sleep 1000' & read x <gate; echo done", output: "done\n"},
		{name: "endless output", line: "exec yes", kind: schema.Timeout, output: "y\ny\n"},
		{name: "a pipe that is held", line: holds + "sleep 1000 & echo done", output: "done\n", lives: true},
		{name: "signals that are ignored", line: "trap '' HUP INT QUIT TERM PIPE; " + holds + "while :; do sleep 1000; done", kind: schema.Timeout, lives: true},
		{name: "4 GB", line: "echo first; yes | head -c " + strconv.Itoa(flood-len("first\n")), output: "first\ny\n", bytes: flood},
		{name: "text that is not UTF-8", line: `printf 'a\377\303\050\355\240\200'`, output: "a\uFFFD(\uFFFD"},
		{name: "text for a terminal", line: `printf 'a\033[2J\033]0;x\007\342\200\256b\r\b'`, output: "a\x1b[2J\x1b]0;x\a\u202eb\r\b"},
		{name: "such text of one that is killed", line: `printf '\033[2J\377\342\200\256'; exec sleep 1000`, kind: schema.Timeout, output: "\x1b[2J\uFFFD\u202e"},
		{name: "its own group", line: "kill -KILL 0", code: 137},
		{name: "a closed output", line: "exec >&- 2>&-; sleep 0; exit 4", code: 4},
		{name: "no end of its input", line: "cat >/dev/null; exec sleep 1000", kind: schema.Timeout},
	}
	p := newPlace(t, journaltest.NATSOptions{})
	var file strings.Builder
	file.WriteString("version: 1\ntools:\n")
	for i, c := range cases {
		file.WriteString(shell("t"+strconv.Itoa(i), c.line, "    limits: {timeout: "+patience(c.kind, c.bytes).String()+", output: 64KiB}"))
	}
	path := filepath.Join(t.TempDir(), "tools.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	declared, err := executor.LoadTools(path)
	if err != nil {
		t.Fatal(err)
	}
	tools := append(declared.Tools, executor.Builtin()...)
	for _, tool := range tools {
		tool = executor.Bare(tool)
		tool.Name = "bare-" + tool.Name
		tools = append(tools, tool)
	}
	n := p.node(tools)
	for i, c := range cases {
		for _, tool := range []string{"t" + strconv.Itoa(i), "bash", "bare-t" + strconv.Itoa(i), "bare-bash"} {
			if strings.HasSuffix(tool, "bash") && c.bytes > 0 {
				continue // what bash does with a flood is shown elsewhere; it would record 64 MiB
			}
			t.Run(c.name+" "+tool, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				session := "s" + strconv.Itoa(i) + tool
				if _, err := n.client.Open(within(t), executor.OpenRequest{Session: session, Workspace: b.dir}); err != nil {
					t.Fatal(err)
				}
				var l *lifeline
				if c.lives {
					l = b.lifeline()
				}
				args, limit := `{}`, patience(c.kind, c.bytes)
				if strings.HasSuffix(tool, "bash") {
					args = `{"command":` + strconv.Quote(c.line) + `,"timeout_s":` + strconv.Itoa(int(limit.Seconds())) + `}`
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), limit+journaltest.Deadline)
				defer cancel()
				a, err := n.client.Call(ctx, session, request("c1", tool, args))
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > limit+journaltest.Deadline/2 {
					t.Errorf("it took %v", took)
				}
				if l != nil {
					l.up()
					l.gone()
				}
				if pid, err := strconv.Atoi(strings.TrimSpace(readIf(filepath.Join(b.dir, "pid")))); err == nil && strings.HasPrefix(tool, "bare-") {
					_ = syscall.Kill(pid, syscall.SIGKILL) // what is left there is ours to end
				}
				var r struct {
					OK       bool   `json:"ok"`
					Output   string `json:"output"`
					ExitCode int    `json:"exit_code"`
					Error    struct {
						Kind    schema.Kind `json:"kind"`
						Details struct {
							Output string `json:"output"`
						} `json:"details"`
					} `json:"error"`
					Truncated struct {
						Bytes int `json:"bytes"`
					} `json:"truncated"`
				}
				if err := json.Unmarshal(a.Data, &r); err != nil {
					t.Fatal(err)
				}
				output := r.Output
				if c.kind != "" {
					output = r.Error.Details.Output
				}
				if r.Error.Kind != c.kind || r.ExitCode != c.code || r.OK != (c.kind == "" && c.code == 0) || r.Truncated.Bytes != c.bytes || !strings.HasPrefix(output, c.output) {
					t.Errorf("got %.1000s", a.Data)
				}
			})
		}
	}
}

// patience is the limit of a command that must end, or must not. One that says
// much ends whenever the machine has got that far.
func patience(k schema.Kind, bytes int) time.Duration {
	switch {
	case k == schema.Timeout:
		return 2 * time.Second
	case bytes > 0:
		return 10 * time.Minute
	}
	return time.Minute
}

// readIf is the text of a file, "" if it is not there.
func readIf(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
