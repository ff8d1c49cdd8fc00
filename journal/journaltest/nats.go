package journaltest

import (
	"net"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// NATSOptions say what a server can do. The zero value is one without a
// listener and without JetStream.
type NATSOptions struct {
	// Listen opens a port of its own on 127.0.0.1, for child processes.
	Listen bool
	// JetStream keeps streams, each message synced before it is acknowledged.
	JetStream bool
	// Dir is where JetStream keeps them; a new folder if empty.
	Dir string
	// MaxPayload bounds a message; 1 MiB if zero.
	MaxPayload int
	// MaxStore bounds what streams may reserve; the server's own bound if zero.
	MaxStore int64
}

// NATS is a server in the test process.
type NATS struct {
	t       testing.TB
	options server.Options
	server  *server.Server
	dir     string
}

// StartNATS starts a server. It is stopped when the test ends.
func StartNATS(t testing.TB, o NATSOptions) *NATS {
	t.Helper()
	so := &server.Options{NoLog: true, NoSigs: true, DontListen: !o.Listen, Host: "127.0.0.1", Port: server.RANDOM_PORT,
		MaxPayload: int32(o.MaxPayload)}
	if o.JetStream {
		if o.Dir == "" {
			o.Dir = t.TempDir()
		}
		so.JetStream, so.StoreDir, so.SyncAlways, so.JetStreamMaxStore = true, o.Dir, true, o.MaxStore
	}
	n := &NATS{t: t, options: *so, dir: o.Dir}
	n.start()
	t.Cleanup(n.Stop)
	return n
}

func (n *NATS) start() {
	n.t.Helper()
	o := n.options
	s, err := server.NewServer(&o)
	if err != nil {
		n.t.Fatal(err)
	}
	s.Start()
	n.server = s
	if !s.ReadyForConnections(Deadline) {
		n.t.Fatal("the server does not start")
	}
}

// Restart starts a server that listens where this one did, once it is stopped, on
// another folder if dir is not empty. Connections by URL come back by themselves.
func (n *NATS) Restart(dir string) {
	n.t.Helper()
	if n.options.Port == server.RANDOM_PORT {
		n.options.Port = n.server.Addr().(*net.TCPAddr).Port
	}
	n.Stop()
	if dir != "" {
		n.dir, n.options.StoreDir = dir, dir
	}
	n.start()
}

// Connect connects inside the process. The connection is closed when the test
// ends.
func (n *NATS) Connect(opts ...nats.Option) *nats.Conn {
	n.t.Helper()
	opts = append([]nats.Option{nats.InProcessServer(n.server), nats.Timeout(Deadline)}, opts...)
	c, err := nats.Connect("", opts...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(c.Close)
	return c
}

// Listen subscribes on a connection of its own. The server has the subscription
// when Listen returns, so nothing that is published afterwards is missed.
func (n *NATS) Listen(subject string) *nats.Subscription {
	n.t.Helper()
	c := n.Connect()
	sub, err := c.SubscribeSync(subject)
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return sub
}

// URL is where child processes reach a server that listens.
func (n *NATS) URL() string { return n.server.ClientURL() }

// Dir is where JetStream keeps its streams. Another server may be started on it
// once this one is stopped.
func (n *NATS) Dir() string { return n.dir }

// Stop stops the server and waits for its end.
func (n *NATS) Stop() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}
