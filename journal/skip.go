package journal

import (
	"context"
	"fmt"
	"strings"

	"steno/schema"
)

// A Listed is what one repair of a session left out.
type Listed struct {
	Epoch  uint64 `json:"epoch"` // of its seal
	By     string `json:"by"`
	Reason string `json:"reason"`
	Places int    `json:"places"`
	Lines  int    `json:"lines"`
}

// maxSkips bounds the places that all repairs of one session list together, so
// that a reader's memory is bounded. A repair that would need more is refused.
const maxSkips = 1 << 16

// maxReread bounds how often a segment is read again, as a whole, to compare
// places of many lines: a list that was forged could ask for any amount.
const maxReread = 16

// skipAt is where a listed place begins.
type skipAt struct {
	epoch uint64
	line  int
}

type skip struct {
	*schema.Skipped
	by *Listed
}

// byteReasons are those that a line has by its own bytes, or for which it is
// not given. Consecutive lines with any of them can be listed as one place.
var byteReasons = map[schema.Reason]bool{
	schema.InvalidJSON: true, schema.InvalidUTF8: true, schema.NULBytes: true, schema.GluedLines: true,
	schema.NotAnObject: true, schema.BadEnvelope: true, schema.SumMismatch: true, schema.OverLimit: true,
	schema.TooDeep: true, schema.DuplicateKey: true, schema.TerminatorDamaged: true,
	schema.SeqDuplicate: true, schema.SessionMismatch: true, schema.EpochFell: true,
}

// onGiven are the reasons of lines that are sound and are given: nothing is
// missing there, and their bytes are all that there is to compare.
var onGiven = map[schema.Reason]bool{schema.BadEvent: true, schema.BlobMissing: true, schema.BlobMismatch: true}

// A hole is what the reading knows of the place where events may be missing,
// from the last event given to the next one.
type hole struct {
	begun    bool   // damage was found since the last event
	unlisted bool   // damage that no repair lists
	next     uint64 // the number behind it, as the repairs that list it say
}

// learn takes up what a repair's seal lists. Only a seal that counts is heard:
// it must fit its claim and stand in what a later seal trusts, and the event
// behind it, or that later seal, must name its sum. So a line that was put in
// its place hides nothing.
func (s *Scan) learn(g *segment, seal *schema.Seal) {
	list := seal.Skipped
	switch {
	case seal.How != schema.HowRepair || g.sealLine == 0 || len(list) == 0 || !g.sealFits,
		g.pin == nil && g != s.open:
		return
	case g.pin != nil && g.pin.seq == g.sealHead.Seq:
		if g.pin.sum != g.sealHead.Sum {
			return
		}
	case g.pin != nil && g.sealEnd > g.pin.len, g.followed && g.followedBy != g.sealHead.Sum:
		return
	}
	by := &Listed{Epoch: g.epoch}
	if e := seal.Evidence; e != nil {
		by.By, by.Reason = bounded(e.By), bounded(e.Reason)
	}
	for i := range list {
		k := &list[i]
		if k.Epoch >= g.epoch || k.Line < 0 || k.Lines < 0 || s.listed == maxSkips ||
			max(len(k.SHA256), len(k.Prev), len(k.Blob), len(k.Reason)) > 64 { // a reader keeps the list
			continue
		}
		if s.skips == nil {
			s.skips = map[skipAt][]skip{}
		}
		at := skipAt{k.Epoch, k.Line}
		s.skips[at] = append(s.skips[at], skip{k, by})
		s.listed++
		by.Places++
		by.Lines += k.Lines
	}
	if by.Places > 0 {
		s.Repairs = append(s.Repairs, *by)
	}
}

// bounded is what a reader keeps of who repaired and why, and shows with every
// place.
func bounded(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
}

