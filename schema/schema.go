// Package schema says what a log means on paper: the line and its codec, the
// types of events and what they must hold, the closed list of error kinds, the
// names that may stand in a subject or a file name, and heads.
//
// It does no I/O and reads no clock. FORMAT.md beside this file describes the
// line well enough to write a second implementation; KINDS.md lists the kinds.
package schema
