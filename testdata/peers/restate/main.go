// Command restate measures a Restate server, RESTATE_SERVER, with a handler
// that makes one Run for each call.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"

	"peers/harness"
)

const (
	ingress  = "127.0.0.1:18080"
	admin    = "127.0.0.1:19070"
	node     = "127.0.0.1:15122"
	handlers = "127.0.0.1:19080"
)

// Tool is the service.
type Tool struct{}

// Call is its handler.
func (Tool) Call(ctx restate.Context, args json.RawMessage) (json.RawMessage, error) {
	return restate.Run(ctx, func(restate.RunContext) (json.RawMessage, error) { return harness.Tool(args), nil })
}

func main() {
	const name = "Restate"
	if !harness.Want(name) {
		return
	}
	dir := harness.Dir()
	defer os.RemoveAll(dir)
	go func() {
		harness.Must(server.NewRestate().WithLogger(slog.DiscardHandler, true).
			Bind(restate.Reflect(Tool{})).Start(context.Background(), handlers))
	}()
	cmd := exec.Command(os.Getenv("RESTATE_SERVER"), "--no-logo", "--base-dir", dir, "--node-name", "peer", "--listen-mode", "tcp")
	cmd.Env = append(os.Environ(), "RESTATE_DISABLE_TELEMETRY=true", "DO_NOT_TRACK=1", "RESTATE_LOG_FILTER=error",
		"RESTATE_INGRESS__BIND_ADDRESS="+ingress, "RESTATE_ADMIN__BIND_ADDRESS="+admin,
		"RESTATE_BIND_ADDRESS="+node, "RESTATE_ADVERTISED_ADDRESS=http://"+node)
	log, err := os.Create(filepath.Join(dir, "log"))
	harness.Must(err)
	cmd.Stdout, cmd.Stderr = log, log
	harness.Must(cmd.Start())
	end := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		time.AfterFunc(3*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024}, Timeout: 2 * time.Minute}
	post := func(url string, body []byte) error {
		r, err := client.Post(url, "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode >= 300 {
			err = fmt.Errorf("%s: %.200s", r.Status, b)
		}
		return err
	}
	until := func(url string, body []byte) {
		for try := 0; ; try++ {
			err := post(url, body)
			if err == nil {
				return
			}
			if try == 120 {
				end()
				harness.Must(err)
			}
			time.Sleep(250 * time.Millisecond)
		}
	}
	until("http://"+admin+"/deployments", []byte(`{"uri":"http://`+handlers+`"}`))
	until("http://"+ingress+"/Tool/Call", harness.Args(0, 0))
	harness.All(name, func(caller, n int) error { return post("http://"+ingress+"/Tool/Call", harness.Args(caller, n)) })
	end()
}
