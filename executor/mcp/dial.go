package mcp

import (
	"bytes"
	"errors"
	"log/slog"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// A way leads to a server.
type way struct {
	sdk.Transport
	// end ends what has been started for it, and says how a program ended that had
	// ended before. It is called before the connection is closed, over afterwards.
	end  func() error
	over func()
}

func (s *server) dial() (*way, error) {
	if s.cfg.URL != "" {
		return s.dialHTTP()
	}
	said := &stderr{log: s.log}
	child, err := executor.StartChild(executor.ChildSpec{Argv: s.cfg.Argv, Dir: s.cfg.Dir, Env: s.cfg.Env, Protect: s.all.opts.Protect, Stderr: said})
	if err != nil {
		return nil, err
	}
	odd := 0
	out := newLines(child.Out, func(text []byte) {
		if odd++; odd <= maxOdd {
			s.log.Warn("an MCP server prints what is no message; it is left out", "text", s.clean(string(text)))
		}
	})
	end := sync.OnceValue(func() error {
		by := false // us
		select {
		case <-child.Done():
		case <-time.After(exitWait): // who has closed its output is about to end
			by = true
		}
		child.End(s.wait.end)
		_ = child.Out.Close()
		if by {
			return nil
		}
		if err := child.Err(); err != nil {
			return err
		}
		return errors.New("it ended by itself")
	})
	return &way{tapped{&sdk.IOTransport{Reader: out, Writer: patientWriter{child.In, writeWait}}}, end, func() {}}, nil
}

const (
	maxOdd   = 5 // lines of a connection that are told
	exitWait = 100 * time.Millisecond
)

// A stderr tells an operator what a program prints to standard error, line by line
// and not faster than anybody reads.
type stderr struct {
	log   *slog.Logger
	line  []byte
	began time.Time
	told  int
}

// maxTold is how many lines are told in a minute, maxLine how much of one.
const (
	maxTold = 100
	maxLine = 2000
)

func (w *stderr) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		w.line = append(w.line, line[:min(len(line), maxLine+1-len(w.line))]...)
		if rest = after; ended {
			w.tell()
		}
	}
	return len(p), nil
}

func (w *stderr) tell() {
	text := words(w.line)
	w.line = w.line[:0]
	if time.Since(w.began) > time.Minute {
		w.began, w.told = time.Now(), 0
	}
	w.told++
	switch {
	case text == "" || w.told > maxTold+1:
	case w.told == maxTold+1:
		w.log.Warn("an MCP server prints much to standard error; the rest of this minute is left out")
	default:
		w.log.Warn("an MCP server says", "text", text)
	}
}

// words are those of a line that may be logged, where what is secret is taken out: of
// a long one the last is left out, since half a secret would not be found.
func words(line []byte) string {
	if len(line) > maxLine {
		line = line[:maxLine]
		line = append(line[:bytes.LastIndexAny(line, " \t")+1:maxLine], "…"...)
	}
	text, _ := schema.ValidUTF8(string(bytes.TrimSpace(line)))
	return text
}
