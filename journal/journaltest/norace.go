//go:build !race

package journaltest

const slower = 1
