package mcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"steno/executor"
	"steno/executor/mcp"
	"steno/executor/redact"
)

// The data of an event may stand in several lines; the values in it stay as they came.
func TestT10AResultInSeveralLinesOfAnEvent(t *testing.T) {
	t.Parallel()
	const values = `{"n":12345678901234567890,"x":1e400,"b":1,"a":2}`
	for name, form := range map[string]string{
		"one":     "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[],\"structuredContent\":" + values + "}}\n\n",
		"several": "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\ndata: \"result\":{\"content\":[],\ndata:\"structuredContent\":" + values + "}}\nid: 7\n\n",
		"no end":  "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\r\ndata: \"result\":{\"content\":[],\"structuredContent\":" + values + "}}\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWeb()
			defer w.end()
			inner := w.handler
			w.handler = http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
				if req.Method == "POST" {
					body, _ := io.ReadAll(req.Body)
					req.Body = io.NopCloser(bytes.NewReader(body))
					var m struct {
						ID     json.RawMessage `json:"id"`
						Method string          `json:"method"`
					}
					_ = json.Unmarshal(body, &m)
					if m.Method == "tools/call" {
						out.Header().Set("Content-Type", "text/event-stream")
						fmt.Fprintf(out, form, m.ID)
						return
					}
				}
				inner.ServeHTTP(out, req)
			})
			b := idle(t).startAs(executor.MCPServer{Name: "raw", URL: w.URL})
			defer b.all.Close()
			if res, err := b.call(t.Context(), "echo", `{}`); err != nil || string(res.Structured) != values {
				t.Errorf("%s, %v", res.Structured, err)
			}
		})
	}
}

// A line that is cut loses its last word: half a secret would not be found.
func TestNoHalfOfASecretIsLogged(t *testing.T) {
	t.Parallel()
	redactor, err := redact.New(nil, redact.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	const secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
	for _, before := range []string{"", strings.Repeat("x ", 982), strings.Repeat("x ", 990), strings.Repeat("x", 1975)} {
		var log bytes.Buffer
		fmt.Fprintln(mcp.Stderr(slog.New(redactor.Handler(slog.NewTextHandler(&log, nil)))), before+secret)
		if strings.Contains(log.String(), "ghp_a") || log.Len() == 0 {
			t.Errorf("behind %d bytes: %s", len(before), &log)
		}
	}
}
