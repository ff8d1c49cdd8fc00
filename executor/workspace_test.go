package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unicode/utf8"

	"steno/executor"
	"steno/schema"
)

// onPath gives each file tool's arguments for a path.
var onPath = map[string]func(path string) args{
	"read":   func(p string) args { return args{"path": p} },
	"write":  func(p string) args { return args{"path": p, "content": "overwritten"} },
	"edit":   func(p string) args { return args{"path": p, "old": "text", "new": "overwritten"} },
	"list":   func(p string) args { return args{"path": p} },
	"search": func(p string) args { return args{"path": p, "pattern": "."} },
}

// refused runs every file tool on path and wants this kind of each.
func refused(t *testing.T, b *bench, path string, want schema.Kind) {
	t.Helper()
	for tool, arguments := range onPath {
		res, err := b.do(context.Background(), tool, arguments(path), nil)
		if !errors.Is(err, want) {
			t.Errorf("%s of %.80q: got %q, %v; want kind %s", tool, path, res.Output, err, want)
		}
	}
}

func TestNoFileToolLeavesTheWorkspace(t *testing.T) {
	b := newBench(t)
	b.file("sub/f.txt", "text")
	b.link("../out", "away")
	b.link(filepath.Join(b.out, "f.txt"), "f-away")
	b.link("sub/../../out/f.txt", "f-round")
	b.link("away", "twice")
	b.link("/", "top")
	for _, path := range []string{
		"..", "../", "../out/f.txt", "sub/../../out/f.txt", "./../out/f.txt", "sub//..//..//out/f.txt",
		"/", "/etc/passwd", "//etc/passwd", b.out, b.out + "/f.txt",
		b.dir + "/../out/f.txt", b.dir + "//../out/f.txt", b.dir + "x/f.txt", filepath.Dir(b.dir),
		"away", "away/f.txt", "f-away", "f-round", "twice/f.txt", "top", "top/etc/passwd",
		"sub/f.txt\x00", "\x00", "sub\x00/../../../etc/passwd",
	} {
		refused(t, b, path, schema.OutsideWorkspace)
	}
	if text, err := os.ReadFile(filepath.Join(b.out, "f.txt")); err != nil || string(text) != outsideText {
		t.Errorf("the file outside has %q, %v", text, err)
	}
}

func TestPathsThatAreNoPathsAreInvalid(t *testing.T) {
	b := newBench(t)
	for _, path := range []string{"", strings.Repeat("a/", 3000)} {
		refused(t, b, path, schema.InvalidArgs)
	}
	_, err := b.call("write", args{"path": strings.Repeat("d/", 200) + "f", "content": ""})
	wantKind(t, err, schema.InvalidArgs)
	if _, err := os.Lstat(filepath.Join(b.dir, "d")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folders were made for a path that is refused: %v", err)
	}
}

func TestPathsInsideTheWorkspaceAreAccepted(t *testing.T) {
	b := newBench(t)
	b.file("sub/f.txt", "inside")
	b.link("sub", "way")
	b.link(filepath.Join(b.dir, "sub/f.txt"), "absolute")
	b.link("../sub/./f.txt", "sub/round")
	alias := filepath.Join(b.out, "alias")
	if err := os.Symlink(b.dir, alias); err != nil {
		t.Fatal(err)
	}
	w, err := executor.OpenWorkspace(alias, b.store)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Dir() != b.dir {
		t.Errorf("the folder is %s, want %s", w.Dir(), b.dir)
	}
	for _, path := range []string{
		"sub/f.txt", "./sub//f.txt", "sub/../sub/f.txt", "sub/./f.txt", "way/f.txt", "absolute", "sub/round",
		"way/../sub/f.txt", b.dir + "/sub/f.txt", b.dir + "//sub/./f.txt", alias + "/sub/f.txt",
	} {
		res, err := b.do(context.Background(), "read", args{"path": path}, func(c *executor.Invocation) { c.Workspace = w })
		if err != nil || res.Output != "inside" {
			t.Errorf("%q: %q, %v", path, res.Output, err)
			continue
		}
		if len(res.FilesRead) != 1 || res.FilesRead[0] != "sub/f.txt" {
			t.Errorf("%q: files read %q, want links resolved", path, res.FilesRead)
		}
	}
}

