package journal_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/replay"
	"steno/schema"
)

func TestLogCases(t *testing.T) {
	for _, c := range journaltest.Cases(t, "log") {
		for _, want := range c.Logs() {
			t.Run(c.Name+"/"+want.Log, func(t *testing.T) {
				t.Parallel()
				l := layCase(t, c, want)
				l.lenient()
				l.strict()
				l.unchanged("reading")
				l.acquire()
			})
		}
	}
}

// caseLog is one session of a case, in a store of its own.
type caseLog struct {
	*testing.T
	want   journaltest.CaseLog
	store  *journal.Files
	dir    string            // of the session
	before map[string]string // its files
	read   *journaltest.Log
}

func layCase(t *testing.T, c *journaltest.Case, want journaltest.CaseLog) *caseLog {
	t.Helper()
	store := journaltest.Files(t)
	c.Lay(t, want.Log, store.Dir(), want.Session)
	dir := filepath.Join(store.Dir(), "sessions", want.Session)
	return &caseLog{T: t, want: want, store: store, dir: dir, before: files(t, dir)}
}

// files gives what lies in a folder and below.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, fi os.FileInfo, err error) error {
		if err != nil || fi.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	must(t, err)
	return all
}

// lenient checks what a reader gives and names.
func (l *caseLog) lenient() {
	l.Helper()
	var err error
	l.read, err = journaltest.Read(l.store, l.want.Session, journal.ScanOptions{Blobs: true})
	must(l.T, err)
	if n := len(l.read.Events); n != l.want.Events && !slices.Contains(l.want.EventsOr, n) {
		l.Errorf("%d events, want %d", n, l.want.Events)
	}
	if h := l.want.Head; h != nil && l.read.Head != *h || h == nil && len(l.read.Events) > 0 {
		l.Errorf("the head is %v, want %v", l.read.Head, h)
	}
	left := slices.Clone(l.read.Findings)
	for _, want := range l.want.Findings {
		i := slices.IndexFunc(left, func(f schema.Finding) bool { return isFinding(f, want) })
		if i < 0 {
			l.Errorf("not found: %s/%s in segment %d, line %v\nfound are %+v", want.Kind, want.Reason, want.Segment, want.Line, l.read.Findings)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, f := range left {
		if !slices.ContainsFunc(l.want.MayFind, func(may journaltest.CaseFinding) bool { return mayBe(f, may) }) {
			l.Errorf("found for no reason: %+v", f)
		}
	}
	for id, want := range l.want.Calls {
		c := l.read.State.Call(id)
		if c == nil || string(c.State) != want {
			l.Errorf("call %s is %+v, want %s", id, c, want)
		}
	}
	for id, want := range l.want.Errors {
		if c := l.read.State.Call(id); c == nil || c.Result == nil || c.Result.Kind != want {
			l.Errorf("call %s is %+v, want %s", id, c, want)
		}
	}
	for _, c := range l.read.State.Calls {
		if got := len(c.Superseded) > 0; l.want.Calls != nil && got != slices.Contains(l.want.Superseded, c.ID) {
			l.Errorf("call %s has the superseded results %v", c.ID, c.Superseded)
		}
	}
}

// isFinding compares a finding with one that must be there.
func isFinding(f schema.Finding, want journaltest.CaseFinding) bool {
	good := func(got uint64, raw []byte) bool {
		var n uint64
		return len(raw) == 0 || schema.Unmarshal(raw, &n) == nil && n == got
	}
	return isPlace(f, want) && isName(f.Kind, f.Reason, want) &&
		(want.Offset == nil || *want.Offset == f.Offset) && (want.Bytes == nil || *want.Bytes == f.Bytes) &&
		(want.SHA256 == "" || want.SHA256 == f.SHA256) && (want.Or != nil || want.Severity == f.Severity) &&
		good(f.LastGoodSeq, want.LastGood) && good(f.NextGoodSeq, want.NextGood)
}

func isPlace(f schema.Finding, want journaltest.CaseFinding) bool {
	return f.Segment == want.Segment && (want.Line == nil || *want.Line == f.Line)
}

func isName(kind schema.Kind, reason schema.Reason, want journaltest.CaseFinding) bool {
	return kind == want.Kind && (reason == want.Reason || kind == schema.TailSuspect && want.Reason == "") ||
		slices.Contains(want.Or, string(cmp.Or(reason, schema.Reason(kind)))) || slices.Contains(want.Or, string(kind))
}

// mayBe compares a finding with one that may be there.
func mayBe(f schema.Finding, may journaltest.CaseFinding) bool {
	return isPlace(f, may) && (may.Kind == "" || may.Kind == f.Kind) && (may.Reason == "" || may.Reason == f.Reason)
}

// strict checks where a strict reading ends.
func (l *caseLog) strict() {
	l.Helper()
	_, err := journaltest.Read(l.store, l.want.Session, journal.ScanOptions{Strict: true, Blobs: true})
	want := l.want.Strict
	if want.OK || err == nil {
		if !want.OK || err != nil {
			l.Errorf("a strict reading ends with %v, want %+v", err, want)
		}
		return
	}
	e := schema.AsError(err)
	reason, _ := e.Details["reason"].(string)
	as := journaltest.CaseFinding{Kind: want.Kind, Reason: want.Reason}
	for _, f := range l.want.Findings {
		if f.Segment == want.Segment && *f.Line == want.Line {
			as.Or = f.Or
		}
	}
	if !isName(e.Kind, schema.Reason(reason), as) || e.Details["segment"] != want.Segment || e.Details["line"] != want.Line {
		l.Errorf("a strict reading ends with %v, %v; want %+v", err, e.Details, want)
	}
}

// acquire opens the session for writing, or is refused; neither changes a file.
func (l *caseLog) acquire() {
	l.Helper()
	opt := journaltest.Options()
	opt.Reason = "the test says so"
	switch l.want.MayAppend {
	case true:
	case "forced":
		_, err := journal.Open(ctx, l.store, l.want.Session, opt)
		if !errors.Is(err, schema.SessionWriterAmbiguous) {
			l.Errorf("opening it gives %v", err)
		}
		l.unchanged("a refusal")
		opt.Force = true
	default:
		if look, err := journaltest.Read(l.store, l.want.Session, journal.ScanOptions{}); err == nil && look.FirstError == nil {
			// Only reading the blobs shows it, which whoever takes a session over does not.
			if l.read.FirstError.Reason != schema.BlobMismatch {
				l.Errorf("only a reader of blobs finds %v", l.read.FirstError)
			}
			return
		}
		for _, opt.Force = range []bool{false, true} {
			_, err := journal.Open(ctx, l.store, l.want.Session, opt)
			if l.read.FirstError == nil || !errors.Is(err, l.read.FirstError.Kind) && l.want.Strict.Kind != schema.KindOf(err) {
				l.Errorf("opening it (forced: %t) gives %v", opt.Force, err)
			}
			l.unchanged("a refusal")
		}
		return
	}
	j, err := journal.Open(ctx, l.store, l.want.Session, opt)
	must(l.T, err)
	must(l.T, j.Close())
	next := l.want.Next
	own := filepath.Join(l.dir, segmentFile(next.Epoch))
	after := files(l.T, l.dir)
	if after[own] == "" || len(after) != len(l.before)+1 {
		l.Errorf("the next segment is not %s alone", own)
	}
	delete(after, own)
	if !maps.Equal(l.before, after) {
		l.Error("taking over has changed a file")
	}
	now, err := journaltest.Read(l.store, l.want.Session, journal.ScanOptions{})
	must(l.T, err)
	i := slices.IndexFunc(now.Events, func(e schema.Event) bool { return e.Epoch == next.Epoch })
	if i < 0 || now.FirstError != nil {
		l.Fatalf("the next segment has no seal, or the log is damaged: %v", now.Findings)
	}
	e, seal := now.Events[i], schema.Seal{}
	must(l.T, schema.Unmarshal(e.Data, &seal))
	if e.Seq != next.Seq || e.Prev != next.Prev || !slices.Equal(seal.Void, next.Void) || !isPrevious(seal.Previous, next.Previous) {
		l.Errorf("the next seal is number %d after %v, with %s; want %+v", e.Seq, e.Prev, e.Data, next)
	}
	if i != len(l.read.Events) || !slices.EqualFunc(now.Events[:i], l.read.Events, func(a, b schema.Event) bool { return a.Head() == b.Head() }) {
		l.Error("other events count now than before")
	}
	l.recovered(seal.Previous)
}

func (l *caseLog) unchanged(what string) {
	l.Helper()
	if !maps.Equal(l.before, files(l.T, l.dir)) {
		l.Errorf("%s has changed a file", what)
	}
}

func isPrevious(got, want *schema.Previous) bool {
	if got == nil || want == nil {
		return got == want
	}
	same := func(a, b *int64) bool { return b == nil || a != nil && *a == *b } // a stream has neither
	return got.Epoch == want.Epoch && got.Seq == want.Seq && got.Sum == want.Sum && same(got.Len, want.Len) && same(got.Size, want.Size)
}

// recovered checks which bytes of the segment before the seal leaves out.
func (l *caseLog) recovered(p *schema.Previous) {
	l.Helper()
	if l.want.Recovered == nil {
		if p != nil && *p.Len != *p.Size {
			l.Errorf("the seal leaves out bytes %d to %d", *p.Len, *p.Size)
		}
		return
	}
	r := l.want.Recovered
	tail := l.before[filepath.Join(l.dir, segmentFile(p.Epoch))][*p.Len:*p.Size]
	sum := sha256.Sum256([]byte(tail))
	if p.Epoch != r.Segment || *p.Len != *r.Offset || int64(len(tail)) != *r.Bytes || hex.EncodeToString(sum[:]) != r.SHA256 {
		l.Errorf("the seal leaves out bytes %d to %d of segment %d, want %+v", *p.Len, *p.Size, p.Epoch, r)
	}
}

// What was damaged was sound before, and what does not count has no digest.
func TestHealthyCases(t *testing.T) {
	digests := 0
	for _, c := range journaltest.AllCases(t) {
		if _, err := os.Stat(filepath.Join(c.Dir, "healthy")); err != nil {
			continue
		}
		store := journaltest.Files(t)
		c.Lay(t, "healthy", store.Dir(), c.Session)
		healthy := journaltest.Verify(t, store, c.Session)
		if len(healthy.Findings) > 0 {
			t.Errorf("%s: the healthy log has %v", c.Name, healthy.Findings)
		}
		if c.DigestAs == "healthy" {
			digests++
			l := layCase(t, c, c.CaseLog)
			l.lenient()
			if l.read.State.Digest() != healthy.State.Digest() {
				t.Errorf("%s: the digest is not that of the healthy log", c.Name)
			}
		}
	}
	if digests != len(journaltest.Cases(t, "digest")) {
		t.Errorf("%d digests were compared", digests)
	}
}

// A log whose end was cut off cleanly is in order, but for a head kept
// elsewhere. The whole log has that head.
func TestHeadCases(t *testing.T) {
	for _, c := range journaltest.Cases(t, "head") {
		l := layCase(t, c, c.CaseLog)
		var head schema.Head
		must(t, schema.Unmarshal(c.Read(t, c.Verify.Head), &head))
		got, err := journaltest.Read(l.store, c.Session, journal.ScanOptions{Head: head})
		must(t, err)
		if got.FirstError == nil || got.FirstError.Kind != c.Verify.Error || len(got.Events) != c.Events {
			t.Errorf("%s: found are %+v, want %s", c.Name, got.Findings, c.Verify.Error)
		}
		_, err = journaltest.Read(l.store, c.Session, journal.ScanOptions{Head: head, Strict: true})
		if schema.KindOf(err) != c.Verify.Error {
			t.Errorf("%s: a strict reading gives %v", c.Name, err)
		}
		whole := journaltest.Files(t)
		c.Lay(t, "healthy", whole.Dir(), c.Session)
		if got, err = journaltest.Read(whole, c.Session, journal.ScanOptions{Head: head}); err != nil || len(got.Findings) > 0 {
			t.Errorf("%s: the whole log has %v, %v", c.Name, got.Findings, err)
		}
	}
}

// Whatever is wrong with a session, a person can let it be written again; no
// byte of it changes, nothing that was given is lost, and the log goes on to
// name what is missing.
func TestRepairedCases(t *testing.T) {
	t.Parallel()
	n := 0
	for _, c := range journaltest.CasesOf(t, "log", "TestLogCases") {
		for _, want := range c.Logs() {
			if want.MayAppend != false || want.Strict.Kind == schema.UnsupportedSchemaVersion {
				continue
			}
			n++
			t.Run(c.Name+"/"+want.Log, func(t *testing.T) {
				t.Parallel()
				l := layCase(t, c, want)
				l.lenient()
				opt := journal.RepairOptions{Holder: journaltest.Options().Holder, NewState: journaltest.Options().NewState,
					By: "a test", Reason: "it says so", AcceptTail: true, DryRun: true}
				for _, opt.DryRun = range []bool{true, false} {
					_, err := journal.Repair(ctx, l.store, want.Session, opt)
					must(t, err)
					if opt.DryRun {
						l.unchanged("a dry run")
					}
				}
				after := files(t, l.dir)
				for path, b := range l.before {
					if after[path] != b {
						t.Errorf("a repair has changed %s", path)
					}
				}
				now, err := journaltest.Read(l.store, want.Session, journal.ScanOptions{Strict: true, Blobs: true})
				must(t, err)
				if len(now.Events) != len(l.read.Events)+2 || now.Count(schema.Repaired) == 0 { // its seal and its release
					t.Errorf("%d events, %d before; found are %+v", len(now.Events), len(l.read.Events), now.Findings)
				}
				for i, e := range l.read.Events {
					if now.Events[i].Head() != e.Head() {
						t.Fatalf("event %d is another", i)
					}
				}
				journaltest.Append(t, journaltest.OpenWith(t, l.store, want.Session, journaltest.Options()), journaltest.Note("goes on"))
			})
		}
	}
	if n < 30 {
		t.Errorf("only %d logs were damaged", n)
	}
}

// What a projection has to show, as far as the state says it: the messages
// that count, and each call once, in the order in which they began.
func TestViewCases(t *testing.T) {
	for _, c := range journaltest.Cases(t, "view") {
		for _, want := range c.Logs() {
			l := layCase(t, c, want)
			l.lenient()
			var view, order []string
			for _, e := range l.read.Events {
				var d struct {
					Text   string `json:"text"`
					CallID string `json:"call_id"`
				}
				must(t, schema.Unmarshal(e.Data, &d))
				if slices.ContainsFunc(l.read.State.Messages, func(r replay.Ref) bool { return r.Seq == e.Seq }) {
					view = append(view, d.Text)
				}
				if c := l.read.State.Call(d.CallID); c != nil && c.Seq == e.Seq {
					view, order = append(view, c.ID), append(order, c.ID)
				}
			}
			if want.View != nil && !slices.Equal(view, want.View) || c.ViewOrder != nil && !slices.Equal(order, c.ViewOrder) {
				t.Errorf("%s/%s: the view has %q, want %q%q", c.Name, want.Log, view, want.View, c.ViewOrder)
			}
		}
	}
}

// One bad session never disturbs another.
func TestAllCasesShareAStore(t *testing.T) {
	t.Parallel()
	store := journaltest.Files(t)
	alone := map[string]*journaltest.Log{}
	for _, c := range journaltest.AllCases(t) {
		if c.Log == "" {
			continue
		}
		l := layCase(t, c, c.CaseLog)
		var err error
		alone[c.Session], err = journaltest.Read(l.store, c.Session, journal.ScanOptions{})
		must(t, err)
		c.Lay(t, c.Log, store.Dir(), c.Session)
	}
	n := 0
	for id, err := range store.Sessions(ctx) {
		must(t, err)
		l, err := journaltest.Read(store, id, journal.ScanOptions{})
		must(t, err)
		a := alone[id]
		if n++; a == nil || !slices.Equal(a.Findings, l.Findings) || a.Head != l.Head || a.State.Digest() != l.State.Digest() || a.Lease.State != l.Lease.State {
			t.Errorf("session %s reads otherwise than alone", id)
		}
	}
	if n != len(alone) || n < 70 {
		t.Errorf("%d sessions were listed, %d laid", n, len(alone))
	}
}

func segmentFile(epoch uint64) string { return fmt.Sprintf("%06d.jsonl", epoch) }
