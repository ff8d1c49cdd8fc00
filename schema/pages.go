package schema

import _ "embed"

// FormatPage is FORMAT.md, which describes the log, and KindsPage KINDS.md, the
// kinds of errors: what somebody needs who is given a log and has no steno.
var (
	//go:embed FORMAT.md
	FormatPage string
	//go:embed KINDS.md
	KindsPage string
)
