package lease

// SetAside sets a damaged blob aside, with the exchange that it uses.
var SetAside = setAside

// Superseded reports whether the lines of a log that a segment has are not needed
// any more.
var Superseded = (*Holders).superseded

// SweepLogs removes the logs of the dead that nobody needs.
var SweepLogs = (*Holders).sweepLogs

// AppendRecord appends a record of a log's first generation.
func AppendRecord(b []byte, id string, place int64, session string, epoch uint64, offset int64, lines []byte) []byte {
	return appendRecord(b, id, &record{generation: 1, place: place, session: session, epoch: epoch, offset: offset, bytes: int64(len(lines))}, lines)
}

// LetGo makes a slot one of those whose folder does not stay open, and says
// whether it is closed now.
func LetGo(s *Slot) bool {
	s.forget()
	s.dir.mu.Lock()
	defer s.dir.mu.Unlock()
	s.dir.lean = true
	if s.dir.users == 0 {
		_ = s.dir.letGo()
	}
	return s.dir.root == nil
}
