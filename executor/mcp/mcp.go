// Package mcp makes tools of the tools that servers of the Model Context Protocol
// have: programs that are spoken to over their standard input and output, and
// servers that are reached by HTTP (streamable).
//
// A tool that a server calls T becomes SERVER_T, as [schema.ToolName] writes it; a
// name that is taken already leaves the later tool out. What a server says is
// hostile text. A tool of it is of tier 3, changes things and may not run again,
// whatever the server says of it, unless the operator trusts the server or says
// otherwise (see [executor.MCPServer]). A schema that cannot be used leaves that one
// tool out, and [Servers.Status] says why.
//
// A server that ends is started again, with pauses. While it is away its tools stay
// known and their calls are refused with kind unavailable, before anything is
// started. A call that was on its way when the connection broke is interrupted:
// nobody knows whether it took effect, so it is not sent again by itself.
//
// A server is told of a call, in _meta: steno/session, steno/call, steno/key (which
// stays the same in every attempt), steno/attempt, and the fencing token steno/epoch
// and steno/seq. A server that is trusted is also told steno/actor and steno/context.
package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"steno/executor"
	"steno/executor/redact"
)

// Options say how servers are run.
type Options struct {
	Protect []string // folders that their programs must not see: the store's
	// Redact takes secrets out of what servers say, where that is shown or becomes
	// part of a message; nil takes nothing out.
	Redact *redact.Redactor
	// Logger gets what operators need to know, also what programs print to standard
	// error; see [redact.Redactor.Handler]. slog.Default if nil.
	Logger *slog.Logger
}

// Servers are MCP servers whose tools are in a registry. All methods may be called
// from many goroutines.
type Servers struct {
	reg    *executor.Registry
	opts   Options
	list   []*server
	wait   patience
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// Start connects to the servers, each by itself, and keeps their tools in reg as
// they come and go. It waits for none of them.
func Start(reg *executor.Registry, list []executor.MCPServer, o Options) *Servers {
	return start(reg, list, o, usual)
}

func start(reg *executor.Registry, list []executor.MCPServer, o Options, p patience) *Servers {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	all := &Servers{reg: reg, opts: o, wait: p, cancel: cancel}
	for _, cfg := range list {
		s := newServer(all, cfg)
		all.list = append(all.list, s)
		reg.Host(s.prefix, s.absent)
	}
	for _, s := range all.list {
		all.work.Go(func() { s.run(ctx) })
	}
	return all
}

// Wait returns when each server is connected or has failed to once, or ctx ends.
func (all *Servers) Wait(ctx context.Context) {
	for _, s := range all.list {
		select {
		case <-s.tried:
		case <-ctx.Done():
			return
		}
	}
}

// Close ends the connections, and the programs. Calls that are on their way end.
func (all *Servers) Close() {
	if all == nil { // of who has none
		return
	}
	all.cancel()
	all.work.Wait()
}

// A Status is how it stands with a server. What is in it may be shown to people once
// it is escaped: servers have written parts of it.
type Status struct {
	Server    string   `json:"server"`
	Connected bool     `json:"connected"`
	Version   string   `json:"version,omitzero"` // of the protocol that is spoken
	Why       string   `json:"why,omitzero"`     // it is not connected
	Trusted   bool     `json:"trusted"`
	Tools     int      `json:"tools"`
	Left      []string `json:"left_out,omitzero"` // what was left out of its tools, and why
}

// String is a line about the server.
func (s Status) String() string {
	trusted := "what it says of its tools is not believed"
	if s.Trusted {
		trusted = "trusted"
	}
	if !s.Connected {
		return fmt.Sprintf("%s: away, %s", s.Server, s.Why)
	}
	return fmt.Sprintf("%s: connected (MCP %s), %d tools, %s", s.Server, s.Version, s.Tools, trusted)
}

// Status says how it stands with each server, in the order of the file.
func (all *Servers) Status() []Status {
	if all == nil {
		return nil
	}
	list := make([]Status, len(all.list))
	for i, s := range all.list {
		list[i] = s.status()
	}
	return list
}
