package journal_test

import "fmt"

// newestSealed is the newest sealed segment, 0 for none.
func newestSealed(lines *[modelSegments]int8, claimed int8) int8 {
	for claimed > 0 && lines[claimed-1] == 0 {
		claimed--
	}
	return claimed
}

// modelView is what counts of the segments from top, of which n lines do: how
// many lines of each. Nothing sound has a seal that pins more than is there.
func modelView(s *[modelSegments]modelSegment, lines *[modelSegments]int8, top, n int8) (v [modelSegments]int8, ok bool) {
	for g, pin := top, lines[max(top, 1)-1]; g > 0; {
		if pin > lines[g-1] || n == 0 {
			return v, false
		}
		v[g-1] = n
		x := &s[g-1]
		g, pin, n = x.before, x.length, x.length+x.carried
	}
	return v, true
}

// A modelDisk is what a disk may have: how many lines of each segment and how
// many records of each file of the logs.
type modelDisk struct {
	lines  [modelSegments]int8
	bare   [modelSegments]bool // what it carries is not there
	logs   [modelWriters][modelFiles]int8
	cached bool // there is all that the page cache shows
}

// disks yields all that the disk may have: what is durable, and perhaps some
// of what is not.
func (s *modelState) disks(yield func(d *modelDisk) string) string {
	d := modelDisk{cached: true}
	return s.disksFrom(&d, 0, yield)
}

func (s *modelState) disksFrom(d *modelDisk, at int8, yield func(d *modelDisk) string) string {
	cached := d.cached
	if g := at; g < s.claimed {
		x := &s.segments[g]
		for n := x.durable; n <= x.lines; n++ {
			d.lines[g], d.bare[g], d.cached = n, false, cached && n == x.lines
			if wrong := s.disksFrom(d, at+1, yield); wrong != "" {
				return wrong
			}
			if n > 0 && x.carried > 0 && !x.kept {
				d.bare[g], d.cached = true, false
				if wrong := s.disksFrom(d, at+1, yield); wrong != "" {
					return wrong
				}
			}
		}
		return ""
	}
	at -= s.claimed
	if at == modelWriters*modelFiles {
		return yield(d)
	}
	f := &s.logs[at/modelFiles].files[at%modelFiles]
	for n := f.synced; n <= f.n; n++ {
		d.logs[at/modelFiles][at%modelFiles], d.cached = n, cached && n == f.n
		if wrong := s.disksFrom(d, s.claimed+at+1, yield); wrong != "" {
			return wrong
		}
	}
	return ""
}

// wrong says what must not be so, "" if nothing is.
func (s *modelState) wrong(b modelBreach) string {
	if s.logs[0].over(otherSegment, s.other.durable, s.logs[0].synced()) < s.other.told {
		return fmt.Sprintf("line %d of the other session was acknowledged and is not in its log", s.other.told)
	}
	return s.disks(func(d *modelDisk) string { return s.wrongOn(d, b) })
}

func (s *modelState) wrongOn(d *modelDisk, b modelBreach) string {
	top := newestSealed(&d.lines, s.claimed)
	v, ok := modelView(&s.segments, &d.lines, top, s.counts(top, d))
	if !ok {
		return "a seal says that more counts than is there"
	}
	if b.replay {
		for g := range top - 1 {
			v[g] = max(v[g], s.counts(g+1, d))
		}
	}
	var next [modelWriters]int8
	for g := range s.claimed {
		x := &s.segments[g]
		if v[g] < x.told {
			return fmt.Sprintf("line %d of segment %d was acknowledged and is not in the log", x.told, g+1)
		}
		if v[g] > 1 {
			if x.first < next[x.owner] {
				return fmt.Sprintf("record %d of a writer is in the log twice", x.first)
			}
			next[x.owner] = x.first + v[g] - 1
		}
		if v[g] == 0 || x.before == 0 {
			continue
		}
		if x.carried > 0 && d.bare[g] {
			return "a seal is there without the lines before it"
		}
		if x.told > 0 && v[x.before-1] != x.length+x.carried {
			return fmt.Sprintf("a line has come into segment %d behind the acknowledged seal of segment %d", x.before, g+1)
		}
	}
	// What an unsynced seal says may be said otherwise by the next one, if the
	// power goes or its sync fails.
	if (s.sure || d.cached && !s.failed) && !prefixOf(s.view, v) {
		return "what a reader was given is no beginning of the log"
	}
	return ""
}

func prefixOf(a, b [modelSegments]int8) bool {
	for g := range a {
		if a[g] != b[g] {
			for _, later := range a[g+1:] {
				if later > 0 {
					return false
				}
			}
			return a[g] < b[g]
		}
	}
	return true
}