func TestT9SensitiveNamesAreProtected(t *testing.T) {
	b := newBench(t)
	names := []string{
		".env", ".env.local", "server.pem", ".pem", "tls.key", "a.p12", "a.pfx", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519",
		".ssh", ".aws", ".gnupg", ".netrc", ".npmrc", ".pypirc", "credentials", "credentials.json", "secrets",
		".ENV", "Server.PEM", ".Ssh", "ID_RSA", "SECRETS",
		".\u017fsh", ".\u00dfh", "secret\u017f", ".e\u200dnv", ".\uff45nv", "tls.\u212aey", // as file systems fold and skip
	}
	for _, name := range names {
		b.file(filepath.Join("n", name), "text")
		b.file(filepath.Join("d", name, "f.txt"), "text")
		b.link(filepath.Join("n", name), "link")
		refused(t, b, "n/"+name, schema.ProtectedPath)
		refused(t, b, "d/"+name+"/f.txt", schema.ProtectedPath)
		refused(t, b, "d/"+name+"/../f.txt", schema.ProtectedPath)
		refused(t, b, "link", schema.ProtectedPath)
		if err := os.Remove(filepath.Join(b.dir, "link")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.call("write", args{"path": "fresh/folder/.env", "content": ""})
	wantKind(t, err, schema.ProtectedPath)
	if _, err := os.Lstat(filepath.Join(b.dir, "fresh")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folders were made for a path that is refused: %v", err)
	}
	for _, name := range []string{"env", ".environment", "pem", "key.go", "id_rsa.pub", "my-credentials", "secrets.go", "ssh"} {
		b.file(filepath.Join("ok", name), "text")
		if _, err := b.call("read", args{"path": "ok/" + name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if res := b.must("search", args{"pattern": "text", "path": "n"}); member[int](t, res, "matches") != 0 {
		t.Errorf("search looked into sensitive files: %s", res.Output)
	}
}

func TestT27NoFileToolTouchesTheStore(t *testing.T) {
	b := newBench(t)
	b.link("state", "s1")
	b.link(b.store, "s2")
	b.link("../state/sessions/log.jsonl", "sub/log")
	for _, path := range []string{
		"state", "state/", "state/sessions", "state/sessions/log.jsonl", "state/new.txt", "state/../state/new.txt",
		b.store, b.store + "/sessions/log.jsonl", "s1", "s1/sessions/log.jsonl", "s2/new.txt", "sub/log",
	} {
		refused(t, b, path, schema.ProtectedPath)
	}
	if got := b.text("state/sessions/log.jsonl"); got != storeText {
		t.Errorf("the log has %q", got)
	}
	if _, err := os.Lstat(filepath.Join(b.store, "new.txt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made in the store: %v", err)
	}
}

func TestT27ListAndSearchDoNotSeeTheStore(t *testing.T) {
	b := newBench(t)
	b.file("a.txt", "text of a")
	b.link("state", "s1")
	b.link("state/sessions/log.jsonl", "s2")
	if err := os.Link(filepath.Join(b.store, "sessions/log.jsonl"), filepath.Join(b.dir, "hard.txt")); err != nil {
		t.Fatal(err)
	}
	res := b.must("list", nil)
	if res.Output != "a.txt\n" || member[int](t, res, "entries") != 1 {
		t.Errorf("list: %q, %s", res.Output, res.Structured)
	}
	if res := b.must("search", args{"pattern": "text"}); res.Output != "a.txt:1: text of a\n" {
		t.Errorf("search: %q", res.Output)
	}
}

func TestT27TheStoreIsToldByItsInode(t *testing.T) {
	b := newBench(t)
	if err := os.Rename(b.store, filepath.Join(b.dir, "moved")); err != nil {
		t.Fatal(err)
	}
	refused(t, b, "moved/sessions/log.jsonl", schema.ProtectedPath)
	if res := b.must("list", nil); res.Output != "" {
		t.Errorf("list: %q", res.Output)
	}
}

func TestT27AHardLinkToTheStoreIsProtected(t *testing.T) {
	b := newBench(t)
	if err := os.Link(filepath.Join(b.store, "sessions/log.jsonl"), filepath.Join(b.dir, "hard.txt")); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"read", "write", "edit", "search"} {
		_, err := b.do(context.Background(), tool, onPath[tool]("hard.txt"), nil)
		wantKind(t, err, schema.ProtectedPath)
	}
	if got := b.text("state/sessions/log.jsonl"); got != storeText {
		t.Errorf("the log has %q", got)
	}
}

func TestAFileOfSeveralNamesIsReadAndNotWritten(t *testing.T) {
	b := newBench(t)
	if err := os.Link(filepath.Join(b.out, "f.txt"), filepath.Join(b.dir, "hard.txt")); err != nil {
		t.Fatal(err)
	}
	if res := b.must("read", args{"path": "hard.txt"}); res.Output != outsideText {
		t.Errorf("read %q", res.Output)
	}
	for _, tool := range []string{"write", "edit"} {
		_, err := b.call(tool, onPath[tool]("hard.txt"))
		wantKind(t, err, schema.ProtectedPath)
	}
	if text, err := os.ReadFile(filepath.Join(b.out, "f.txt")); err != nil || string(text) != outsideText {
		t.Errorf("the file outside has %q, %v", text, err)
	}
}

func TestOnlyRegularFilesAreReadOrWritten(t *testing.T) {
	b := newBench(t)
	b.file("folder/f.txt", "text")
	if err := syscall.Mkfifo(filepath.Join(b.dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.link("pipe", "to-pipe")
	paths := []string{"folder", ".", "pipe", "to-pipe"}
	// /dev/null's numbers; only root may make a device.
	if err := syscall.Mknod(filepath.Join(b.dir, "device"), syscall.S_IFCHR|0o644, 1<<8|3); err == nil {
		paths = append(paths, "device")
	} else if os.Geteuid() == 0 {
		t.Logf("no device to test with: %v", err)
	}
	for _, path := range paths {
		// None of these may wait for somebody at the other end of the pipe.
		_, err := b.call("read", onPath["read"](path))
		wantKind(t, err, schema.ReadFailed)
		_, err = b.call("edit", onPath["edit"](path))
		wantKind(t, err, schema.ReadFailed)
		_, err = b.call("write", onPath["write"](path))
		wantKind(t, err, schema.WriteFailed)
	}
	_, err := b.call("search", onPath["search"]("pipe"))
	wantKind(t, err, schema.ReadFailed)
	_, err = b.call("list", onPath["list"]("pipe"))
	wantKind(t, err, schema.ReadFailed)
	if res := b.must("search", args{"pattern": "text"}); res.Output != "folder/f.txt:1: text\n" {
		t.Errorf("search: %q", res.Output)
	}
}

func TestWhatIsNotThereIsMissing(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "text")
	b.link("nowhere", "dangling")
	for _, path := range []string{"gone", "gone/f.txt", "f.txt/below", "dangling", "gone/../f.txt"} {
		for _, tool := range []string{"read", "edit", "list", "search"} {
			_, err := b.call(tool, onPath[tool](path))
			if e := wantKind(t, err, schema.ResourceMissing); strings.Contains(e.Message, b.dir) {
				t.Errorf("the message shows a path of the machine: %s", e.Message)
			}
		}
	}
	for _, path := range []string{"f.txt/below", "gone/../x.txt"} {
		_, err := b.call("write", onPath["write"](path))
		wantKind(t, err, schema.ResourceMissing)
	}
}

func TestLinksThatGoRoundEnd(t *testing.T) {
	b := newBench(t)
	b.link("b", "a")
	b.link("a", "b")
	b.link("self/x", "self")
	for _, path := range []string{"a", "a/f", "self"} {
		_, err := b.call("read", args{"path": path})
		wantKind(t, err, schema.ReadFailed)
	}
}

// TestASwappedFolderDoesNotLeadOut has a folder turn into a link and back all
// the time, to catch a walk between its look at the folder and its step into it.
func TestASwappedFolderDoesNotLeadOut(t *testing.T) {
	for name, target := range map[string]string{"outside": "../out", "into the store": "state/sessions"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.file("real/f.txt", "inside")
			b.link(target, "link")
			if err := os.WriteFile(filepath.Join(b.store, "sessions/f.txt"), []byte(storeText), 0o600); err != nil {
				t.Fatal(err)
			}
			var stop atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				real, link, now := filepath.Join(b.dir, "real"), filepath.Join(b.dir, "link"), filepath.Join(b.dir, "now")
				for !stop.Load() {
					err := errors.Join(os.Rename(real, now), os.Rename(now, real), os.Rename(link, now), os.Rename(now, link))
					if err != nil {
						t.Error(err)
						return
					}
				}
			}()
			for range 30_000 {
				res, err := b.do(context.Background(), "read", args{"path": "now/f.txt"}, nil)
				if err == nil && res.Output != "inside" {
					t.Errorf("read %q", res.Output)
					break
				}
			}
			for range 1000 {
				// The file inside has no such text, the others have.
				_, err := b.do(context.Background(), "edit", args{"path": "now/f.txt", "old": "text", "new": "changed"}, nil)
				if err == nil {
					t.Error("edited what is not inside")
					break
				}
			}
			stop.Store(true)
			<-done
		})
	}
}

func TestOpenWorkspaceRefusesWhatItCannotGuard(t *testing.T) {
	b := newBench(t)
	for name, c := range map[string]struct {
		dir, protect string
		want         schema.Kind
	}{
		"not there":       {filepath.Join(b.dir, "gone"), b.store, schema.ResourceMissing},
		"a file":          {filepath.Join(b.out, "f.txt"), b.store, schema.ResourceMissing},
		"the store":       {b.store, b.store, schema.ProtectedPath},
		"in the store":    {filepath.Join(b.store, "sessions"), b.store, schema.ProtectedPath},
		"store not there": {b.dir, filepath.Join(b.dir, "gone"), schema.InvalidConfig},
		"store is a file": {b.dir, filepath.Join(b.out, "f.txt"), schema.InvalidConfig},
	} {
		w, err := executor.OpenWorkspace(c.dir, c.protect)
		if err == nil {
			w.Close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want kind %s", name, err, c.want)
		}
	}
}

func TestToolsNeedAWorkspace(t *testing.T) {
	b := newBench(t)
	for tool, arguments := range onPath {
		_, err := b.do(context.Background(), tool, arguments("f.txt"), func(c *executor.Invocation) { c.Workspace = nil })
		if !errors.Is(err, schema.OutsideWorkspace) {
			t.Errorf("%s: %v", tool, err)
		}
	}
	_, err := b.do(context.Background(), "bash", args{"command": "true"}, func(c *executor.Invocation) { c.Workspace = nil })
	wantKind(t, err, schema.CommandFailed)
}

func TestToolsOfAClosedWorkspaceFail(t *testing.T) {
	b := newBench(t)
	b.file("f.txt", "text")
	w, err := executor.OpenWorkspace(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for tool, arguments := range onPath {
		if _, err := b.do(context.Background(), tool, arguments("f.txt"), func(c *executor.Invocation) { c.Workspace = w }); err == nil {
			t.Errorf("%s works", tool)
		}
	}
}

// FuzzPath looks for a path that reads or writes what it should not.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"f.txt", "../out/f.txt", "a/../..", "way/../../out/f.txt", "state/sessions/log.jsonl", "s/./sessions//log.jsonl", "new/f", "\x00", ".ssh/f"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if !utf8.ValidString(path) {
			return // no JSON can say it
		}
		b := newBench(t)
		b.file("a/f.txt", "inside")
		b.link("a", "way")
		b.link("state", "s")
		b.link("../out", "away")
		res, err := b.do(context.Background(), "read", args{"path": path}, nil)
		if err == nil && res.Output != "inside" {
			t.Errorf("%q reads %q", path, res.Output)
		}
		_, _ = b.do(context.Background(), "write", args{"path": path, "content": "w"}, nil)
		if text, err := os.ReadFile(filepath.Join(b.out, "f.txt")); err != nil || string(text) != outsideText {
			t.Errorf("%q: the file outside has %q, %v", path, text, err)
		}
		if got := b.text("state/sessions/log.jsonl"); got != storeText {
			t.Errorf("%q: the log has %q", path, got)
		}
		for _, dir := range []string{b.out, b.store, filepath.Dir(b.dir)} {
			list, err := os.ReadDir(dir)
			if want := map[string]int{b.out: 1, b.store: 1, filepath.Dir(b.dir): 2}[dir]; err != nil || len(list) != want {
				t.Errorf("%q: %s has %v, %v", path, dir, list, err)
			}
		}
	})
}
