package mcp

import (
	"io"
	"log/slog"
	"time"

	"steno/executor"
)

// StartQuick is Start with little patience.
func StartQuick(reg *executor.Registry, list []executor.MCPServer, o Options, connect time.Duration) *Servers {
	return start(reg, list, o, patience{connect: connect, first: 10 * time.Millisecond, most: 100 * time.Millisecond,
		sound: time.Minute, list: time.Millisecond, end: 200 * time.Millisecond})
}

// MaxMessage is how many bytes a message may have.
const MaxMessage = maxMessage

// Stderr is what a program's standard error goes to.
func Stderr(log *slog.Logger) io.Writer { return &stderr{log: log} }
