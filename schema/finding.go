package schema

import "fmt"

// A Reason says what is wrong with one line or segment of a stored log. Like a
// Kind it is its own sentinel.
type Reason string

func (r Reason) Error() string { return string(r) }

// Reasons of a corrupt_log_line (and, above what is known durable, of a
// tail_suspect). The first group concerns a line by itself, the second a line
// among its neighbours, the third a segment.
const (
	InvalidJSON  Reason = "invalid_json"
	InvalidUTF8  Reason = "invalid_utf8"
	NULBytes     Reason = "nul_bytes"
	GluedLines   Reason = "glued_lines" // a whole record stands on the line together with something else
	NotAnObject  Reason = "not_an_object"
	BadEnvelope  Reason = "bad_envelope" // an object, but not the envelope: other keys, other order, white space
	SumMismatch  Reason = "sum_mismatch"
	OverLimit    Reason = "over_limit" // longer than MaxLine
	TooDeep      Reason = "too_deep"
	DuplicateKey Reason = "duplicate_key"

	ChainBroken     Reason = "chain_broken"     // prev is not the sum of the event before
	SeqGap          Reason = "seq_gap"          // numbers are missing before this line
	SeqDuplicate    Reason = "seq_duplicate"    // the number was there before
	SessionMismatch Reason = "session_mismatch" // a line of another session
	EpochFell       Reason = "epoch_fell"       // a line of an older epoch, not carried over
	BadEvent        Reason = "bad_event"        // sound, but the fold refuses it

	ClaimCorrupt      Reason = "claim_corrupt"
	SealMismatch      Reason = "seal_mismatch" // the seal does not fit its claim, or what it pins
	SealShort         Reason = "seal_short"    // the segment before is shorter than the seal says
	SegmentMissing    Reason = "segment_missing"
	TerminatorDamaged Reason = "terminator_damaged" // a whole line whose newline became another byte
	BlobMissing       Reason = "blob_missing"
	BlobMismatch      Reason = "blob_mismatch"
)

// Severities of a finding.
const (
	SeverityError  = "error"
	SeverityNotice = "notice"
)

// A Finding is what a reader has to say about one place of a stored log.
type Finding struct {
	Kind     Kind   `json:"kind"`
	Reason   Reason `json:"reason,omitempty"`
	Severity string `json:"severity"`
	Segment  uint64 `json:"segment"` // its epoch
	Line     int    `json:"line"`    // from 1; 0 is the whole segment
	Offset   int64  `json:"offset"`  // of the line in the segment, in bytes
	Bytes    int64  `json:"bytes"`   // without the newline
	SHA256   string `json:"sha256"`  // of these bytes; "" where the place has none
	Detail   string `json:"detail"`  // for people
	// The numbers around a hole, 0 where there is none or where no event is
	// missing.
	LastGoodSeq uint64 `json:"last_good_seq,omitzero"`
	NextGoodSeq uint64 `json:"next_good_seq,omitzero"`
	// Next is what to do about it, where that is not what to do about its kind.
	Next string `json:"-"`
}

// SeverityOf is the severity of findings of kind k. A log is not in order
// exactly when it has a finding of severity error.
func SeverityOf(k Kind) string {
	switch k {
	case CorruptLogLine, TailSuspect, UnsupportedSchemaVersion, HeadMismatch:
		return SeverityError
	}
	return SeverityNotice
}

// Err is the finding as an error of its kind, located.
func (f Finding) Err(session string) error {
	at := fmt.Sprintf("segment %06d line %d at byte %d: ", f.Segment, f.Line, f.Offset)
	if f.Segment == 0 { // the session has none
		at = ""
	}
	e := Errorf(f.Kind, "%s%s", at, f.Detail).
		With("session", session).With("segment", f.Segment).With("line", f.Line).With("offset", f.Offset)
	if f.Reason != "" {
		e.With("reason", string(f.Reason))
	}
	if f.Next != "" {
		e.With("next", f.Next)
	}
	return e
}
