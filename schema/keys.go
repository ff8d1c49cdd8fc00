package schema

// A Key is a key of data that the types know, each with a number of its own, so
// that one that was read is found without a search.
type Key uint8

// Keys that a fold reads. The others have numbers without a name.
const (
	KeyCallID Key = 1 + iota
	KeyName
	KeyArgsSHA256
	KeyDryRun
	KeyDecision
	KeyGate
	KeyBy
	KeyAttempt
	KeyExecutor
	KeyOK
	KeyError
	KeyExitCode
	KeyDurationUS
	KeySynthetic
	KeySupersedes
	KeyHow
	KeyWorkspace
	KeyLabels
	KeyParent
	KeyTaskKind
	KeyPhase
	KeyTo
	KeyPatch
	KeyModel
	KeyTokens
	KeyToSeq
	KeyOutcome
	KeyReason
	KeyKind
	KeyPosture
	KeyRedacted
	KeyApprovalID
	KeyExpiresAt
	KeyGrant
	KeyRule
	KeyText
	KeyContent
	KeyPartial
	KeyTurn
	KeyItem
	KeyDialect
	KeyArgs
	KeyRange
	KeySummary
	KeyOrigin
	keyBlobs
)

// maxKeys bounds the numbers of keys.
const maxKeys = 112

var keys = newNames("call_id", "name", "args_sha256", "dry_run", "decision", "gate", "by", "attempt", "executor", "ok", "error", "exit_code",
	"duration_us", "synthetic", "supersedes", "how", "workspace", "labels", "parent", "task_kind", "phase", "to", "patch", "model", "tokens",
	"to_seq", "outcome", "reason", "kind", "posture", "redacted", "approval_id", "expires_at", "grant", "rule",
	"text", "content", "partial", "turn", "item", "dialect", "args", "range", "summary", "origin", "blobs",
	// those that are only checked
	"claim", "previous", "carried", "void", "skipped", "evidence", "trace",
	"context", "tier", "key", "delivery", "policy_hash", "tool_version",
	"deadline", "possibly_running", "output", "structured", "artifacts", "meta", "truncated", "files_read", "files_changed", "terminate",
	"from", "trigger", "cost", "terminal_status", "strategy", "tail", "deliveries", "message", "actor", "replaced", "why", "repeat", "program", "original")

// names finds the number of a name, from 1, with one comparison: their places
// in the table are all different.
type names struct {
	all   []string
	by    [5]uint32 // what makes the places differ
	table [1 << 11]uint8
}

func newNames(all ...string) *names {
	t := &names{all: all}
	seed, tries := uint32(1), 0
	for again := true; again; {
		if tries++; tries > 1<<16 {
			panic("schema: two names have one place")
		}
		again, t.table = false, [1 << 11]uint8{}
		for i := range t.by {
			seed = seed*1664525 + 1013904223
			t.by[i] = seed >> 8
		}
		for i, name := range all {
			at := &t.table[place(t, name)]
			again, *at = again || *at > 0, uint8(i+1)
		}
	}
	return t
}

func place[T string | []byte](t *names, name T) uint32 {
	n := len(name)
	return (uint32(name[0])*t.by[0] + uint32(name[n>>1])*t.by[1] + uint32(name[n-1])*t.by[2] + uint32(name[n*3/4])*t.by[3] + uint32(n)*t.by[4]) >> 10 % uint32(len(t.table))
}

// number is that of a name, 0 if it is none of them.
func number[T string | []byte](t *names, name T) uint8 {
	if len(name) == 0 {
		return 0
	}
	n := t.table[place(t, name)]
	if n > 0 && t.all[n-1] != string(name) {
		return 0
	}
	return n
}
