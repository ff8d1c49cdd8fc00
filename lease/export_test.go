package lease

// SetAside sets a damaged blob aside, with the exchange that it uses.
var SetAside = setAside

// Superseded reports whether the lines of a log that a segment has are not needed
// any more.
var Superseded = (*Holders).superseded
