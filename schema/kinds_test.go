package schema_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"steno/schema"
)

// expected is the closed list by origin. It is here a second time so that a
// kind cannot come, go or change its spelling unnoticed.
var expected = map[string]string{
	"tools": `invalid_args unknown_tool outside_workspace protected_path not_found resource_missing no_match not_unique
		read_failed write_failed command_failed timeout permission_denied write_policy_denied bash_disabled detached
		backpressure phase_denied tier_denied approval_denied approval_expired cancelled interrupted orphan_tool_call
		outcome_unknown call_conflict duplicate_call result_without_call result_conflict payload_too_large tool_failed
		repeat_limit poison_message`,
	"turn": `tool_result_record_failed session_record_unavailable iteration_cap`,
	"log": `unsafe_state_path unsupported_schema_version ephemeral_not_loggable log_encode_failed log_read_failed
		log_write_failed sync_failed line_too_long already_exists session_ended session_writer_active
		session_writer_stale session_writer_ambiguous session_writer_lost lease_store_unsupported head_mismatch`,
	"finding": `corrupt_log_line torn_tail tail_suspect repaired surplus void_claim unknown_type blank_line
		clock_went_back takeover_in_progress`,
	"replay":  `replay_divergence import_failed resume_policy_unavailable`,
	"service": `session_start_failed unavailable not_authenticated invalid_config internal no_prompt stdin_error`,
	"provider": `provider_http_error model_not_supported usage_limit_reached rate_limited network provider_refusal
		unsupported_transport unsupported_backend_capability context_overflow stream_idle_timeout`,
	"auth": `insecure_auth_transport token_request_failed no_account_id invalid_response corrupt_auth auth_read_failed
		auth_write_failed device_auth_failed device_code_unsupported`,
}

// carried kinds are never emitted by steno itself.
func isCarried(k schema.KindInfo) bool {
	return k.Origin == "provider" || k.Origin == "auth" || k.Kind == schema.IterationCap
}

func TestKindsAreTheClosedList(t *testing.T) {
	got := map[string][]string{}
	seen := map[schema.Kind]bool{}
	for _, k := range schema.Kinds() {
		if seen[k.Kind] {
			t.Errorf("%s stands twice", k.Kind)
		}
		seen[k.Kind] = true
		got[k.Origin] = append(got[k.Origin], string(k.Kind))
		if !k.Kind.Known() {
			t.Errorf("%s is not known", k.Kind)
		}
	}
	for origin, text := range expected {
		if want := strings.Fields(text); !slices.Equal(got[origin], want) {
			t.Errorf("%s: got %v\nwant %v", origin, got[origin], want)
		}
		delete(got, origin)
	}
	for origin := range got {
		t.Errorf("the origin %s is not in the list", origin)
	}
	// A constant without a row would be a kind that nobody can look up.
	n := 0
	for _, c := range constants(t, "kinds.go") {
		if c.typ == "Kind" {
			n++
			if !seen[schema.Kind(c.value)] {
				t.Errorf("the constant %s has no row", c.name)
			}
			if name := strings.ReplaceAll(c.value, "_", ""); !strings.EqualFold(name, c.name) {
				t.Errorf("the constant %s is spelled %s", c.name, c.value)
			}
		}
	}
	if n != len(seen) {
		t.Errorf("%d constants, %d rows", n, len(seen))
	}
}

