package executor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"steno/executor"
	"steno/executor/redact"
	"steno/schema"
)

func TestFilesOfRedaction(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	short := write("short", "abc\n")
	for i, c := range []struct{ doc, want string }{
		{"version: 2\n", "version"},
		{"version: 1\nkey: [a]\n", "key"},
		{"version: 1\nkeys: ['a b']\n", "a b"},
		{"version: 1\npatterns: [{match: '[0-9]+'}]\n", "in a row"},
		{"version: 1\nenv: [STENO_TEST_NOT_SET]\n", "STENO_TEST_NOT_SET"},
		{"version: 1\nfiles: [" + filepath.Join(dir, "none") + "]\n", "none"},
		{"version: 1\nfiles: [" + short + "]\n", "short"},
	} {
		_, err := executor.LoadRedaction(write(fmt.Sprint(i), c.doc))
		if !errors.Is(err, schema.InvalidConfig) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "abc\n") {
			t.Errorf("%q: %v", c.doc, err)
		}
	}
	if _, err := executor.LoadRedaction(filepath.Join(dir, "gone")); !errors.Is(err, schema.InvalidConfig) {
		t.Errorf("a file that is not there: %v", err)
	}
	whole := write("whole", "first line 1\nsecond line\n")
	write("env", "DB_PASS='hunter-2-hunter'\nMODE=on\n")
	got, err := executor.LoadRedaction(write("good", "version: 1\nkeys: [a]\npatterns: [{name: p, match: abc}]\nfiles: ["+whole+", env]\n"))
	want := redact.Rules{Keys: []string{"a"}, Patterns: []redact.Pattern{{Name: "p", Match: "abc"}},
		Values: []redact.Secret{{Name: whole, Value: "first line 1\nsecond line"}, {Name: "DB_PASS", Value: "hunter-2-hunter"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}