// placeOf is how a repair lists a finding. Beside the line it holds on to what
// the finding is about: the event before, where a hole or a broken link
// begins; the claim, of a seal that may not fit it; what is left of a segment
// that was cut short.
func (s *Scan) placeOf(ctx context.Context, f *schema.Finding) schema.Skipped {
	k := schema.Skipped{Epoch: f.Segment, Line: f.Line, Lines: 1, Offset: f.Offset, Bytes: f.Bytes, SHA256: f.SHA256, Reason: f.Reason}
	g := s.byEpoch[f.Segment]
	switch f.Reason {
	case schema.BlobMissing, schema.BlobMismatch:
		k.Blob = s.blobAt
	case schema.SegmentMissing:
		k.Lines = 0
	case schema.SealMismatch:
		k.Line, k.Lines, k.Offset = 1, f.Line, 0
		k.Bytes, k.SHA256 = s.rest(ctx, g, 0, f.Offset+f.Bytes, true)
	case schema.SealShort:
		b := s.byEpoch[g.previous.Epoch]
		k.Epoch, k.Line, k.Offset = b.epoch, b.endLine+1, b.end
		k.Bytes, k.SHA256 = s.rest(ctx, b, b.end, b.size, true)
	}
	if !onGiven[f.Reason] && !s.hole.begun || f.Reason == schema.ChainBroken || f.Reason == schema.SealMismatch {
		k.Prev = s.sum.String()
	}
	return k
}

// skipped finds the place that covers a finding, in the list of any repair;
// nil if there is none, or if there are other bytes there now.
func (s *Scan) skipped(ctx context.Context, f *schema.Finding) *skip {
	if s.listed == 0 || f.Kind != schema.CorruptLogLine || f.Reason == "" {
		return nil
	}
	if byteReasons[f.Reason] && s.run != nil && f.Segment == s.run.Epoch && f.Offset < s.run.Offset+s.run.Bytes {
		return s.run
	}
	g := s.byEpoch[f.Segment]
	k := s.placeOf(ctx, f)
	for _, have := range s.skips[skipAt{k.Epoch, k.Line}] {
		if have.Reason != k.Reason || have.Offset != k.Offset || have.Blob != k.Blob || k.Prev != "" && have.Prev != k.Prev {
			continue
		}
		// Where a hole began when it was repaired, and now it is in the middle
		// of one, an event has gone, unless a later repair knows of it.
		gone := k.Prev == "" && have.Prev != "" && s.hole.next < have.Next
		if gone && !s.hole.unlisted {
			continue
		}
		if have.Lines > k.Lines && byteReasons[k.Reason] {
			if have.Bytes < k.Bytes || g.reread+have.Bytes > maxReread*g.size {
				continue
			}
			g.reread += have.Bytes
			if n, sum := s.rest(ctx, g, have.Offset, have.Offset+have.Bytes, true); n != have.Bytes || sum != have.SHA256 {
				continue
			}
			s.run = &have
		} else if have.Lines != k.Lines || have.Bytes != k.Bytes || have.SHA256 != k.SHA256 {
			continue
		}
		if gone && s.opt.plan != nil { // what is listed now must know of it
			s.opt.plan.again = append(s.opt.plan.again, *have.Skipped)
		}
		return &have
	}
	return nil
}

// damage judges a finding of severity error: one that a repair lists becomes
// a notice, and of the others a repair that is being planned takes note.
func (s *Scan) damage(ctx context.Context, f *schema.Finding) {
	k := s.skipped(ctx, f)
	if k != nil {
		f.Kind = schema.Repaired
		f.Severity = schema.SeverityOf(f.Kind)
		f.Detail += fmt.Sprintf("; left out by the repair of epoch %d, by %s: %s", k.by.Epoch, k.by.By, k.by.Reason)
	} else {
		s.hard = s.hard || !s.forcible(*f)
		if s.opt.plan != nil {
			s.opt.plan.add(s, *f, s.placeOf(ctx, f))
		}
	}
	claim := f.Reason == schema.ClaimCorrupt && !s.byEpoch[f.Segment].sealed // of no part of the log
	if onGiven[f.Reason] || f.Kind == schema.HeadMismatch || claim {
		return
	}
	s.hole.begun = true
	if k == nil {
		s.hole.unlisted = true
	} else {
		s.hole.next = max(s.hole.next, k.Next)
	}
}

// wider reports whether more is missing before event seq than when its hole
// was repaired.
func (s *Scan) wider(seq uint64) bool {
	return s.hole.next > 0 && !s.hole.unlisted && seq > s.hole.next
}
