package mcp

import (
	"log/slog"
	"testing"
	"time"
)

// A host is let go where a person takes too long, and not where a call that was
// allowed does.
func TestT25TheWaitIsForThePersonOnly(t *testing.T) {
	t.Parallel()
	g := NewGateway(GatewayConfig{Wait: 10 * time.Millisecond, Here: func(next string) string { return next }, Log: slog.New(slog.DiscardHandler)}, "g")
	cancelled := make(chan struct{}, 1)
	c := &call{id: "c", waits: make(chan chan struct{}, 1), cancel: func() { cancelled <- struct{}{} }}
	g.byID["c"] = c
	g.Asked("c")
	g.Answered("c")
	ended, done := make(chan struct{}), make(chan struct{})
	go func() { g.patience(c, nil, done); close(ended) }()
	for len(c.waits) > 0 { // until it has seen the question, and that it is answered
		time.Sleep(time.Millisecond)
	}
	g.Asked("c") // of its next attempt
	<-cancelled
	<-ended
	if len(c.waits) > 0 {
		t.Error("the host was let go while the call ran")
	}
	close(done)
}
