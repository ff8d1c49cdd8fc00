package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"steno/schema"
)

// hostile are texts that must never become a file name, a token of a subject
// or a part of a line.
var hostile = []string{
	"", " ", ".", "..", "...", "/", `\`, "../x", "a/b", `a\b`, "/etc/passwd", "a/../b", "~", "a.b", ".a", "a.",
	"a b", " a", "a ", "a\tb", "a\nb", "a\r", "a\x00", "\x00", "a\x7f", "a\x1b[2J", "*", "a*", ">", "a>", "$SYS", "a$",
	"a:b", "a?b", `a"b`, "a'b", "a;b", "a|b", "a&b", "`a`", "$(a)", "%2e%2e", "a%00", "a,b", "a=b", "a@b", "a#b", "a+b", "(a)", "[a]", "{a}",
	"\u00e9", "\u0430dmin", "\uff41", "a\u200b", "\u202ea", "a\u2028", "\u017feq", "\u212a", "a\u0301", "\u65e5\u672c", "\U0001F600", "\uFEFFa", "\uFFFD", "a\xff", "\xff",
}

func TestSessionIDs(t *testing.T) {
	long := strings.Repeat("a", 128)
	for _, id := range []string{"a", "A", "0", "9", "z-_Z", "a-", "a_", "a--b", "01KDYAK623R4DAPT6SZ6GP1RRW", "CON", "nul", long, "0" + long[1:]} {
		if !schema.ValidSession(id) {
			t.Errorf("%q is refused", id)
		}
		if err := schema.CheckSession(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range append([]string{long + "a", "_x", "-x", "_", "-", "--help", strings.Repeat("a", 1<<20)}, hostile...) {
		if schema.ValidSession(id) {
			t.Errorf("%.80q is taken", id)
		}
		err := schema.CheckSession(id)
		if !errors.Is(err, schema.InvalidArgs) {
			t.Errorf("%.80q: %v", id, err)
		} else if msg := err.Error(); len(msg) > 500 || !printable(msg) {
			t.Errorf("%.80q: the message is not safe to show: %.600q", id, msg)
		}
	}
}

// printable: ASCII without controls, but for the dots that stand for the rest.
func printable(s string) bool {
	for _, c := range strings.ReplaceAll(s, "…", "") {
		if c < 0x20 || c > 0x7E {
			return false
		}
	}
	return true
}

func TestSessionIDsOfEveryByte(t *testing.T) {
	const first = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	for c := range 256 {
		b := string([]byte{byte(c)})
		if got, want := schema.ValidSession(b), strings.Contains(first, b); got != want {
			t.Errorf("%q alone: %v", b, got)
		}
		if got, want := schema.ValidSession("a"+b), strings.Contains(first+"_-", b); got != want {
			t.Errorf("%q behind a letter: %v", b, got)
		}
	}
}

func TestCallIDs(t *testing.T) {
	for _, id := range []string{"a", "call-1", "toolu_01", "call|fc_1/../2", `"\'{}<>&`, "!", "~", strings.Repeat("x", 256)} {
		if err := schema.CheckCallID(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"", " ", "a b", "a\n", "\x00", "\x7f", "é", "\xff", "\u00a0", strings.Repeat("x", 257)} {
		err := schema.CheckCallID(id)
		if !errors.Is(err, schema.InvalidArgs) || !printable(err.Error()) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestToolNames(t *testing.T) {
	for _, name := range []string{"a", "bash", "fs_read-2", "_x", "-x", "A", strings.Repeat("x", 64)} {
		if !schema.ValidToolName(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range append([]string{strings.Repeat("x", 65)}, hostile...) {
		if schema.ValidToolName(name) {
			t.Errorf("%q is taken", name)
		}
	}
}

func TestT1ToolNamesOfOthers(t *testing.T) {
	long := strings.Repeat("x", 63)
	for original, want := range map[string]string{
		"":                       "",
		"read-file_2":            "read-file_2",
		"files.read":             "files_read",
		"files/read":             "files_read",
		"a b\tc\nd":              "a_b_c_d",
		"größe":                  "gr__e",
		"日本":                     "__",
		"a\xff\xfeb":             "a__b",
		"\x00\x1b[2J\u202e":      "___2J_",
		long + "y":               long + "y",
		long + ".":               long + "_",
		long + "yz":              long[:55] + "_304b4a63",
		long + "yZ":              long[:55] + "_c41c83bd",
		long + "..":              long[:55] + "_544399b7",
		strings.Repeat("é", 64):  strings.Repeat("_", 64),
		strings.Repeat("é", 65):  strings.Repeat("_", 56) + "c8a2666a",
		strings.Repeat("x", 1e6): long[:55] + "_1b977e9f",
	} {
		got := schema.ToolName(original)
		if got != want {
			t.Errorf("%.80q is called %q, want %q", original, got, want)
		}
		if schema.ValidToolName(got) != (original != "") {
			t.Errorf("%q cannot be the name of a tool", got)
		}
	}
	for _, name := range hostile {
		if got := schema.ToolName(name); name != "" && !schema.ValidToolName(got) {
			t.Errorf("%q is called %q", name, got)
		}
	}
}

func TestTypes(t *testing.T) {
	for _, typ := range []string{"a", "z", "zz.z", "note", "a_1", "a__", "x.a", "x.1", "x._", "a.b.c", "a1.2.3", strings.Repeat("a", 64), "x." + strings.Repeat("a", 62)} {
		if !schema.ValidType(typ) {
			t.Errorf("%q is refused", typ)
		}
	}
	for _, typ := range append([]string{"A", "1", "_", "_a", "x.", ".x", "x..y", "x.y.", "x.A", "x-y", "noTe", "note ", strings.Repeat("a", 65), "x." + strings.Repeat("a", 63)}, hostile...) {
		// Types may have dots where the names above must not.
		if schema.ValidType(typ) && typ != "a.b" {
			t.Errorf("%q is taken", typ)
		}
	}
}

func TestEventIDsAreCanonical(t *testing.T) {
	for _, id := range []string{"01KDYAK623R4DAPT6SZ6GP1RRW", "00000000000000000000000000", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"} {
		u, err := schema.ParseID(id)
		if err != nil || u.String() != id {
			t.Errorf("%s: %s, %v", id, u, err)
		}
	}
	for _, id := range append([]string{"01kdyak623r4dapt6sz6gp1rrw", "01KDYAK623R4DAPT6SZ6GP1RRw", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "80000000000000000000000000",
		"01KDYAK623R4DAPT6SZ6GP1RR", "01KDYAK623R4DAPT6SZ6GP1RRWW", "01KDYAK623R4DAPT6SZ6GP1RRI", "01KDYAK623R4DAPT6SZ6GP1RRL", "01KDYAK623R4DAPT6SZ6GP1RRO",
		"01KDYAK623R4DAPT6SZ6GP1RRU", "../../../../../../etc/passw", "01KDYAK623R4DAPT6SZ6GP1RR/"}, hostile...) {
		u, err := schema.ParseID(id)
		if !errors.Is(err, schema.InvalidArgs) || u.String() != "00000000000000000000000000" {
			t.Errorf("%q: %s, %v", id, u, err)
		}
	}
}

func TestHeadHasOneText(t *testing.T) {
	sum, err := schema.ParseSum(strings.Repeat("0f", 32))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []schema.Head{{}, {Epoch: 1, Seq: 2, Sum: sum}, {Epoch: math.MaxUint64, Seq: math.MaxUint64, Sum: sum}} {
		want := strconv.FormatUint(h.Epoch, 10) + "." + strconv.FormatUint(h.Seq, 10) + "." + h.Sum.String()
		if h.String() != want {
			t.Errorf("got %s, want %s", h, want)
		}
		if got, err := schema.ParseHead(want); err != nil || got != h {
			t.Errorf("%s: parsed as %s, %v", want, got, err)
		}
		b, err := json.Marshal(h)
		if want := fmt.Sprintf(`{"epoch":%d,"seq":%d,"sum":"%s"}`, h.Epoch, h.Seq, h.Sum); err != nil || string(b) != want {
			t.Errorf("its JSON is %s, %v, want %s", b, err, want)
		}
	}
	text := "1.2." + sum.String()
	for _, bad := range []string{"", "1", "1.2", "1.2.", "1..2", "..", text + ".", text + " ", " " + text, "." + text, "01" + text[1:], "1.02" + text[3:], "+" + text, "-" + text,
		"1.2." + strings.ToUpper(sum.String()), text[:len(text)-1], text + "0", "18446744073709551616" + text[1:], "1.2.3." + sum.String(), "0x1" + text[1:], "1_0" + text[1:], "\u0661" + text[1:],
		"1.2." + sum.String() + "\n", "1,2," + sum.String(), "1.2.\x00" + sum.String()[1:]} {
		h, err := schema.ParseHead(bad)
		if !errors.Is(err, schema.InvalidArgs) || h != (schema.Head{}) || !printable(err.Error()) {
			t.Errorf("%q: %s, %v", bad, h, err)
		}
	}
}
