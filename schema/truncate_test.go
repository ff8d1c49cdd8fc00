package schema_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"steno/schema"
)

func TestT15TruncateLeavesShortTextAlone(t *testing.T) {
	for _, s := range []string{"", "a", "zwölf", strings.Repeat("x", 100)} {
		if cut, dropped := schema.Truncate(s, 100); cut != s || dropped != 0 {
			t.Errorf("Truncate(%q) = %q, %d", s, cut, dropped)
		}
	}
}

func TestT15TruncateReplacesInvalidTextFirst(t *testing.T) {
	if cut, dropped := schema.Truncate("a\xffb", 100); cut != "a\uFFFDb" || dropped != 0 {
		t.Errorf("got %q, %d", cut, dropped)
	}
	// Three bytes fit before the replacement but not after it.
	if cut, dropped := schema.Truncate("a\xffb", 3); len(cut) > 3 || !utf8.ValidString(cut) || dropped == 0 {
		t.Errorf("got %q, %d", cut, dropped)
	}
}

func TestT15TruncateKeepsHeadAndTailAndStatesBothSizes(t *testing.T) {
	s := strings.Repeat("h", 5000) + strings.Repeat("t", 5000)
	cut, dropped := schema.Truncate(s, 1000)
	if len(cut) > 1000 {
		t.Fatalf("%d bytes, limit is 1000", len(cut))
	}
	marker := fmt.Sprintf("\n[… %d of 10000 bytes left out …]\n", dropped)
	head, tail, ok := strings.Cut(cut, marker)
	if !ok {
		t.Fatalf("no marker %q in %q", marker, cut)
	}
	if len(head)+len(tail)+dropped != len(s) {
		t.Errorf("%d + %d + %d dropped is not %d", len(head), len(tail), dropped, len(s))
	}
	if strings.Trim(head, "h") != "" || strings.Trim(tail, "t") != "" {
		t.Errorf("head and tail are mixed up: %q", cut)
	}
	if share := float64(len(head)) / float64(len(head)+len(tail)); share < 0.395 || share > 0.405 {
		t.Errorf("the head has %d bytes and the tail %d, want 40 to 60", len(head), len(tail))
	}
	if len(cut) < 990 {
		t.Errorf("only %d of 1000 bytes used", len(cut))
	}
}

func FuzzTruncate(f *testing.F) {
	for _, s := range []string{"", "plain", strings.Repeat("größer 漢字 🙂 ", 50), strings.Repeat("\xff\xc3", 200), "\xf0\x9f\x99"} {
		for _, limit := range []int{-1, 0, 1, 2, 7, 60, 61, 100, 1000} {
			f.Add(s, limit)
		}
	}
	f.Fuzz(func(t *testing.T, s string, limit int) {
		cut, dropped := schema.Truncate(s, limit)
		if len(cut) > max(limit, 0) {
			t.Errorf("%d bytes, limit is %d", len(cut), limit)
		}
		if !utf8.ValidString(cut) {
			t.Errorf("not valid: %q", cut)
		}
		valid := strings.ToValidUTF8(s, "\uFFFD")
		if (dropped == 0) != (cut == valid) {
			t.Errorf("%d dropped of %q, got %q", dropped, valid, cut)
		}
		if dropped < 0 || dropped > len(valid) {
			t.Errorf("%d dropped of %d", dropped, len(valid))
		}
	})
}
