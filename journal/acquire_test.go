package journal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"steno/journal"
	"steno/journal/journaltest"
	"steno/lease"
	"steno/schema"
)

func TestAnUnreadableClaimIsPassedByForceAlone(t *testing.T) {
	f := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, f, "s1"))
	segment := func(n uint64) string { return filepath.Join(f.Dir(), "sessions", "s1", fmt.Sprintf("%06d.jsonl", n)) }
	must(t, os.WriteFile(segment(2), []byte("garbage\n"), 0o600))
	must(t, os.WriteFile(segment(3), nil, 0o600))
	if st, err := f.Lease(ctx, "s1"); err != nil || st.State != lease.Ambiguous || st.Kind != schema.SessionWriterAmbiguous || st.Holder != nil || st.Epoch != 3 {
		t.Errorf("the lease is %+v, %v", st, err)
	}
	_, err := journal.Open(ctx, f, "s1", journaltest.Options())
	if !errors.Is(err, schema.SessionWriterAmbiguous) {
		t.Errorf("opening gives %v", err)
	}
	j := journaltest.Force(t, f, "s1")
	if j.Epoch() != 4 || j.How() != schema.HowForced {
		t.Errorf("forced: epoch %d, %s", j.Epoch(), j.How())
	}
	l := journaltest.Verify(t, f, "s1")
	var seal schema.Seal
	must(t, schema.Unmarshal(l.Events[len(l.Events)-1].Data, &seal))
	if !slices.Equal(seal.Void, []uint64{2, 3}) || seal.Evidence == nil || seal.Evidence.Reason != "the test says so" {
		t.Errorf("the seal says %+v, %+v", seal, seal.Evidence)
	}
	if l.Count(schema.VoidClaim) != 2 || len(l.Findings) != 2 {
		t.Errorf("the findings are %v", l.Findings)
	}
}

func TestAClaimOfANewerVersionIsNeverForced(t *testing.T) {
	f := journaltest.Files(t)
	j, err := journal.Open(ctx, f, "s1", journaltest.Options())
	must(t, err)
	must(t, j.Close())
	newer := strings.Replace(string(claimLine(2)), `"v":1`, `"v":2`, 1)
	must(t, os.WriteFile(filepath.Join(f.Dir(), "sessions", "s1", "000002.jsonl"), []byte(newer), 0o600))
	before := tree(t, f.Dir())
	for _, force := range []bool{false, true} {
		opt := journaltest.Options()
		opt.Force = force
		if _, err := journal.Open(ctx, f, "s1", opt); !errors.Is(err, schema.UnsupportedSchemaVersion) {
			t.Errorf("forced %t: got %v", force, err)
		}
	}
	if !slices.Equal(before, tree(t, f.Dir())) {
		t.Error("a refusal has changed the store")
	}
}

func TestAReasonThatNoSealHasRoomForIsRefusedBeforeTheClaim(t *testing.T) {
	f := journaltest.Files(t)
	must(t, journaltest.Open(t, f, "s1").Close())
	before := tree(t, f.Dir())
	for _, opt := range []journal.Options{{Reason: strings.Repeat("x", 1025)}, {By: strings.Repeat("x", 1025)}} {
		opt.Holder, opt.Force = lease.Self("journaltest"), true
		if _, err := journal.Open(ctx, f, "s1", opt); !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("got %v", err)
		}
	}
	if !slices.Equal(before, tree(t, f.Dir())) {
		t.Error("a refusal has changed the store")
	}
}

func TestDamageIsNeverForced(t *testing.T) {
	f := journaltest.Files(t)
	for epoch, b := range healthy(t) {
		b[len(b)/2] ^= 1
		must(t, os.MkdirAll(filepath.Join(f.Dir(), "sessions", "s1"), 0o700))
		must(t, os.WriteFile(filepath.Join(f.Dir(), "sessions", "s1", fmt.Sprintf("%06d.jsonl", epoch)), b, 0o600))
	}
	before := tree(t, f.Dir())
	opt := journaltest.Options()
	opt.Force = true
	if _, err := journal.Open(ctx, f, "s1", opt); !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("got %v", err)
	}
	if !slices.Equal(before, tree(t, f.Dir())) {
		t.Error("a refusal has changed the store")
	}
}

// What was sound when it was surveyed may be damaged when it is read for the
// seal, which would vouch for it.
func TestDamageThatComesAfterTheClaimIsNotSealed(t *testing.T) {
	files := journaltest.Files(t)
	journaltest.Release(t, journaltest.Open(t, files, "s1"))
	path := filepath.Join(files.Dir(), "sessions", "s1", "000001.jsonl")
	flip := func() {
		b, err := os.ReadFile(path)
		must(t, err)
		b[len(b)/2] ^= 1
		must(t, os.WriteFile(path, b, 0o600))
	}
	store, faults := journaltest.Faulty(files)
	faults.At(journaltest.Claimed, 1, flip)
	if _, err := journal.Open(ctx, store, "s1", journaltest.Options()); !errors.Is(err, schema.CorruptLogLine) {
		t.Errorf("got %v", err)
	}
	flip()
	l := journaltest.Verify(t, files, "s1")
	if l.Epochs != 1 || l.Count(schema.VoidClaim) != 1 {
		t.Errorf("%d epochs, findings %v", l.Epochs, l.Findings)
	}
}
