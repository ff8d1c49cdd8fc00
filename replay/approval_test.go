package replay_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"steno/replay"
)

func asked(id, approval, expires string) entry {
	return entry{"approval_requested", fmt.Sprintf(`{"call_id":%q,"approval_id":%q,"reason":"r","expires_at":%q}`, id, approval, expires)}
}

// allowed is a person's answer that grants more than what was asked.
func allowed(id, approval, grant string) entry {
	return entry{"permission_decision", fmt.Sprintf(`{"call_id":%q,"decision":"allow","gate":"approval","by":"human","approval_id":%q,"grant":%s}`, id, approval, grant)}
}

func denied(id, approval, rule string) entry {
	return entry{"permission_decision", fmt.Sprintf(`{"call_id":%q,"decision":"deny","gate":"approval","by":"policy","approval_id":%q,"rule":%q}`, id, approval, rule)}
}

// hidden is a call with these marks.
func hidden(id, marks string) entry {
	return entry{"tool_call", fmt.Sprintf(`{"call_id":%q,"name":"read","args":{},"args_sha256":"44","redacted":%s}`, id, marks)}
}

const grant = `{"tool":"bash","program":"go","tier":3}`

func TestACallWaitsForTheFirstAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		events []entry
		waits  *replay.Approval
		grants int
	}{
		"nothing asked":              {[]entry{decided("a")}, nil, 0},
		"asked":                      {[]entry{asked("a", "q", "t")}, &replay.Approval{ID: "q", Seq: 2, Expires: "t"}, 0},
		"allowed":                    {[]entry{asked("a", "q", "t"), allowed("a", "q", grant)}, nil, 1},
		"denied":                     {[]entry{asked("a", "q", "t"), denied("a", "q", "expired")}, nil, 0},
		"an answer to another":       {[]entry{asked("a", "q", "t"), allowed("a", "p", grant)}, &replay.Approval{ID: "q", Seq: 2, Expires: "t"}, 0},
		"an answer to none":          {[]entry{allowed("a", "q", grant)}, nil, 0},
		"the policy's word":          {[]entry{asked("a", "q", "t"), decided("a")}, &replay.Approval{ID: "q", Seq: 2, Expires: "t"}, 0},
		"denied and then allowed":    {[]entry{asked("a", "q", "t"), denied("a", "q", "r"), allowed("a", "q", grant)}, nil, 0},
		"allowed twice":              {[]entry{asked("a", "q", "t"), allowed("a", "q", grant), allowed("a", "q", grant)}, nil, 1},
		"asked again":                {[]entry{asked("a", "q", "t"), allowed("a", "q", grant), asked("a", "p", "u")}, &replay.Approval{ID: "p", Seq: 4, Expires: "u"}, 1},
		"asked anew before it is up": {[]entry{asked("a", "q", "t"), asked("a", "p", "u"), allowed("a", "q", grant)}, &replay.Approval{ID: "p", Seq: 3, Expires: "u"}, 0},
		"started":                    {[]entry{asked("a", "q", "t"), started("a", 1), allowed("a", "q", grant)}, nil, 0},
		"ended":                      {[]entry{asked("a", "q", "t"), failed("a", "cancelled", ""), allowed("a", "q", grant)}, nil, 0},
		"asked behind the end":       {[]entry{failed("a", "interrupted", ""), asked("a", "q", "t")}, nil, 0},
	} {
		var l log
		s := fold(t, replay.New(), l.add(append([]entry{call("a")}, c.events...)...))
		got := s.Call("a").Waiting
		if (got == nil) != (c.waits == nil) || got != nil && *got != *c.waits {
			t.Errorf("%s: it waits for %+v, want %+v", name, got, c.waits)
		}
		if len(s.Grants) != c.grants {
			t.Errorf("%s: granted is %+v", name, s.Grants)
		}
	}
}

func TestADecisionKeepsItsRuleAndWhatItAnswers(t *testing.T) {
	var l log
	s := fold(t, replay.New(), l.add(call("a"), asked("a", "q", "t"), denied("a", "q", "expired"), decided("a")))
	want := []replay.Decided{{Seq: 3, Decision: "deny", Gate: "approval", By: "policy", Rule: "expired", ApprovalID: "q"},
		{Seq: 4, Decision: "allow", Gate: "policy", By: "policy"}}
	if got := s.Call("a").Decisions; !slices.Equal(got, want) {
		t.Errorf("decided is %+v, want %+v", got, want)
	}
}

