package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"steno/schema"
)

var executorLine = regexp.MustCompile(`executors +1 is process (\d+), 2 is process (\d+)`)

// executors are the processes that a demo says it has started.
func executors(t *testing.T, p *child) (pids []int) {
	t.Helper()
	p.says("session ")
	m := executorLine.FindStringSubmatch(p.out.String())
	if m == nil {
		t.Fatal("the demo does not name its executors")
	}
	for _, s := range m[1:] {
		pid, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	return lines[len(lines)-1]
}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir, tmp := filepath.Join(t.TempDir(), "demo"), t.TempDir()
	began := time.Now()
	p := launchWith(t, []string{"TMPDIR=" + tmp}, t.TempDir(), "demo", "--dir", dir)
	pids := executors(t, p)

	// What is secret is in a file of the owner's, while it is needed.
	contextFile := filepath.Join(dir, "nats", "context.json")
	b, err := os.ReadFile(contextFile)
	if err != nil {
		t.Fatal(err)
	}
	password := pick(t, string(b), "/password").(string)
	if fi, err := os.Stat(contextFile); err != nil || fi.Mode().Perm() != 0o600 || len(password) < 20 {
		t.Errorf("%v, %v, a password of %d characters", fi, err, len(password))
	}
	for _, pid := range pids {
		line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err == nil && strings.Contains(string(line), password) {
			t.Error("the password is on a command line")
		}
	}

	if code := p.exit(); code != 0 {
		t.Fatalf("exit %d", code)
	}
	t.Logf("the demo took %s", time.Since(began).Round(time.Millisecond))
	out := p.out.String()
	if lastLine(out) != dir {
		t.Errorf("the last line is %q, want %q", lastLine(out), dir)
	}
	for _, want := range []string{"SIGKILL     executor 1, process " + strconv.Itoa(pids[0]), "takeover    executor 2", "call-8      interrupted",
		"call-9      attempt 2", "exit 1", "verify      ok", "replay 1    digest", "replay 2    digest"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if p.err.String() != "" {
		t.Errorf("stderr: %s", &p.err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("executor %d is still there: %v", pid, err)
		}
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), password) {
			t.Errorf("%s holds the password", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}

	t.Run("is judged by its files", func(t *testing.T) {
		var facts demoFacts
		if err := json.Unmarshal([]byte(good(t, "/", "demo", "check", "--dir", dir, "-o", "json")), &facts); err != nil {
			t.Fatal(err)
		}
		if !facts.OK || facts.Calls < 8 || facts.Epochs != 2 || facts.Dir != dir {
			t.Errorf("%+v", facts)
		}
		if digest := pick(t, good(t, "/", "replay", "demo", "-o", "json", "--dir", dir), "/digest"); digest != facts.Digest {
			t.Errorf("replay says %s, the judge %s", digest, facts.Digest)
		}
		// The copy is as good as the original: nothing else decides.
		if _, err := judgeDemo(t.Context(), copyOf(t, dir)); err != nil {
			t.Error(err)
		}
	})
	t.Run("sums and links can be checked by hand", func(t *testing.T) { checkByHand(t, dir) })
	for _, test := range spoilt {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := copyOf(t, dir)
			test.spoil(t, dir)
			_, errOut, code := steno(t, "/", "demo", "check", "--dir", dir)
			if code != test.kind.Info().Exit || code == 0 || pick(t, errOut, "/error/kind") != string(test.kind) {
				t.Errorf("exit %d, %s", code, errOut)
			}
			if next := pick(t, errOut, "/error/details/next").(string); !strings.HasPrefix(next, "run: steno ") || !strings.HasSuffix(next, " --dir "+dir) {
				t.Errorf("next: %s", next)
			}
		})
	}
	t.Run("no changed byte passes", func(t *testing.T) { everyByte(t, copyOf(t, dir)) })
}

const (
	segment1 = "sessions/demo/000001.jsonl"
	segment2 = "sessions/demo/000002.jsonl"
)

