package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"steno/executor"
	"steno/schema"
)

// patience is how long things may take.
type patience struct {
	connect     time.Duration // a server has to say who it is and what tools it has
	first, most time.Duration // pauses before one that has ended is started again
	sound       time.Duration // it must have lived for the next pause to be the first
	list        time.Duration // between two looks at a list of tools that changes
	end         time.Duration // a program has to end before it gets the next signal
}

var usual = patience{connect: 30 * time.Second, first: 250 * time.Millisecond, most: 30 * time.Second,
	sound: time.Minute, list: time.Second, end: 2 * time.Second}

// A server is one MCP server and its tools.
type server struct {
	all     *Servers
	wait    patience
	cfg     executor.MCPServer
	prefix  string // of the names of its tools
	log     *slog.Logger
	client  *sdk.Client
	changed chan struct{} // its list of tools has
	tried   chan struct{} // closed when it is connected, or has failed to once
	once    sync.Once
	speech  sync.Map // calls by their progress token
	tokens  atomic.Uint64
	asked   questions

	mu      sync.Mutex
	link    *link             // nil while it is away
	why     string            // it is
	version string            // of the protocol; "" if it was never heard
	tools   map[string]remote // that are registered, by their names here
	left    []string
}

func newServer(all *Servers, cfg executor.MCPServer) *server {
	s := &server{all: all, wait: all.wait, cfg: cfg, prefix: schema.ToolName(cfg.Name) + "_", log: all.opts.Logger.With("mcp_server", cfg.Name),
		changed: make(chan struct{}, 1), tried: make(chan struct{}), why: "it has not answered yet", tools: map[string]remote{}}
	s.client = sdk.NewClient(&sdk.Implementation{Name: "steno", Version: executor.Version}, &sdk.ClientOptions{
		Capabilities:   &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}}},
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true}, // see question.go
		// A server of an older revision asks in the middle of a call, and no record
		// could keep that: a person is asked only where the call can be sent again.
		ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			s.log.Warn("an MCP server asks in the middle of a call; it is declined")
			return &sdk.ElicitResult{Action: "decline"}, nil
		},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			select {
			case s.changed <- struct{}{}:
			default: // it will be looked at anyway
			}
		},
		ProgressNotificationHandler: func(_ context.Context, req *sdk.ProgressNotificationClientRequest) { s.progress(req.Params) },
	})
	return s
}

// A link is a connection to a server. Its context ends with it, and so do calls.
type link struct {
	session *sdk.ClientSession
	ctx     context.Context
	cut     context.CancelFunc
}

// run keeps the server connected until ctx ends.
func (s *server) run(ctx context.Context) {
	for pause := s.wait.first; ; pause = min(2*pause, s.wait.most) {
		lived, err := s.live(ctx)
		if ctx.Err() != nil {
			s.gone("this process ends")
			return
		}
		why := s.clean(err.Error())
		s.gone(why)
		s.once.Do(func() { close(s.tried) })
		if lived > s.wait.sound {
			pause = s.wait.first
		}
		rest := pause/2 + rand.N(pause)
		s.log.Warn("an MCP server is away", "why", why, "again_in", rest.Round(time.Millisecond))
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return
		}
	}
}

// live is one connection from its beginning to its end, and how long that was.
func (s *server) live(ctx context.Context) (lived time.Duration, err error) {
	start, cancel := context.WithTimeout(ctx, s.wait.connect)
	defer cancel()
	to, err := s.dial()
	if err != nil {
		return 0, err
	}
	defer to.over()
	session, err := s.connect(start, to)
	if err != nil {
		late := start.Err() != nil
		said := to.end()
		switch {
		case late && ctx.Err() == nil:
			err = fmt.Errorf("it has not answered within %s", s.wait.connect)
		case said != nil: // a program says more by how it ended
			err = said
		}
		return 0, err
	}
	l := &link{session: session}
	l.ctx, l.cut = context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	defer func() {
		l.cut() // calls end first: who closes waits for them
		said := to.end()
		_ = session.Close()
		if heard := <-ended; err == nil {
			err = cmp.Or(said, heard, errors.New("it has closed the connection"))
		}
	}()
	if err := s.list(start, session); err != nil {
		return 0, fmt.Errorf("its tools cannot be listed: %w", err)
	}
	s.came(l)
	began := time.Now()
	for {
		select {
		case err := <-ended:
			ended <- err
			return time.Since(began), nil
		case <-l.ctx.Done():
			return time.Since(began), errors.New("the connection is broken")
		case <-s.changed:
			again, cancel := context.WithTimeout(l.ctx, s.wait.connect)
			err := s.list(again, session)
			cancel()
			if err != nil {
				return time.Since(began), fmt.Errorf("its tools cannot be listed: %w", err)
			}
			select {
			case <-time.After(s.wait.list):
			case <-l.ctx.Done():
			}
		}
	}
}

// connect says hello. The SDK may wait for a server that does not read.
func (s *server) connect(ctx context.Context, transport sdk.Transport) (*sdk.ClientSession, error) {
	type word struct {
		session *sdk.ClientSession
		err     error
	}
	said := make(chan word, 1)
	go func() {
		session, err := s.client.Connect(ctx, transport, nil)
		said <- word{session, err}
	}()
	select {
	case w := <-said:
		return w.session, w.err
	case <-ctx.Done():
		go func() {
			if w := <-said; w.session != nil {
				_ = w.session.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

func (s *server) came(l *link) {
	s.mu.Lock()
	s.link, s.why, s.version = l, "", "unknown"
	if r := l.session.InitializeResult(); r != nil {
		s.version = r.ProtocolVersion
	}
	n, left := len(s.tools), len(s.left)
	s.mu.Unlock()
	s.once.Do(func() { close(s.tried) })
	s.log.Info("an MCP server is connected", "tools", n, "left_out", left)
}

func (s *server) gone(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.why = nil, why
}

// drop ends a connection that is of no use any more.
func (s *server) drop(l *link) {
	s.mu.Lock()
	if s.link == l {
		s.link, s.why = nil, "the connection is broken"
	}
	s.mu.Unlock()
	l.cut()
}

// current is the connection, or kind unavailable.
func (s *server) current() (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == nil {
		return nil, schema.Errorf(schema.Unavailable, "the MCP server %s is away: %s", s.cfg.Name, s.why).
			With("server", s.cfg.Name).With("next", "call the tool again in a while, under a new call id")
	}
	return s.link, nil
}

func (s *server) ready() error {
	_, err := s.current()
	return err
}

// absent is why a tool of the server is not known: it has not been heard yet.
func (s *server) absent() error {
	s.mu.Lock()
	heard := s.version != ""
	s.mu.Unlock()
	if heard {
		return nil
	}
	return s.ready()
}

func (s *server) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{Server: s.cfg.Name, Connected: s.link != nil, Version: s.version, Why: s.why, Trusted: s.cfg.Trust,
		Tools: len(s.tools), Left: append([]string(nil), s.left...)}
}

// maxSaid bounds what is repeated of what a server says in a message or a log.
const maxSaid = 500

// clean is what a server says, as it may stand in a message: half a secret would not
// be found, so it is cut afterwards.
func (s *server) clean(text string) string {
	return short(s.redacted(text))
}

func (s *server) redacted(text string) string {
	if s.all.opts.Redact != nil {
		text, _ = schema.ValidUTF8(text)
		text, _ = s.all.opts.Redact.Text(text, "", nil)
	}
	return text
}

// short is a part of what a server says.
func short(text string) string {
	text, _ = schema.Truncate(strings.TrimSpace(text), maxSaid)
	return text
}