// The answer, and the start behind it, may be what is missing.
func TestNothingWaitsBehindAHole(t *testing.T) {
	var l log
	s := fold(t, replay.New(), l.add(call("a"), asked("a", "q", ""), call("b"), asked("b", "p", ""), allowed("b", "p", grant)))
	s.Hole()
	if c := s.Call("a"); c.Waiting != nil || c.State != replay.Unknown {
		t.Errorf("behind a hole a call waits: %+v", c)
	}
	fold(t, s, (&log{events: l.events[:5:5]}).add(allowed("a", "q", grant)))
	if len(s.Grants) != 1 || s.Grants[0].Seq != 5 {
		t.Errorf("granted is %+v", s.Grants)
	}
}

// What is odd in a grant never grants more.
func TestGrantsAreFoldedAsTheyAreWritten(t *testing.T) {
	var l log
	l.add(call("a"))
	for i, g := range []string{grant, `{}`, `{"tool":7,"program":null,"tier":-1,"until":["x"]}`, `{"tool":"\ud800","tier":"9"}`} {
		q := fmt.Sprint("q", i)
		l.add(asked("a", q, ""), allowed("a", q, g))
	}
	want := []replay.Grant{{Seq: 3, Tool: "bash", Program: "go", Tier: 3}, {Seq: 5}, {Seq: 7, Tool: "7", Program: "null", Until: `["x"]`}, {Seq: 9, Tool: "\uFFFD"}}
	if s := fold(t, replay.New(), l.events); !slices.Equal(s.Grants, want) {
		t.Errorf("granted is %+v, want %+v", s.Grants, want)
	}
}

// Whatever a denial says beside its no.
func TestT25ADenialGrantsNothing(t *testing.T) {
	var l log
	l.add(call("a"), asked("a", "q", ""), entry{"permission_decision", `{"call_id":"a","decision":"deny","gate":"approval","by":"human","approval_id":"q","grant":` + grant + `}`})
	if s := fold(t, replay.New(), l.events); len(s.Grants) != 0 || s.Call("a").Decisions[0].Decision != "deny" {
		t.Errorf("granted is %+v", s.Grants)
	}
}

func TestPostureIsThatOfTheBeginningUntilItIsChanged(t *testing.T) {
	var l log
	l.add(entry{"session_started", `{"posture":{"mode":"ask","policy_hash":"h1"}}`}, call("a"),
		entry{"posture_changed", `{"from":{"mode":"ask"},"to":{"mode":"read_only"},"by":"b","reason":"r"}`},
		entry{"posture_changed", `{"from":{},"to":{"mode":7,"later":[]},"by":"b","reason":"r"}`})
	for n, want := range []*replay.Posture{0: nil, 1: {Seq: 1, Mode: "ask", PolicyHash: "h1"}, 2: {Seq: 1, Mode: "ask", PolicyHash: "h1"},
		3: {Seq: 3, Mode: "read_only"}, 4: {Seq: 4, Mode: "7"}} {
		got := fold(t, replay.New(), l.events[:n]).Posture
		if (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("after %d events the posture is %+v, want %+v", n, got, want)
		}
	}
}