// spoilt are folders of a demo that must not pass.
var spoilt = []struct {
	name  string
	kind  schema.Kind
	spoil func(*testing.T, string)
}{
	{"a log without a take-over", schema.ReplayDivergence, func(t *testing.T, dir string) {
		remove(t, dir, segment2)
	}},
	{"a log of one executor", schema.ReplayDivergence, func(t *testing.T, dir string) {
		remove(t, dir, "sessions/demo")
		good(t, dir, "run", filepath.Join(root(t), "testdata/runs/triage.jsonl"), "--session", "demo", "--workspace", t.TempDir(), "--dir", dir)
		for _, name := range replayFiles {
			replayed := good(t, dir, "replay", "demo", "-o", "json", "--dir", dir)
			if err := os.WriteFile(filepath.Join(dir, name), []byte(replayed), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"a changed byte before the kill", schema.CorruptLogLine, func(t *testing.T, dir string) {
		mustChange(t, dir, segment1, "flashes", "flaShes")
	}},
	{"a changed byte after the kill", schema.CorruptLogLine, func(t *testing.T, dir string) {
		mustChange(t, dir, segment2, "interrupted", "interruptEd")
	}},
	{"another digest", schema.ReplayDivergence, func(t *testing.T, dir string) {
		otherDigest(t, dir, replayFiles[1])
	}},
	{"two equal digests of something else", schema.ReplayDivergence, func(t *testing.T, dir string) {
		otherDigest(t, dir, replayFiles[0])
		otherDigest(t, dir, replayFiles[1])
	}},
	{"a replay is missing", schema.ReplayDivergence, func(t *testing.T, dir string) {
		remove(t, dir, replayFiles[0])
	}},
	{"a second notice", schema.ReplayDivergence, func(t *testing.T, dir string) {
		f, err := os.OpenFile(filepath.Join(dir, demoWorkspace, noticesFile), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString("once more\n")
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}},
	{"the end is cut off", schema.ReplayDivergence, func(t *testing.T, dir string) {
		path := filepath.Join(dir, segment2)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		whole := strings.TrimSuffix(string(b), "\n")
		if err := os.Truncate(path, int64(strings.LastIndex(whole, "\n")+1)); err != nil {
			t.Fatal(err)
		}
	}},
}

func remove(t *testing.T, dir, name string) {
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func mustChange(t *testing.T, dir, name, old, text string) {
	if err := change(filepath.Join(dir, name), old, text); err != nil {
		t.Fatal(err)
	}
}

// otherDigest writes a digest into a replay's output that differs in its first
// digit.
func otherDigest(t *testing.T, dir, name string) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	digest := pick(t, string(b), "/digest").(string)
	other := "0" + digest[1:]
	if other == digest {
		other = "1" + digest[1:]
	}
	mustChange(t, dir, name, digest, other)
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "demo")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	// CopyFS leaves the modes to the umask, and the store wants them tight.
	err := filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		} else if err == nil {
			err = os.Chmod(path, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// everyByte changes one byte after the other, a few hundred of them, and judges
// each time.
func everyByte(t *testing.T, dir string) {
	for _, name := range []string{segment1, segment2} {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for i := 0; i < len(b); i += 61 {
			if _, err := f.WriteAt([]byte{b[i] ^ 1}, int64(i)); err != nil {
				t.Fatal(err)
			}
			if _, err := judgeDemo(t.Context(), dir); err == nil {
				t.Fatalf("byte %d of %s was changed, and it passes", i, name)
			}
			if _, err := f.WriteAt(b[i:i+1], int64(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := judgeDemo(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
}

func TestDemoNeedsGo(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("steno")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "demo")
	cmd.Env = []string{"PATH=" + t.TempDir(), "TMPDIR=" + tmp}
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || len(out) > 0 {
		t.Errorf("%v, %s", err, out)
	}
	if pick(t, errOut.String(), "/error/kind") != "command_failed" || !strings.Contains(errOut.String(), "install Go") {
		t.Error(errOut.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDemoCleansUpAfterASignal(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "demo")
	p := launch(t, t.TempDir(), "demo", "--dir", dir)
	pids := executors(t, p)
	p.says("user ")
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != exitInterrupt {
		t.Errorf("exit %d", code)
	}
	if lastLine(p.out.String()) != dir || pick(t, p.err.String(), "/error/kind") != "cancelled" {
		t.Errorf("%s\n%s", &p.out, &p.err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("executor %d is still there: %v", pid, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "nats", "context.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the credentials are still there: %v", err)
	}
	good(t, "/", "verify", "demo", "--dir", dir)
}

// Its executors end in good order even if the demo cannot tell them to.
func TestDemoExecutorsDoNotOutliveIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "demo")
	p := launch(t, t.TempDir(), "demo", "--dir", dir)
	executors(t, p)
	p.says("user ")
	p.signal(syscall.SIGKILL)
	p.exit()
	if !eventually(func() bool {
		out, _, code := steno(t, "/", "lease", "show", "demo", "-o", "json", "--dir", dir)
		return code == 0 && pick(t, out, "/state") == "available"
	}) {
		t.Error("the session is still held")
	}
	good(t, "/", "verify", "demo", "--dir", dir)
}
