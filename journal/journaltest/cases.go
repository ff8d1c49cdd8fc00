package journaltest

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/schema"
)

// A Case is a folder of testdata/cases: a fault and its right outcome. The
// README there says what each key means.
type Case struct {
	Name, Dir string
	CaseLog
	More      []CaseLog
	Values    []CaseValue
	Lease     json.RawMessage
	Tools     map[string]struct{ Repeatable bool }
	Resume    map[string]string
	Scenario  string
	DigestAs  string   `json:"digest_as"`
	ViewOrder []string `json:"view_order"`
	ViewPairs bool     `json:"view_pairs_are_whole"`
	Verify    *struct {
		Head  string
		Error schema.Kind
	} `json:"verify_head"`
	Follower []struct {
		File   string
		Events int
		Offset int64
	}
}

// A CaseLog is what must be said of one session of a case.
type CaseLog struct {
	Log, Session string
	Events       int
	EventsOr     []int `json:"events_or"`
	Findings     []CaseFinding
	MayFind      []CaseFinding `json:"may_find"`
	Strict       struct {
		OK      bool
		Kind    schema.Kind
		Reason  schema.Reason
		Segment uint64
		Line    int
	}
	Calls      map[string]string
	Errors     map[string]schema.Kind
	Superseded []string
	View       []string // texts of messages and ids of calls
	Head       *schema.Head
	MayAppend  any          `json:"may_append"` // true, false or "forced"
	Recovered  *CaseFinding // its place only
	Next       *struct {
		Epoch, Seq uint64
		Prev       schema.Sum
		Previous   *schema.Previous
		Void       []uint64
	}
}

// A CaseFinding is a finding that must be there, or may be. What is nil is not
// compared.
type CaseFinding struct {
	Kind     schema.Kind
	Reason   schema.Reason
	Or       []string // other kinds or reasons that are right too
	Severity string
	Segment  uint64
	Line     *int
	Offset   *int64
	Bytes    *int64
	SHA256   string
	LastGood json.RawMessage `json:"last_good_seq"` // null where there is none
	NextGood json.RawMessage `json:"next_good_seq"`
}

// A CaseValue is a payload at the door; the names are those of files.
type CaseValue struct {
	Args, Stored, Compare, Text string
	Error                       schema.Kind
	Replaced                    int
}

// Logs are all sessions of a case.
func (c *Case) Logs() []CaseLog {
	if c.Log == "" {
		return nil
	}
	return append([]CaseLog{c.CaseLog}, c.More...)
}

// Read reads a file of a case.
func (c *Case) Read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Lay puts the content of a folder of a case where a store has a session.
func (c *Case) Lay(t testing.TB, log, store, session string) {
	t.Helper()
	to := filepath.Join(store, "sessions", session)
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(c.Dir, log)
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == from {
			return nil // an empty folder, which a checkout does not have
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		if d.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Parts are what a test can be made of.
func (c *Case) Parts() (parts []string) {
	for part, there := range map[string]bool{
		"log": c.Log != "", "values": c.Values != nil, "lease": c.Lease != nil, "resume": c.Resume != nil,
		"steps": c.Scenario != "", "digest": c.DigestAs != "", "head": c.Verify != nil, "follower": c.Follower != nil,
		"view": c.View != nil || c.ViewOrder != nil || c.ViewPairs, "ids": c.has("ids.json"),
		"messages": c.has("messages.json"), "redaction": c.has("redact.json"), "import": c.has("source.jsonl"),
	} {
		if there {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

func (c *Case) has(name string) bool {
	_, err := os.Stat(filepath.Join(c.Dir, name))
	return err == nil
}

// NotYet stands in a row before what no test runs, and why.
const NotYet = "not yet:"

// A CaseRow is a row of the table of the cases.
type CaseRow struct{ Case, Part, Test string }

// CaseTable reads the table of the cases.
func CaseTable(t testing.TB) (rows []CaseRow) {
	t.Helper()
	f, err := os.Open(filepath.Join(casesDir(t), "TABLE"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if in.Text() == "" || in.Text()[0] == '#' {
			continue
		}
		w := strings.Fields(in.Text())
		if len(w) < 3 {
			t.Fatalf("a row of the table has no test: %s", in.Text())
		}
		rows = append(rows, CaseRow{w[0], w[1], strings.Join(w[2:], " ")})
	}
	return rows
}

// AllCases reads every case.
func AllCases(t testing.TB) (cases []*Case) {
	t.Helper()
	dir := casesDir(t)
	files, err := filepath.Glob(filepath.Join(dir, "*", "expect.json"))
	imports, err2 := filepath.Glob(filepath.Join(dir, "import", "*", "expect.json"))
	if err != nil || err2 != nil || len(files) == 0 || len(imports) == 0 {
		t.Fatalf("%s holds %d cases and %d imports: %v, %v", dir, len(files), len(imports), err, err2)
	}
	for _, file := range append(files, imports...) {
		c := &Case{Dir: filepath.Dir(file)}
		if c.Name, err = filepath.Rel(dir, c.Dir); err != nil {
			t.Fatal(err)
		}
		c.Name = filepath.ToSlash(c.Name)
		if strings.HasPrefix(c.Name, "import/") {
			cases = append(cases, c) // nothing imports yet
			continue
		}
		if err := json.Unmarshal(c.Read(t, "expect.json"), c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		cases = append(cases, c)
	}
	return cases
}

// Cases are those of which the table says that this test runs their part.
func Cases(t *testing.T, part string) (cases []*Case) {
	t.Helper()
	return CasesOf(t, part, t.Name())
}

// CasesOf are those of which the table says that a test runs their part.
func CasesOf(t *testing.T, part, test string) (cases []*Case) {
	t.Helper()
	its := map[string]bool{}
	for _, r := range CaseTable(t) {
		its[r.Case] = its[r.Case] || r.Part == part && slices.Contains(strings.Fields(r.Test), test)
	}
	for _, c := range AllCases(t) {
		if its[c.Name] {
			cases = append(cases, c)
		}
	}
	if len(cases) == 0 {
		t.Fatalf("the table has no %s for %s", part, test)
	}
	return cases
}

// casesDir is testdata/cases of the module whose folder the test runs in.
func casesDir(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "testdata", "cases")
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no module around the test: %v", err)
	return ""
}
