package mcp_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// raw is a server that is no friend: it speaks the protocol by hand and does to each
// call what the name of the tool says. In the folder dir it notes what it was asked.
type raw struct {
	mode, dir string
	out       *bufio.Writer
	changed   bool
}

type rawMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Version string                     `json:"protocolVersion"`
		Name    string                     `json:"name"`
		Cursor  string                     `json:"cursor"`
		Reason  string                     `json:"reason"`
		Args    json.RawMessage            `json:"arguments"`
		Meta    map[string]json.RawMessage `json:"_meta"`
	} `json:"params"`
}

func rawServer(mode, dir string) error {
	r := &raw{mode: mode, dir: dir, out: bufio.NewWriter(os.Stdout)}
	r.note("started")
	switch mode {
	case "exits":
		fmt.Fprintln(os.Stderr, "there is no licence; API_TOKEN=abcdefg123456")
		os.Exit(3)
	case "greets":
		r.say("hello, this is a server\n\n")
	case "parent":
		held, err := os.Create(filepath.Join(dir, "held"))
		if err == nil {
			err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX)
		}
		child := exec.Command("sleep", "600")
		child.ExtraFiles = []*os.File{held} // and its lock
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			if mode == "stays" {
				time.Sleep(time.Hour)
			}
			return nil
		}
		var m rawMessage
		if err == nil {
			err = json.Unmarshal(line, &m)
		}
		if err != nil {
			return err
		}
		r.hear(&m)
		if err := r.out.Flush(); err != nil {
			return err
		}
	}
}

func (r *raw) note(text string) {
	f, err := os.OpenFile(filepath.Join(r.dir, "notes"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(text + "\n")
		f.Close()
	}
}

func (r *raw) say(text string) { _, _ = r.out.WriteString(text); _ = r.out.Flush() }

func (r *raw) answer(id json.RawMessage, result string) {
	r.say(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + result + "}\n")
}

func (r *raw) hear(m *rawMessage) {
	switch m.Method {
	case "": // an answer
	case "initialize":
		if r.mode == "silent" {
			return
		}
		r.answer(m.ID, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"raw","version":"1"}}`)
	case "tools/list":
		r.list(m)
	case "tools/call":
		r.note("call " + m.Params.Name + " " + string(m.Params.Meta["steno/call"]))
		r.call(m)
	case "notifications/cancelled":
		r.note("cancelled")
	default:
		if m.ID != nil && r.mode != "silent" {
			r.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32601,"message":"no such method"}}` + "\n")
		}
	}
}

const rawInput = `{"type":"object","properties":{"n":{"type":"integer"}}}`