// What made the session stricter may be what is missing, until somebody says
// what holds. What is said of a phase where the beginning is supplied counts no more.
func TestPostureAndPhaseMayBeLostInAHole(t *testing.T) {
	var l log
	l.add(entry{"session_started", `{"posture":{"mode":"auto"},"phase":"editing"}`}, entry{"note", `{}`})
	s := fold(t, replay.New(), l.events)
	if s.PostureLost || s.PhaseLost {
		t.Fatal("something is lost without a hole")
	}
	s.Hole()
	for _, next := range []struct {
		entry                  entry
		mode, phase            string
		postureLost, phaseLost bool
	}{
		{entry{"note", `{}`}, "auto", "editing", true, true},
		{entry{"session_started", `{"phase":"verifying","task_kind":"edit"}`}, "auto", "editing", true, true},
		{entry{"phase_changed", `{"from":"a","to":"verifying"}`}, "auto", "verifying", true, false},
		{entry{"posture_changed", `{"from":{},"to":{"mode":"ask"},"by":"b","reason":"r"}`}, "ask", "verifying", false, false},
	} {
		fold(t, s, l.add(next.entry))
		if s.Posture.Mode != next.mode || s.Phase != next.phase || s.TaskKind != "" || s.PostureLost != next.postureLost || s.PhaseLost != next.phaseLost {
			t.Errorf("after %s: %s, %s, lost are %t and %t", next.entry, s.Posture.Mode, s.Phase, s.PostureLost, s.PhaseLost)
		}
	}
}

func TestATaskIsEscalatedFromInvestigateToEditOnly(t *testing.T) {
	for want, changes := range map[bool][][2]string{
		true:  {{"investigate", "edit"}, {"investigate", "edit,investigate"}, {"edit", "investigate,edit"}},
		false: {{"edit", "edit"}, {"test_only", "edit"}, {"", "edit"}, {"investigate", "test_only"}, {"investigate", ""}},
	} {
		for _, c := range changes {
			var l log
			l.add(entry{"session_started", fmt.Sprintf(`{"task_kind":%q}`, c[0])})
			for kind := range strings.SplitSeq(c[1], ",") {
				l.add(entry{"phase_changed", fmt.Sprintf(`{"from":"a","to":"b","task_kind":%q}`, kind)})
			}
			if s := fold(t, replay.New(), l.events); s.Escalated != want {
				t.Errorf("%q to %q: escalated is %t", c[0], c[1], s.Escalated)
			}
		}
	}
}

func TestHiddenIsOverTheMarksOfTheArguments(t *testing.T) {
	sum := func(text string) string {
		s := sha256.Sum256([]byte(text))
		return hex.EncodeToString(s[:])
	}
	for marks, want := range map[string]string{
		``: "", `[]`: "", `[{"pointer":"/context/k","hash":"x"}]`: "", `[{"pointer":"/argsx","hash":"x"}]`: "", `[7,null,[],{}]`: "", `{}`: "",
		`[{"pointer":"/args/k","rule":"key:k","hash":"hmac-sha256:11"}]`:                                               sum("hmac-sha256:11\n"),
		`[{"pointer":"/args","hash":"x"}]`:                                                                             sum("x\n"),
		`[{"pointer":"/args/a","hash":"x"},{"pointer":"/key","hash":"z"},{"hash":1},{"pointer":"/args/b","hash":"y"}]`: sum("x\ny\n"),
		`[{"pointer":"/args/b","hash":"y"},{"pointer":"/args/a","hash":"x"}]`:                                          sum("y\nx\n"),
		`[{"pointer":"/args/a","hash":"xy"},{"pointer":"/args/b","hash":""}]`:                                          sum("xy\n\n"),
	} {
		if got := replay.Hidden([]byte(marks)); got != want {
			t.Errorf("of %s it is %q, want %q", marks, got, want)
		}
		if marks == "" || marks[0] != '[' {
			continue
		}
		var l log
		s := fold(t, replay.New(), l.add(hidden("a", marks)))
		if got := s.Call("a").Redacted; got != want {
			t.Errorf("of a call with %s it is %q, want %q", marks, got, want)
		}
	}
}

// Where the chain breaks either line may have been edited and summed anew: what
// was allowed before counts no more, and what it says of the session neither.
func TestS5NothingIsAllowedBeforeABreak(t *testing.T) {
	var l log
	s := fold(t, replay.New(), l.add(entry{"session_started", `{"posture":{"mode":"auto"},"phase":"editing"}`},
		call("a"), asked("a", "q", ""), allowed("a", "q", grant), call("b"), asked("b", "p", "")))
	s.Broken()
	if len(s.Grants) > 0 || !s.PostureLost || !s.PhaseLost || s.Call("a").State != replay.Unknown || s.Call("b").Waiting != nil {
		t.Errorf("behind a break there is %+v, %+v, %+v", s.Grants, s.Call("a"), s.Call("b"))
	}
}
