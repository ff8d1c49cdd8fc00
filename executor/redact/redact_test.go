package redact_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"steno/executor/redact"
	"steno/schema"
)

// None of these is a real secret.
const (
	madeKey   = "sk-test-A1b2C3d4A1b2C3d4A1b2C3d4A1b2C3d4"
	madeValue = "c0rrect/horse \"battery\""
)

var redactSecret = []byte("0123456789abcdef0123456789abcdef")

func redactor(t testing.TB, more redact.Rules) *redact.Redactor {
	t.Helper()
	r, err := redact.New(redactSecret, more)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var operatorRules = redact.Rules{
	Keys:     []string{"badge_number"},
	Patterns: []redact.Pattern{{Name: "ticket", Match: `(?i)ticket-[0-9]{6}`}, {Name: "tck", Match: `(TCK|TK[JK])[0-9]+`}, {Match: `-----BEGIN [A-Z ]+-----[\s\S]*?-----END [A-Z ]+-----`}},
	Values:   []redact.Secret{{Name: "DB", Value: madeValue}, {Name: "PIN", Value: "90210443"}},
}

func TestRedactionOfText(t *testing.T) {
	t.Parallel()
	r := redactor(t, operatorRules)
	for _, c := range []struct{ text, want, rule string }{
		{"key " + madeKey + ".", "key [redacted].", "pattern:api-key"},
		{`\n` + madeKey, `\n[redacted]`, "pattern:api-key"},
		{"AKIAEXAMPLEKEY000001", "[redacted]", "pattern:aws-access-key"},
		{"x ghp_0123456789abcdefghijABCDEFGHIJ012345 y", "x [redacted] y", "pattern:github-token"},
		{"curl -H 'Authorization: Bearer a1b2c3'", "curl -H 'Authorization: Bearer [redacted]'", "key:authorization"},
		{`curl -H "authorization: basic dTpw"`, `curl -H "authorization: basic [redacted]"`, "key:authorization"},
		{"then Bearer A1b2C3d4A1b2C3d4A1 then", "then Bearer [redacted] then", "pattern:bearer"},
		{"Cookie: a=b; c=d\nHost: x", "Cookie: [redacted]\nHost: x", "key:cookie"},
		{"https://h.invalid/?q=1&token=abc123&z=2", "https://h.invalid/?q=1&token=[redacted]&z=2", "key:token"},
		{"postgres://u:pa55w0rd@db/x", "postgres://u:[redacted]@db/x", "pattern:url-password"},
		{`"https:\/\/u:pa55@h\/"`, `"https:\/\/u:[redacted]@h\/"`, "pattern:url-password"},
		{"PASSWORD=hunter", "PASSWORD=[redacted]", "key:password"},
		{"export DB_PASSWORD='hun ter'", "export DB_PASSWORD='[redacted]'", "key:password"},
		{"CI_TOKEN=abcdef", "CI_TOKEN=[redacted]", "key:token"},
		{"  password: correcthorse\n", "  password: [redacted]\n", "key:password"},
		{"tool --password=abc --x", "tool --password=[redacted] --x", "key:password"},
		{`{"api_key":"abc","n":1}`, `{"api_key":"[redacted]","n":1}`, "key:api_key"},
		{`say {\"api_key\":\"a\\\"bc\",\"n\":1} twice`, `say {\"api_key\":\"[redacted]\",\"n\":1} twice`, "key:api_key"},
		{`{"password":"$ecret1"}`, `{"password":"[redacted]"}`, "key:password"},
		{"password=$ecret1", "password=[redacted]", "key:password"},
		{"badge-number: 17a", "badge-number: [redacted]", "key:badge_number"},
		{"see Ticket-123456", "see [redacted]", "pattern:ticket"},
		{"see TKJ7", "see [redacted]", "pattern:tck"},
		{"pin 90210443", "pin [redacted]", "value:PIN"},
		{"is " + madeValue, "is [redacted]", "value:DB"},
		{"?p=c0rrect%2Fhorse+%22battery%22", "?p=[redacted]", "value:DB"},
		{`log: c0rrect/horse \"battery\"!`, `log: [redacted]!`, "value:DB"},
		{"a\n-----BEGIN RSA PRIVATE KEY-----\nMIIB\n", "a\n[redacted]", "pattern:private-key"},
		{"…\nMIIBVgIB\nADAN+/=\n-----END PRIVATE KEY-----\nb", "…[redacted]\nb", "pattern:private-key"},
		{"-----BEGIN THING-----\nx\n-----END THING-----\nb", "[redacted]\nb", "pattern:3"},
		{"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJlLWhlcmU", "[redacted]", "pattern:jwt"},
	} {
		got, marks := r.Text(c.text, "/output", nil)
		if got != c.want || len(marks) != 1 || marks[0].Rule != c.rule || marks[0].Pointer != "/output" {
			t.Errorf("%q\nbecomes %q, %v\nwant    %q, %s", c.text, got, marks, c.want, c.rule)
		}
	}
}

// What is no secret stays, however much it looks like one.
func TestRedactionLeavesTheRest(t *testing.T) {
	t.Parallel()
	r := redactor(t, operatorRules)
	for _, text := range []string{
		"", "x", `{"max_tokens":4096,"token_count":17,"usage":{"total_tokens":9}}`,
		"commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "550e8400-e29b-41d4-a716-446655440000",
		"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
		"PWD=/home/me", "OLDPWD=/tmp\nPWD=/", "the word password alone", "enter your password: then press return", `fmt.Print("Password: ")`, `prompt("API key: ", x)`,
		"github.com/goccy/go-yaml v1.19.2 h1:PmFC1S6h8ljIz6gMRBopkjP1TVT7xuwrButHID66PoM=", "stored key sk-...***", "API_TOKEN=",
		"token := lexer.Next()", "if password == nil {", "password != ''", "func f(token string, password *string) error", "token: string;",
		"password: str = None", "f(password=password, secret=self.secret)", "PASSWORD=$DB_PASSWORD", `password: "${PASSWORD}"`, "token=<token>",
		"const secret = load(path)", "secret: Vec<u8>,", "risk-averse-and-otherwise-1", "ask-about-the-next-thing-2-do", "https://h.invalid:8080/@scope/x", "http://localhost:80",
		"next_page_token: abc12345", `{"page_token":"CAUQAA12"}`, "-----BEGIN CERTIFICATE-----", "key: value", "sort_key=name", "AKIA is a prefix",
		"the bearer of this letter is a friend", "std::token::x", "password => 1", "a ? b : c", "time 12:30:45", "[redacted]", `{"password":"[redacted]"}`,
		`{"password":null,"secret":true,"token":""}`, "ticket-12345", "PASSWORD=********", "password=$(cat file)", `{"properties":{"password":{"type":"string","minLength":8}}}`, `{"password":"${PASSWORD}","token":"$TOKEN"}`,
	} {
		if got, marks := r.Text(text, "", nil); got != text || marks != nil {
			t.Errorf("%q becomes %q, %v", text, got, marks)
		}
		quoted, _ := jsontext.AppendQuote(nil, text)
		if got, marks := r.JSON(quoted, "", nil); string(got) != string(quoted) || marks != nil {
			t.Errorf("as JSON %s becomes %s, %v", quoted, got, marks)
		}
	}
}

func TestRedactionOfJSON(t *testing.T) {
	t.Parallel()
	r := redactor(t, operatorRules)
	for _, c := range []struct{ in, want, pointers string }{
		{`{"api_key":"x","n":1e400}`, `{"api_key":"[redacted]","n":1e400}`, "/args/api_key"},
		{`{"Api-Key":17}`, `{"Api-Key":"[redacted]"}`, "/args/Api-Key"},
		{`{"a":[1,{"credentials":{"x":[1]}},"é"]}`, `{"a":[1,{"credentials":"[redacted]"},"é"]}`, "/args/a/1/credentials"},
		{`{"headers":{"Authorization":["Bearer x"]}}`, `{"headers":{"Authorization":"[redacted]"}}`, "/args/headers/Authorization"},
		{`{"a/b~":"` + madeKey + `"}`, `{"a/b~":"[redacted]"}`, "/args/a~1b~0"},
		{`["\u0073k-test-A1b2C3d4A1b2C3d4","\u00e9"]`, `["[redacted]","\u00e9"]`, "/args/0"},
		{`{"\u0061pi_key":"x"}`, `{"\u0061pi_key":"[redacted]"}`, "/args/api_key"},
		{`{"` + madeKey + `":1,"b":90210443}`, `{"[redacted 1]":1,"b":"[redacted]"}`, "/args/[redacted 1] /args/b"},
		{`{"t":"{\"nested\":\"{\\\"api_key\\\":\\\"abc\\\"}\"}"}`, `{"t":"{\"nested\":\"{\\\"api_key\\\":\\\"[redacted]\\\"}\"}"}`, "/args/t"},
		{`{"t":"{\"pin\": 1, \"secret\": {\"x\": 2}}"}`, `{"t":"{\"pin\": 1, \"secret\": \"[redacted]\"}"}`, "/args/t"},
		{` {"b" : 1 , "token" : "x" } `, ` {"b" : 1 , "token" : "[redacted]" } `, "/args/token"},
		{`{"cmd":"a \u0041 password=x12 \u0042"}`, `{"cmd":"a A password=[redacted] B"}`, "/args/cmd"},
	} {
		got, marks := r.JSON([]byte(c.in), "/args", nil)
		var at []string
		for _, m := range marks {
			at = append(at, m.Pointer)
		}
		if string(got) != c.want || strings.Join(at, " ") != c.pointers {
			t.Errorf("%s\nbecomes %s, %v\nwant    %s, %s", c.in, got, marks, c.want, c.pointers)
		}
	}
}

// The hash is of the value alone, so it tells equal values and says nothing of
// them to whoever has no secret.
func TestTheMarkHasAKeyedHash(t *testing.T) {
	t.Parallel()
	r := redactor(t, redact.Rules{})
	h := hmac.New(sha256.New, redactSecret)
	h.Write([]byte("1234"))
	want := "hmac-sha256:" + hex.EncodeToString(h.Sum(nil))
	_, text := r.JSON([]byte(`{"pwd":"1234"}`), "/args", nil)
	_, number := r.JSON([]byte(`{"pwd":1234}`), "/args", nil)
	_, escaped := r.JSON([]byte(`{"x":1,"pwd":"\u00312\u00334"}`), "/args", nil)
	if text[0].Hash != want || escaped[0].Hash != want || number[0].Hash == want {
		t.Errorf("hashes %v, %v, %v; want %s for the texts", text, escaped, number, want)
	}
	_, a := r.JSON([]byte(`{"secret":{"a":1,"b":"A"}}`), "", nil)
	_, b := r.JSON([]byte(`{"secret":{"b":"\u0041","a":1}}`), "", nil)
	if a[0].Hash != b[0].Hash {
		t.Error("the same value written otherwise has another hash")
	}
}

func TestManyMarksAreBounded(t *testing.T) {
	t.Parallel()
	r := redactor(t, redact.Rules{})
	text := func(last string) string {
		return strings.Repeat("PASSWORD=hunter\n", 1000) + "PASSWORD=" + last + "\n"
	}
	got, a := r.Text(text("one"), "/output", nil)
	if strings.Contains(got, "hunter") || len(a) != 33 || a[32].Rule != "more:969" {
		t.Errorf("%d marks, the last is %v", len(a), a[len(a)-1])
	}
	if _, b := r.Text(text("two"), "/output", nil); reflect.DeepEqual(a, b) {
		t.Error("another value behind the bound has the same marks")
	}
}

// A pattern's window is wide enough for what stands at its edges.
func TestAPatternInALongText(t *testing.T) {
	t.Parallel()
	r := redactor(t, operatorRules)
	for _, n := range []int{0, 1, 32<<10 - 5, 64<<10 - 6, 64<<10 - 1, 64 << 10, 128<<10 - 3} {
		text := "ticket-1 " + strings.Repeat("y", n) + " TICKET-123456 " + strings.Repeat("z ticket- ", 20<<10)
		if got, marks := r.Text(text, "", nil); len(marks) != 1 || strings.Contains(got, "123456") {
			t.Errorf("%d bytes before: %d marks", n, len(marks))
		}
	}
}

func TestRulesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rules redact.Rules
		want  string
	}{
		{redact.Rules{Keys: []string{"a b"}}, "a b"},
		{redact.Rules{Keys: []string{""}}, "letters"},
		{redact.Rules{Keys: []string{strings.Repeat("k", 65)}}, "letters"},
		{redact.Rules{Patterns: []redact.Pattern{{Match: `[0-9]+`}}}, "in a row"},
		{redact.Rules{Patterns: []redact.Pattern{{Match: `abc|[0-9]`}}}, "in a row"},
		{redact.Rules{Patterns: []redact.Pattern{{Match: `(?i)ask[0-9]+`}}}, "in a row"},
		{redact.Rules{Patterns: []redact.Pattern{{Name: "ahead", Match: `(?=abc)`}}}, `"ahead" is no RE2`},
		{redact.Rules{Values: []redact.Secret{{Name: "PIN", Value: "abc4567"}}}, "PIN"},
	} {
		if _, err := redact.New(nil, c.rules); !errors.Is(err, schema.InvalidConfig) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "abc4567") {
			t.Errorf("%v: %v", c.rules, err)
		}
	}
}

func TestSecretsOfAFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]redact.Secret{
		"first line 1\nsecond line\n": {{Name: "f", Value: "first line 1\nsecond line"}},
		"# of the deployment\nexport DB_PASS='hunter-2-hunter'\nMODE=on\nURL=http://x.invalid\n": {
			{Name: "DB_PASS", Value: "hunter-2-hunter"}, {Name: "URL", Value: "http://x.invalid"}},
		"KEY=hunter-2-hunter\n": {{Name: "KEY", Value: "hunter-2-hunter"}, {Name: "f", Value: "KEY=hunter-2-hunter"}},
		"short\n":               {{Name: "f", Value: "short"}},
	} {
		if got := redact.FileSecrets("f", text); !slices.Equal(got, want) {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestTheEnvironmentIsKnown(t *testing.T) {
	t.Setenv("STENO_TEST_TOKEN", "q7w8e9r0t1")
	t.Setenv("STENO_TEST_SECRET", "development")
	r := redactor(t, redact.Rules{})
	if got, marks := r.Text("is q7w8e9r0t1 in development?", "", nil); got != "is [redacted] in development?" || marks[0].Rule != "value:STENO_TEST_TOKEN" {
		t.Errorf("%q, %v", got, marks)
	}
}

func TestTheLogOfAProcessIsRedacted(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	log := slog.New(redactor(t, operatorRules).Handler(slog.NewTextHandler(&b, nil)))
	log.With("with", madeKey).WithGroup("g").Error("said "+madeKey, "err", errors.New("no "+madeKey), "password", "abc", slog.Group("in", "x", []byte(madeKey)), "n", 17, "raw", jsontext.Value(`{"token":"abc"}`))
	got := b.String()
	if strings.Contains(got, madeKey) || strings.Contains(got, "abc") || !strings.Contains(got, "g.n=17") || strings.Count(got, "[redacted]") != 6 {
		t.Error(got)
	}
}

// A name is mostly told from those of secrets by its last two letters, whatever
// their case and the dashes between them, and however short it is.
func TestNamesOfSecretsInAllTheirForms(t *testing.T) {
	t.Parallel()
	r := redactor(t, redact.Rules{Keys: []string{"k", "pin2", "2fa", "badge_number"}})
	for _, name := range []string{"k", "K", "-k", "p-in2", "PIN_2", "pin-2", "2FA", "2f_a", "badge-numbe-r", "BadgeNumber", "password", "PassworD", "passwor-d", "db_password", "MY_TOKEN", "x-api-key", "xapike_y"} {
		if !redact.SecretKey(r, name) {
			t.Errorf("%s is no name of a secret", name)
		}
		if text, marks := r.Text("a "+name+"=hun+ter2 b", "", nil); text != "a "+name+"=[redacted] b" || len(marks) != 1 {
			t.Errorf("%s, %v", text, marks)
		}
	}
	for _, name := range []string{"kk", "pin", "fa", "number", "word", "passwords", "my_tokens", "", "2", "-", "d"} {
		if text, marks := r.Text("a "+name+"=hun+ter2 b", "", nil); redact.SecretKey(r, name) || len(marks) > 0 {
			t.Errorf("%q is none: %s", name, text)
		}
	}
}

// What is found quickly is what is found by looking everywhere, what is not
// found keeps its bytes, and what comes out is sound.
func FuzzRedact(f *testing.F) {
	for _, s := range []string{`{"api_key":"x"}`, madeKey, "PASSWORD=" + madeValue, `{"a":"{\"token\":\"x\"}","` + madeKey + `":2}`, "Authorization: Bearer x1\nCookie: a=b",
		"ticket-123456 TCK1 -----BEGIN X-----y-----END X-----", "https://u:p@h", `["\u0073k-test-A1b2C3d4A1b2C3d4",90210443]`, `"\"password\\\": \\\"x\""`} {
		f.Add([]byte(s))
	}
	r := redactor(f, operatorRules)
	f.Fuzz(func(t *testing.T, in []byte) {
		text, _ := schema.ValidUTF8(string(in))
		if quick, slow := redact.Spans(r, text), redact.SlowSpans(r, text); !slices.Equal(quick, slow) {
			t.Fatalf("%q: quickly %v, slowly %v", text, quick, slow)
		}
		if out, marks := r.Text(text, "", nil); (out != text) != (len(marks) > 0) {
			t.Fatalf("%q becomes %q, %v", text, out, marks)
		}
		b, _, err := schema.Compact(nil, in, 1)
		if err != nil {
			return
		}
		out, marks := r.JSON(b, "", nil)
		if len(marks) == 0 {
			if len(b) > 0 && &out[0] != &b[0] {
				t.Fatalf("%s is copied", b)
			}
		} else if again, _, err := schema.Compact(nil, out, 1); err != nil || !bytes.Equal(again, out) {
			t.Fatalf("%s becomes %s: %v", b, out, err)
		}
		var before, after any
		if json.Unmarshal(b, &before) != nil || json.Unmarshal(out, &after) != nil {
			return // a number that Go has no room for
		}
		if want := redactedValue(r, before); !reflect.DeepEqual(after, want) && !bytes.Contains(out, []byte("[redacted ")) {
			t.Fatalf("%s becomes %s, want %v", b, out, want)
		}
	})
}

// redactedValue is Redactor.JSON on values.
func redactedValue(r *redact.Redactor, v any) any {
	switch v := v.(type) {
	case string:
		out, _ := r.Text(v, "", nil)
		return out
	case []any:
		for i := range v {
			v[i] = redactedValue(r, v[i])
		}
	case map[string]any:
		for k, member := range v {
			if redact.SecretKey(r, k) && !redact.StandsFor(member) {
				v[k] = "[redacted]"
			} else {
				v[k] = redactedValue(r, member)
			}
		}
	case float64:
		if b, _ := json.Marshal(v); string(b) == "90210443" {
			return "[redacted]"
		}
	}
	return v
}

func BenchmarkRedact(b *testing.B) {
	unit := `{"path":"executor/do.go","line":` + `17,"text":"func (s *session) run(f *flight) (Answer, error) {\n\treq := f.call\n\tif err != nil { return err } // key: value","token_count":12},`
	for _, c := range []struct {
		name string
		hit  string
		size int
	}{{"nothing/1KiB", "", 1 << 10}, {"nothing/64KiB", "", 64 << 10}, {"hit/64KiB", `{"api_key":"` + madeKey + `"},`, 64 << 10}} {
		text := []byte("[" + c.hit + strings.Repeat(unit, c.size/len(unit)) + "0]")
		for _, kind := range []string{"json", "text"} {
			b.Run(c.name+"/"+kind, func(b *testing.B) {
				r := redactor(b, operatorRules)
				s := "log " + string(text)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					if kind == "json" {
						r.JSON(text, "/args", nil)
					} else {
						r.Text(s, "/output", nil)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/(float64(len(text))/1024), "us/KiB")
			})
		}
	}
}

// However much is redacted before it, JSON in a string is looked at by its keys.
func TestNestedJSONIsReadBehindManyMarks(t *testing.T) {
	r, err := redact.New(nil, redact.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 31, 32, 33, 40} {
		var b strings.Builder
		b.WriteString(`{`)
		for i := range n {
			fmt.Fprintf(&b, `"a%d":{"password":"hunter2%d"},`, i, i)
		}
		for i := range 3 {
			fmt.Fprintf(&b, `"y%d":"{\"secret\":{\"x\":\"battery staple\"} no JSON, password=hunter2222}",`, i)
			fmt.Fprintf(&b, `"z%d":"{\"password\":[\"correct horse\"],\"secret\":{\"x\":\"battery staple\"}}",`, i)
		}
		b.WriteString(`"end":1}`)
		out, marks := r.JSON([]byte(b.String()), "/args", nil)
		again, _ := r.JSON([]byte(b.String()), "/args", nil)
		if bytes.Contains(out, []byte("correct horse")) || bytes.Count(out, []byte("battery staple")) > 3 || bytes.Contains(out, []byte("hunter2")) {
			t.Errorf("%d before: %s", n, out)
		}
		if !bytes.Equal(out, again) || len(marks) > 33 || n >= 32 && !strings.HasPrefix(marks[32].Rule, "more:") {
			t.Errorf("%d before: %d marks", n, len(marks))
		}
	}
}

// What a terminal does not show stands between no name and its value, and is no
// letter of a word; neither is the end of what a URL encodes.
func TestColoursHideNoSecret(t *testing.T) {
	r, err := redact.New(nil, redact.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	const key, word = "ghp_0123456789abcdefghijABCDEFGHIJ012345", "Zq7Hunter2Secret99"
	for text, want := range map[string]string{
		"\x1b[32m" + key + "\x1b[0m": "\x1b[32m[redacted]\x1b[0m",
		"x\x1b[0;1;32m" + key:        "x\x1b[0;1;32m[redacted]",
		`\u001b[32m` + key:           `\u001b[32m[redacted]`,
		"\x1b[38:5:2mis\x1b(B\x1b[m " + key[:9] + "\x1b[7m" + key[9:]: "\x1b[38:5:2mis\x1b(B\x1b[m [redacted]",
		"password: \x1b[1m" + word + "\x1b[0m":                        "password: \x1b[1m[redacted]\x1b[0m",
		"\x1b[32mpassword\x1b[0m: \x1b[1m" + word:                     "\x1b[32mpassword\x1b[0m: \x1b[1m[redacted]",
		"\x1b]8;;https://x/\x1b\\" + key + "\x1b]8;;\a":               "\x1b]8;;https://x/\x1b\\[redacted]\x1b]8;;\a",
		"https://x/?a%3D" + key:                                       "https://x/?a%3D[redacted]",
		"\x1b[1mno secret\x1b[0m, max_tokens=10 \x1b":                 "\x1b[1mno secret\x1b[0m, max_tokens=10 \x1b",
		"\x1b[\n\x1b[1;2":                                             "\x1b[\n\x1b[1;2",
	} {
		if got, _ := r.Text(text, "", nil); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		if got, _ := r.Text(want, "", nil); got != want {
			t.Errorf("once more %q becomes %q", want, got)
		}
	}
}