func rawTool(name, more string) string {
	return `{"name":` + string(mustJSON(name)) + `,"description":"Does ` + name + `.","inputSchema":` + rawInput + more + `}`
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (r *raw) list(m *rawMessage) {
	var tools []string
	for _, name := range []string{"echo", "die", "hang", "twice", "strangers", "flood", "long", "longid", "image", "progress", "change", "garbage", "big", "fails", "env", "no", "null", "array", "string", "contents"} {
		tools = append(tools, rawTool(name, ""))
	}
	next := ""
	switch r.mode {
	case "endless":
		next = `,"nextCursor":"` + m.Params.Cursor + `x"`
		tools = nil
	case "many":
		for i := range 1100 {
			tools = append(tools, rawTool(fmt.Sprint("t", i), ""))
		}
	case "names":
		tools = []string{rawTool("a.b", ""), rawTool("a_b", ""), rawTool("files/read", ""), rawTool(strings.Repeat("long", 30), ""), rawTool("taken", "")}
	case "schemas":
		schema := func(name, text string) string {
			return `{"name":"` + name + `","description":"D.","inputSchema":` + text + `}`
		}
		tools = []string{rawTool("echo", ""), schema("remote", `{"type":"object","$ref":"http://example.com/s.json"}`), schema("array", `{"type":"array"}`),
			schema("deep", `{"type":"object","properties":`+strings.Repeat(`{"a":`, 100)+"1"+strings.Repeat("}", 100)+"}"),
			schema("large", `{"type":"object","description":"`+strings.Repeat("x", 300<<10)+`"}`), schema("pattern", `{"type":"object","properties":{"a":{"pattern":"(?=a)"}}}`),
			`{"name":"mute","inputSchema":{"type":"object"},"outputSchema":{"type":"string"}}`}
	case "trust":
		tools = []string{rawTool("reads", `,"annotations":{"readOnlyHint":true,"openWorldHint":false}`), rawTool("again", `,"annotations":{"idempotentHint":true,"destructiveHint":false}`), rawTool("plain", "")}
	}
	if r.changed {
		tools = []string{rawTool("echo", `,"title":"new"`), rawTool("added", "")}
	}
	r.answer(m.ID, `{"tools":[`+strings.Join(tools, ",")+`]`+next+`}`)
}

func text(s string) string {
	return `{"content":[{"type":"text","text":` + string(mustJSON(s)) + `}]}`
}

func (r *raw) call(m *rawMessage) {
	token := string(m.Params.Meta["progressToken"])
	switch m.Params.Name {
	case "echo":
		r.answer(m.ID, text(string(m.Params.Args)))
	case "die":
		os.Exit(1)
	case "hang":
	case "twice":
		r.answer(m.ID, text("first"))
		r.answer(m.ID, text("second"))
	case "strangers":
		r.answer(json.RawMessage("987654321"), text("whose?"))
		r.answer(json.RawMessage(`"who"`), text("whose?"))
		r.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody","progress":1}}` + "\n")
		r.say(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"your password?","requestedSchema":{"type":"object"}}}` + "\n")
		r.answer(m.ID, text("mine"))
	case "flood":
		for range 5_000 {
			_, _ = r.out.WriteString(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":1,"message":"on and on"}}` + "\n" +
				`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"on and on"}}` + "\n")
		}
		r.answer(m.ID, text("over"))
	case "long", "longid":
		id := `"id":` + string(m.ID) + `,`
		if m.Params.Name == "long" {
			_, _ = r.out.WriteString(`{"jsonrpc":"2.0",` + id)
		} else {
			_, _ = r.out.WriteString(`{"jsonrpc":"2.0",`)
		}
		_, _ = r.out.WriteString(`"result":{"content":[{"type":"text","text":"`)
		part := strings.Repeat("0123456789abcdef", 64<<10)
		for range 100 {
			_, _ = r.out.WriteString(part)
		}
		_, _ = r.out.WriteString(`"}]}`)
		if m.Params.Name == "longid" {
			_, _ = r.out.WriteString(`,"id":` + string(m.ID))
		}
		r.say("}\n")
	case "image":
		data := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("png!", 100_000)))
		r.answer(m.ID, `{"content":[{"type":"text","text":"see"},{"type":"image","mimeType":"image/png","data":"`+data+`"},`+
			`{"type":"resource","resource":{"uri":"file:///a","mimeType":"application/zip","blob":"UEsDBA=="}},{"type":"resource","resource":{"uri":"file:///b","text":"words"}},`+
			`{"type":"resource_link","uri":"file:///c","name":"c"},{"type":"audio","mimeType":"audio/wav","data":"***"}],"structuredContent":{"big":12345678901234567890,"e":1e400,"b":1,"a":2}}`)
	case "progress":
		for i := range 3 {
			r.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"total":3}}`+"\n", token, i+1))
		}
		r.answer(m.ID, text("done"))
	case "change":
		r.changed = true
		r.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n")
		r.answer(m.ID, text("changed"))
	case "garbage":
		r.say("{this is no JSON}\n")
	case "big":
		r.answer(m.ID, text(strings.Repeat("x", 4<<20)))
	case "fails":
		r.say(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32602,"message":"no such thing; API_TOKEN=abcdefg123456"}}` + "\n")
	case "null", "array", "string", "contents":
		r.answer(m.ID, map[string]string{"null": "null", "array": "[]", "string": `"done"`, "contents": `{"content":"done"}`}[m.Params.Name])
	case "no":
		r.answer(m.ID, `{"content":[{"type":"text","text":"it cannot be done"}],"isError":true}`)
	case "env":
		_, err := os.ReadDir(os.Getenv("LOOK"))
		n, _ := os.ReadDir(os.Getenv("LOOK"))
		r.answer(m.ID, text(fmt.Sprint(strings.Join(os.Environ(), "\n"), "\nlook: ", len(n), " ", err)))
	}
}