func TestEveryKindSaysWhatToDo(t *testing.T) {
	emitters := []string{"executor", "journal", "lease", "replay", "cmd/steno", "agent"}
	command := regexp.MustCompile(`steno ((?:repair|verify|lease show|session show|calls ls) \{session\}|session ls|version)$`)
	for _, k := range schema.Kinds() {
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(string(k.Kind)) {
			t.Errorf("%q is no name", k.Kind)
		}
		if !slices.Contains(emitters, k.By) {
			t.Errorf("%s is emitted by %q", k.Kind, k.By)
		}
		if (k.By == "agent") != isCarried(k) {
			t.Errorf("%s is emitted by %s", k.Kind, k.By)
		}
		if k.Exit < schema.ExitOK || k.Exit > schema.ExitUnavailable {
			t.Errorf("%s exits with %d", k.Kind, k.Exit)
		}
		// Only a finding that is a notice is no failure.
		notice := k.Origin == "finding" && schema.SeverityOf(k.Kind) == schema.SeverityNotice
		if (k.Exit == schema.ExitOK) != notice || (k.Status == http.StatusOK) != notice {
			t.Errorf("%s exits with %d, status %d", k.Kind, k.Exit, k.Status)
		}
		// 499 is what proxies say of a request that its sender gave up.
		if http.StatusText(k.Status) == "" && k.Status != 499 {
			t.Errorf("%s has the status %d", k.Kind, k.Status)
		}
		if len(k.Next) < 8 || strings.TrimSpace(k.Next) != k.Next {
			t.Errorf("%s: next is %q", k.Kind, k.Next)
		}
		if i := strings.Index(k.Next, "run: "); i >= 0 && !command.MatchString(k.Next) {
			t.Errorf("%s names no command of steno: %q", k.Kind, k.Next)
		}
		if k.Kind.Info() != k {
			t.Errorf("%s: Info gives %+v", k.Kind, k.Kind.Info())
		}
	}
}

func TestExitCodesGroupTheKinds(t *testing.T) {
	for kind, exit := range map[schema.Kind]int{
		schema.InvalidArgs: 2, schema.InvalidConfig: 2, schema.NotFound: 3, schema.UnknownTool: 3, schema.CorruptLogLine: 4,
		schema.TailSuspect: 4, schema.HeadMismatch: 4, schema.UnsupportedSchemaVersion: 4, schema.SessionWriterActive: 5, schema.SessionWriterStale: 5,
		schema.SessionWriterAmbiguous: 5, schema.LeaseStoreUnsupported: 5, schema.SessionWriterLost: 6, schema.PermissionDenied: 7,
		schema.ApprovalDenied: 7, schema.NotAuthenticated: 7, schema.OutcomeUnknown: 8, schema.Interrupted: 8, schema.ReplayDivergence: 9,
		schema.PayloadTooLarge: 10, schema.LineTooLong: 10, schema.Unavailable: 11, schema.Internal: 1, schema.ToolFailed: 1,
	} {
		if got := kind.Info().Exit; got != exit {
			t.Errorf("%s exits with %d, want %d", kind, got, exit)
		}
	}
}

func TestKindsGivesACopy(t *testing.T) {
	schema.Kinds()[0].Kind = "changed"
	if schema.Kinds()[0].Kind != schema.InvalidArgs || schema.Kind("changed").Known() {
		t.Error("a caller can change the list")
	}
}

func TestUnknownKindCountsAsInternal(t *testing.T) {
	for _, k := range []schema.Kind{"", "no_such_kind", "Timeout", "timeout "} {
		if k.Known() || k.Info().Kind != schema.Internal {
			t.Errorf("%q: known %v, %+v", k, k.Known(), k.Info())
		}
	}
}

func TestKindIsItsOwnSentinel(t *testing.T) {
	err := fmt.Errorf("opening: %w", schema.Errorf(schema.SessionWriterActive, "held by %s", "another"))
	for _, k := range schema.Kinds() {
		if got := errors.Is(err, k.Kind); got != (k.Kind == schema.SessionWriterActive) {
			t.Errorf("errors.Is with %s: %v", k.Kind, got)
		}
		if !errors.Is(fmt.Errorf("x: %w", k.Kind), k.Kind) || k.Kind.Error() != string(k.Kind) {
			t.Errorf("%s is not itself", k.Kind)
		}
	}
}

// People paste this line into a shell.
func TestNextNamesOnlySessionsThatCanBe(t *testing.T) {
	if got := schema.CorruptLogLine.Next("s1"); got != "run: steno repair s1" {
		t.Errorf("got %q", got)
	}
	for _, s := range append([]string{"x; rm -rf ~", "$(reboot)", "`a`", "-rf", "{session}"}, hostile...) {
		if got := schema.CorruptLogLine.Next(s); got != "run: steno repair SESSION" {
			t.Errorf("%q: got %q", s, got)
		}
	}
	if got := schema.NotFound.Next("s1"); got != "look at the name; steno session ls, or session.list on NATS, lists those that are there; steno run --session NAME, or session.open, makes one" {
		t.Errorf("got %q", got)
	}
}
