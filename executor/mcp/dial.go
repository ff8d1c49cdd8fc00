package mcp

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
)

// dial gives the way to the server. end ends what has been started for it; it says
// how a program ended that had ended before.
func (s *server) dial() (transport sdk.Transport, end func() error, err error) {
	if s.cfg.URL != "" {
		return s.dialHTTP()
	}
	words := &stderr{log: s.log}
	child, err := executor.StartChild(executor.ChildSpec{Argv: s.cfg.Argv, Dir: s.cfg.Dir, Env: s.cfg.Env, Protect: s.all.opts.Protect, Stderr: words})
	if err != nil {
		return nil, nil, err
	}
	odd := 0
	out := newLines(child.Out, func(text []byte) {
		if odd++; odd <= maxOdd {
			s.log.Warn("an MCP server prints what is no message; it is left out", "text", clean(string(text)))
		}
	})
	end = sync.OnceValue(func() error {
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
	return &sdk.IOTransport{Reader: out, Writer: patientWriter{child.In}}, end, nil
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
		w.line = append(w.line, line[:min(len(line), maxLine-len(w.line))]...)
		if rest = after; ended {
			w.tell()
		}
	}
	return len(p), nil
}

func (w *stderr) tell() {
	text := string(bytes.TrimSpace(w.line))
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

// dialHTTP is dial for a server that is reached by HTTP.
func (s *server) dialHTTP() (sdk.Transport, func() error, error) {
	at, err := url.Parse(s.cfg.URL)
	if err != nil {
		return nil, nil, err
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSHandshakeTimeout = dialWait
	client := &http.Client{
		Transport: &carrier{base: base, at: at, headers: s.cfg.Headers},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Scheme != at.Scheme || req.URL.Host != at.Host || len(via) > 3 {
				return errors.New("it leads to another place")
			}
			return nil
		},
	}
	end := func() error { base.CloseIdleConnections(); return nil }
	return &sdk.StreamableClientTransport{Endpoint: s.cfg.URL, HTTPClient: client}, end, nil
}

const dialWait = 10 * time.Second

// A carrier sends requests with the operator's headers, which go nowhere else, and
// reads no message that is too long.
type carrier struct {
	base    http.RoundTripper
	at      *url.URL
	headers map[string]string
}

func (c *carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != c.at.Scheme || req.URL.Host != c.at.Host {
		return nil, errors.New("it is another place")
	}
	req = req.Clone(req.Context())
	for k, v := range c.headers {
		req.Header.Set(k, v)
	}
	res, err := c.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	seen, _ := req.Context().Value(exchangeKey{}).(*exchange)
	if seen != nil {
		seen.status.Store(int32(res.StatusCode))
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	res.Body = &body{from: res.Body, seen: seen, events: strings.TrimSpace(kind) == "text/event-stream"}
	return res, nil
}

// A body is an answer by HTTP of which no message is too long.
type body struct {
	from   io.ReadCloser
	seen   *exchange // nil where nobody asks
	events bool      // it is a stream of events, which an empty line ends
	since  int       // bytes of the message that is read
	last   byte
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	for _, c := range p[:n] {
		if b.since++; c == '\n' && b.last == '\n' && b.events {
			b.since = 0
		}
		if c != '\r' {
			b.last = c
		}
		if b.since > maxMessage {
			if b.seen != nil {
				b.seen.long.Store(true)
			}
			return 0, errLong
		}
	}
	return n, err
}

func (b *body) Close() error { return b.from.Close() }
