package main

import (
	"fmt"
	"strings"
	"testing"

	"steno/journal/journaltest"
)

// Ids that are used twice, results before their calls, without a call, second and
// late ones, and calls without a result: a log that no writer of ours makes, each
// line of which is sound. Every command names what is odd or does without it, every
// call that a model sees is answered once, and nobody writes there.
func TestS7OddPairsAreNamedAndEveryCallIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	l := newLong(t)
	result := func(id, more string) {
		l.add("tool_result", fmt.Appendf(nil, `{"call_id":%q,"attempt":1,"ok":true,"output":"of %s"%s,"duration_us":1}`, id, id, more))
	}
	call := func(id, args string) {
		e := journaltest.Call(id, "shell", args)
		l.add(e.Type, e.Data)
	}
	say := func(ids ...string) {
		text := `{"content":[{"type":"text","text":"calls"}`
		for _, id := range ids {
			text += fmt.Sprintf(`,{"type":"tool_use","id":%q,"name":"shell","input":{}}`, id)
		}
		l.add("assistant_message", []byte(text+"]}"))
	}
	l.add("user_message", []byte(`{"text":"go"}`))
	say("early", "twice", "open", "never", "second", "late")
	result("early", "") // before its call
	call("early", `{}`)
	call("twice", `{}`)
	call("twice", `{"other":1}`) // a reused id
	result("twice", "")
	call("open", `{}`) // no result
	result("none", "") // no call
	call("second", `{}`)
	result("second", "")
	result("second", `,"x":2`)
	call("late", `{}`)
	l.add("tool_result", []byte(`{"call_id":"late","attempt":1,"ok":false,"error":{"kind":"interrupted","message":"gone","details":{}},"synthetic":true,"duration_us":0}`))
	result("late", fmt.Sprintf(`,"supersedes":%d`, l.last.Seq))
	result("late", fmt.Sprintf(`,"supersedes":%d`, l.last.Seq)) // of a genuine one
	l.close()
	run := func(want int, args ...string) string {
		t.Helper()
		out, errOut, code := steno(t, l.dir, args...)
		if code != want || strings.Contains(errOut, "internal") {
			t.Errorf("steno %q: exit %d, want %d\n%s%s", args, code, want, out, errOut)
		}
		return out + errOut
	}
	verify := run(4, "verify", "s1", "-o", "json")
	if n := strings.Count(verify, `"bad_event"`); n != 5 {
		t.Errorf("verify names %d events\n%s", n, verify)
	}
	inspect := run(4, "session", "inspect", "s1")
	for _, want := range []string{"duplicate_call", "result_without_call", "result_conflict", "orphan_tool_call", "its result stands before it, and does not count"} {
		if !strings.Contains(inspect, want) {
			t.Errorf("inspect does not name %s\n%s", want, inspect)
		}
	}
	for _, format := range []string{"anthropic", "openai"} {
		run(4, "export", "s1", "--format", format)
		out := run(4, "export", "s1", "--format", format, "--lenient")
		for _, id := range []string{"early", "twice", "open", "never", "second", "late"} {
			// Once where it is made, and once where it is answered.
			if n := strings.Count(out, fmt.Sprintf(`id":%q`, id)); n != 2 {
				t.Errorf("%s: %s stands there %d times\n%s", format, id, n, out)
			}
		}
		if strings.Contains(out, "of none") || strings.Contains(out, "of early") || strings.Count(out, "of second") != 1 || strings.Count(out, "of late") != 1 {
			t.Errorf("%s: what does not count is shown\n%s", format, out)
		}
	}
	if out := run(4, "replay", "s1", "--lenient", "-o", "json"); pick(t, strings.SplitN(out, "\n", 2)[0], "/digest") == nil {
		t.Error(out)
	}
	run(4, "session", "show", "s1", "--timeline")
	run(4, "export", "s1", "--format", "md")
	run(0, "search", "of late", "s1") // which lines are sound; what does not fit, verify says
	run(4, "doctor", "s1")
	run(4, "replay", "s1")
	run(3, "replay", "s1", "--lenient", "--as-of", "99")
	run(3, "session", "show", "s1", "--as-of", "99")
	run(4, "diff", "s1", "s1")
	// It is not gone on with, nor taken for the beginning of another.
	for _, args := range [][]string{{"session", "resume", "s1"}, {"session", "fork", "s1"}, {"session", "end", "s1", "--outcome", "failed"}, {"call", "list", "--session", "s1"}} {
		if out := run(4, args...); !strings.Contains(out, "corrupt_log_line") {
			t.Errorf("steno %q says %s", args, out)
		}
	}
}
