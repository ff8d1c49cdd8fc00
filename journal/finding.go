package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"

	"steno/schema"
)

// A waiting finding is given when the next good number is known, and with it
// those that follow it, to keep the order of the log.
type waiting struct {
	schema.Finding
	hole bool
}

// flush gives the findings that waited for the next good number.
func (s *Scan) flush(next uint64) {
	for _, w := range s.waiting {
		if w.hole {
			w.NextGoodSeq = next
		}
		s.give(w.Finding)
	}
	s.waiting = s.waiting[:0]
}

func (s *Scan) give(f schema.Finding) {
	if s.stop {
		return
	}
	s.Findings++
	if f.Severity == schema.SeverityError && s.FirstError == nil {
		s.FirstError = &f
	}
	if !s.yield(Item{Finding: &f, Segment: f.Segment, Offset: f.Offset}, nil) {
		s.stop = true
		return
	}
	if s.opt.Strict && f.Severity == schema.SeverityError {
		s.yield(Item{}, f.Err(s.session))
		s.stop = true
	}
}

// maxWaiting bounds the findings that wait for the next good number. In a log
// that is nothing but damage the later ones are given without it.
const maxWaiting = 1 << 10

// found reports what is wrong with a place. why is a Reason or a Kind.
func (s *Scan) found(ctx context.Context, f schema.Finding, why error, hole bool) {
	if reason, ok := why.(schema.Reason); ok {
		f.Reason = reason
		if f.Kind == "" {
			f.Kind = schema.CorruptLogLine
		}
	} else {
		f.Kind = schema.KindOf(why)
	}
	f.Severity = schema.SeverityOf(f.Kind)
	if f.Detail == "" {
		f.Detail = detail(f)
	}
	if hole {
		f.LastGoodSeq = s.last
	}
	damage := f.Severity == schema.SeverityError
	if damage {
		s.damage(ctx, &f)
	}
	if hole && damage {
		// Only of damage may something be missing: a torn tail was never
		// acknowledged, and the state is the same with it and without. What a
		// repair lists is missing as it was before.
		s.damaged = true
		if s.opt.State != nil {
			s.opt.State.Hole()
		}
	}
	if len(s.waiting) >= maxWaiting || s.opt.Strict {
		s.flush(0)
	}
	if hole && !s.opt.Strict || len(s.waiting) > 0 {
		s.waiting = append(s.waiting, waiting{f, hole})
		return
	}
	s.give(f)
}

// forcible reports whether a forced claim may pass a finding: an unreadable
// claim above everything that counts, which the seal then lists as void.
func (s *Scan) forcible(f schema.Finding) bool {
	g := s.byEpoch[f.Segment]
	return f.Reason == schema.ClaimCorrupt && g != nil && !g.sealed && (s.open == nil || g.epoch > s.open.epoch)
}

// rest measures the bytes of a segment from an offset to end, a final newline
// only if it is asked for.
func (s *Scan) rest(ctx context.Context, g *segment, offset, end int64, newline bool) (n int64, sum string) {
	f, err := s.from(ctx, g.epoch, offset)
	if err != nil {
		s.fail(err)
		return 0, ""
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 32<<10)
	held := false // a newline that may be the last byte
	for in := io.LimitReader(f, end-offset); ; {
		k, err := in.Read(buf)
		if k > 0 {
			if held {
				h.Write([]byte{'\n'})
				n++
			}
			b, nl := bytes.CutSuffix(buf[:k], []byte{'\n'})
			if newline {
				b, nl = buf[:k], false
			}
			h.Write(b)
			n, held = n+int64(len(b)), nl
		}
		if err == io.EOF {
			return n, hex.EncodeToString(h.Sum(nil))
		}
		if err != nil {
			s.fail(schema.Errorf(schema.LogReadFailed, "session %s cannot be read: %s", s.session, plain(err)).With("session", s.session).Cause(err))
			return n, ""
		}
	}
}

// detail says a finding in words.
func detail(f schema.Finding) string {
	switch f.Reason {
	case schema.SumMismatch:
		return "the line's bytes are not those its sum was taken over"
	case schema.ChainBroken:
		return "prev is not the sum of the event before"
	case schema.SeqGap:
		return "numbers are missing before this line"
	case schema.SeqDuplicate:
		return "the number of this line was given before"
	case schema.SessionMismatch:
		return "a line of another session"
	case schema.EpochFell:
		return "a line of an older epoch"
	case schema.ClaimCorrupt:
		return "the claim of the segment cannot be read"
	case schema.SealMismatch:
		return "the seal does not fit its claim or the segment before"
	case schema.SealShort:
		return "the segment before is shorter than this seal says"
	case schema.SegmentMissing:
		return "a segment that a later seal names is not there"
	case schema.TerminatorDamaged:
		return "the line's newline became another byte"
	case "":
		return map[schema.Kind]string{
			schema.TornTail:                 "a write that did not finish, as far as this log shows; a head kept elsewhere would tell",
			schema.VoidClaim:                "a claim that was never sealed",
			schema.Surplus:                  "bytes behind what the next seal counts",
			schema.TakeoverInProgress:       "a claim that is not sealed yet; the end of the log is tentative",
			schema.UnknownType:              "an event type that this version does not know",
			schema.BlankLine:                "white space where a line would stand",
			schema.ClockWentBack:            "the writer's clock stepped back",
			schema.UnsupportedSchemaVersion: "written by a newer version",
		}[f.Kind]
	}
	if words, ok := map[schema.Reason]string{
		schema.InvalidJSON:  "the line is no JSON",
		schema.NULBytes:     "the line has NUL bytes",
		schema.InvalidUTF8:  "the line is no valid UTF-8",
		schema.OverLimit:    "the line is longer than a line may be",
		schema.TooDeep:      "the line nests deeper than it may",
		schema.DuplicateKey: "an object of the line has a key twice",
		schema.GluedLines:   "a whole record stands on one line with something else",
		schema.NotAnObject:  "the line is JSON, but no object",
		schema.BadEnvelope:  "the line has not the keys of an event, or not in their order and form",
		schema.BadEvent:     "the event does not fit what came before it, or what its type must hold",
	}[f.Reason]; ok {
		return words
	}
	return "the line does not check out"
}
