package mcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// dialHTTP is dial for a server that is reached by HTTP.
func (s *server) dialHTTP() (*way, error) {
	at, err := url.Parse(s.cfg.URL)
	if err != nil {
		return nil, err
	}
	life, cut := context.WithCancel(context.Background())
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.TLSHandshakeTimeout = dialWait
	client := &http.Client{
		Transport: &carrier{base: base, at: at, headers: s.cfg.Headers, life: life},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Scheme != at.Scheme || req.URL.Host != at.Host || len(via) > 3 {
				return errors.New("it leads to another place")
			}
			return nil
		},
	}
	// Who closes says so to the server, which may not answer.
	end := func() error { time.AfterFunc(s.wait.end, cut); return nil }
	over := func() { cut(); base.CloseIdleConnections() }
	return &way{&sdk.StreamableClientTransport{Endpoint: s.cfg.URL, HTTPClient: client}, end, over}, nil
}

const dialWait = 10 * time.Second

// A carrier sends requests with the operator's headers, which go nowhere else, and
// reads no message that is too long.
type carrier struct {
	base    http.RoundTripper
	at      *url.URL
	headers map[string]string
	life    context.Context // no request outlives it
}

func (c *carrier) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != c.at.Scheme || req.URL.Host != c.at.Host {
		return nil, errors.New("it is another place")
	}
	ctx, cancel := context.WithCancel(req.Context())
	stop := context.AfterFunc(c.life, cancel)
	req = req.Clone(ctx)
	for k, v := range c.headers {
		req.Header.Set(k, v)
	}
	res, err := c.base.RoundTrip(req)
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	seen := of(req.Context())
	if seen != nil {
		seen.status.Store(int32(res.StatusCode))
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	res.Body = &body{from: res.Body, in: bufio.NewReader(res.Body), done: func() { stop(); cancel() }, seen: seen, events: strings.TrimSpace(kind) == "text/event-stream"}
	res.ContentLength = -1
	return res, nil
}

// A body is an answer by HTTP, as JSON or as a stream of events, of which no message
// is too long. The result of a call is taken out of it.
type body struct {
	from   io.ReadCloser
	in     *bufio.Reader
	done   func()
	seen   *exchange // nil where it is not the answer to a call
	events bool
	since  int    // bytes of the message that is read
	event  []byte // what there is of an event but for its data
	data   []byte // lines of that, which are one message
	line   []byte // what is left to give
	end    error
}

func (b *body) Read(p []byte) (int, error) {
	for len(b.line) == 0 {
		if b.end != nil {
			return 0, b.end
		}
		b.next()
	}
	n := copy(p, b.line)
	b.line = b.line[n:]
	return n, nil
}

// next reads a line of events, or all of a message.
func (b *body) next() {
	var text []byte
	for {
		part, err := b.in.ReadSlice('\n')
		text = append(text, part...)
		if b.since += len(part); b.since > maxMessage {
			if b.seen != nil {
				b.seen.long.Store(true)
			}
			b.end = errLong
			return
		}
		if err != nil && err != bufio.ErrBufferFull {
			b.end = err
			break
		}
		if err == nil && b.events {
			break
		}
	}
	if b.line = text; b.seen == nil {
		return
	}
	if !b.events {
		b.line = takeResult(b.seen, text)
		return
	}
	line := bytes.TrimRight(text, "\r\n")
	if data, is := bytes.CutPrefix(line, []byte("data:")); is {
		b.data = append(append(b.data, bytes.TrimPrefix(data, []byte(" "))...), '\n')
		b.line = nil
	} else if len(line) > 0 {
		b.event = append(b.event, text...)
		b.line = nil
	}
	if len(line) > 0 && b.end == nil {
		return
	}
	// The event ends. Its data may stand in several lines, and is given so again.
	if b.since = 0; len(b.data) > 0 {
		data := takeResult(b.seen, bytes.TrimSuffix(b.data, []byte("\n")))
		b.event = append(append(append(b.event, "data: "...), bytes.ReplaceAll(data, []byte("\n"), []byte("\ndata: "))...), '\n')
	}
	b.line = append(b.event, b.line...)
	b.event, b.data = nil, nil
}

func (b *body) Close() error {
	b.done()
	return b.from.Close()
}
