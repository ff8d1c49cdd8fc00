package redact

import "strings"

// A shape is a built-in pattern: what it begins with and what follows.
type shape struct {
	name        string
	begins      []string
	fold        bool
	class       string // the bytes that may follow, besides letters and digits
	least, most int    // how many; no bound if most is 0
	find        func(sh *shape, s string, at, behind int) (from, to int)
}

// shapes are what secrets look like that anybody may meet.
var shapes = []shape{
	{name: "api-key", begins: []string{"sk-"}, class: "-_", least: 16, find: findRun},
	{name: "payment-key", begins: []string{"sk_live_", "sk_test_", "rk_live_", "rk_test_"}, least: 16, find: findRun},
	{name: "aws-access-key", begins: []string{"AKIA", "ASIA"}, least: 16, most: 16, find: findRun},
	{name: "github-token", begins: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_"}, least: 36, find: findRun},
	{name: "github-token", begins: []string{"github_pat_"}, class: "_", least: 22, find: findRun},
	{name: "gitlab-token", begins: []string{"glpat-"}, class: "-_", least: 20, find: findRun},
	{name: "slack-token", begins: []string{"xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-"}, class: "-", least: 10, find: findRun},
	{name: "google-api-key", begins: []string{"AIza"}, class: "-_", least: 35, most: 35, find: findRun},
	{name: "npm-token", begins: []string{"npm_"}, least: 36, most: 36, find: findRun},
	{name: "hf-token", begins: []string{"hf_"}, least: 30, find: findRun},
	{name: "jwt", begins: []string{"eyJ"}, class: "-_.", least: 30, find: findJWT},
	{name: "bearer", begins: []string{"bearer "}, fold: true, class: "-_.~+/=", least: 16, find: findBearer},
	{name: "url-password", begins: []string{"://", `:\/\/`}, find: findUserinfo},
	{name: "private-key", begins: []string{"-----BEGIN "}, find: findPEM},
	{name: "private-key", begins: []string{"-----END "}, find: findPEMEnd},
}

// run gives the end of the bytes at i that a shape may have.
func (sh *shape) run(s string, i int) (end int, digit bool) {
	for ; i < len(s); i++ {
		c := lower(s[i])
		switch {
		case c >= '0' && c <= '9':
			digit = true
		case c >= 'a' && c <= 'z' || strings.IndexByte(sh.class, c) >= 0:
		default:
			return i, digit
		}
	}
	return i, digit
}

// apart says whether a word begins at i. The letter of an escape, as in \n or
// %3D, is none, and neither is the end of a colour.
func apart(s string, i int) bool {
	if i == 0 {
		return true
	}
	c := lower(s[i-1])
	if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9') || i > 1 && s[i-2] == '\\' {
		return true
	}
	if i > 2 && s[i-3] == '%' && isHex(s[i-2]) && isHex(s[i-1]) {
		return true
	}
	j := i - 2
	for j >= 0 && i-j < 32 && (s[j] >= '0' && s[j] <= '9' || s[j] == ';' || s[j] == ':' || s[j] == '?') {
		j--
	}
	if j < 1 || s[j] != '[' {
		return false
	}
	for _, escape := range [...]string{"\x1b", `\x1b`, `\u001b`, `\u001B`, `\033`, `\e`} {
		if strings.HasSuffix(s[:j], escape) {
			return true
		}
	}
	return false
}

func isHex(c byte) bool {
	c = lower(c)
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
}

func findRun(sh *shape, s string, at, behind int) (from, to int) {
	end, digit := sh.run(s, behind)
	if n := end - behind; !digit || n < sh.least || sh.most > 0 && n > sh.most || !apart(s, at) {
		return 0, 0
	}
	return at, end
}

// findJWT finds three parts with dots between.
func findJWT(sh *shape, s string, at, behind int) (from, to int) {
	end, _ := sh.run(s, behind)
	parts := strings.Split(s[at:min(end, at+1<<16)], ".")
	if len(parts) < 3 || len(parts[0]) < 10 || len(parts[1]) < 10 || len(parts[2]) < 10 || !apart(s, at) {
		return 0, 0
	}
	return at, end
}

// findBearer leaves the word itself.
func findBearer(sh *shape, s string, at, behind int) (from, to int) {
	end, digit := sh.run(s, behind)
	if !digit || end-behind < sh.least || !apart(s, at) {
		return 0, 0
	}
	return behind, end
}

// findUserinfo finds the password of a URL.
func findUserinfo(_ *shape, s string, _, behind int) (from, to int) {
	end := behind
	for end < len(s) && end-behind < 1<<10 && s[end] > ' ' && strings.IndexByte("/?#\"'`<>\\", s[end]) < 0 {
		end++
	}
	last := strings.LastIndexByte(s[behind:end], '@')
	if last < 0 {
		return 0, 0
	}
	colon := strings.IndexByte(s[behind:behind+last], ':')
	if colon < 0 {
		return 0, 0
	}
	from, to = behind+colon+1, behind+last
	if stands(s[from:to]) {
		return 0, 0
	}
	return from, to
}

// findPEM finds a private key; one that does not end goes to the end of the
// text, since its end may have been cut off.
func findPEM(_ *shape, s string, at, behind int) (from, to int) {
	label := strings.Index(s[behind:min(len(s), behind+64)], "-----")
	if label < 0 || !strings.Contains(s[behind:behind+label], "PRIVATE KEY") {
		return 0, 0
	}
	end := "-----END " + s[behind:behind+label] + "-----"
	if i := strings.Index(s[behind:], end); i >= 0 {
		return at, behind + i + len(end)
	}
	return at, len(s)
}

// OpenKey is the beginning of a private key that does not end in a text, "" if
// there is none.
func OpenKey(text string) string {
	const begins = "-----BEGIN "
	at := strings.LastIndex(text, begins)
	if at < 0 {
		return ""
	}
	if from, to := findPEM(nil, text, at, at+len(begins)); to > from && to == len(text) && !strings.HasSuffix(text, "-----") {
		header, _, _ := strings.Cut(text[at:], "\n")
		return header[:min(len(header), 128)] + "\n"
	}
	return ""
}

// findPEMEnd finds the end of a private key whose beginning was cut off.
func findPEMEnd(_ *shape, s string, at, behind int) (from, to int) {
	label := strings.Index(s[behind:min(len(s), behind+64)], "-----")
	if label < 0 || !strings.Contains(s[behind:behind+label], "PRIVATE KEY") {
		return 0, 0
	}
	from = at
	for from > 0 && (nameByte(s[from-1]) || strings.IndexByte("+/=\n\r\\", s[from-1]) >= 0) {
		from--
	}
	return from, behind + label + len("-----")
}

// named looks at a name and what is behind its = or : at p.
func (w *redaction) named(s string, p int) {
	if p > 1 && classes[s[p-1]] != 0 && !w.r.mayEnd(s[p-2], s[p-1]) {
		return // what most of them are
	}
	if p+1 < len(s) && (s[p+1] == '=' || s[p] == ':' && s[p+1] == ':' || s[p] == '=' && (s[p+1] == '>' || s[p+1] == '~')) {
		return // an operator
	}
	end := p
	for end > 0 && p-end < 4 && (s[end-1] == ' ' || s[end-1] == '\t') {
		end--
	}
	isQuoted := end > 0 && isQuote(s[end-1])
	if isQuoted {
		for end--; end > 0 && s[end-1] == '\\'; end-- {
		}
	}
	from := end
	for from > 0 && end-from <= maxKeyName && nameByte(s[from-1]) {
		from--
	}
	if from > 1 && from < end && s[from-1] == '\\' && !isQuoted { // the letter of \n belongs to no name
		from++
	}
	rule, is := w.r.key(s[from:end])
	if !is {
		return
	}
	v := p + 1
	for v < len(s) && (s[v] == ' ' || s[v] == '\t') {
		v++
	}
	if rule == "key:pwd" && v < len(s) && s[v] == '/' {
		return // the folder that a shell is in
	}
	if v+1 < len(s) && s[v] == '[' && isQuote(s[v+1]) {
		v++
	}
	q := v
	for q < len(s) && s[q] == '\\' {
		q++
	}
	if q < len(s) && isQuote(s[q]) {
		if isQuoted || opens(s, from, s[q], q-v) {
			a, b := q+1, closing(s, q+1, s[q], q-v)
			if !stands(s[a:b]) {
				w.found(a, b, rule)
			}
		}
		return
	}
	if s[p] == ':' || s[p] == '=' && v == p+1 {
		for _, f := range secretFields {
			if strings.EqualFold(s[from:end], f) {
				a, b := field(s, v, f)
				if a < b {
					w.found(a, b, rule)
					return
				}
			}
		}
	}
	if b := w.bare(s, from, p, v); b > v {
		w.found(v, b, rule)
	}
}

func isQuote(c byte) bool { return c == '"' || c == '\'' || c == '`' }

// opens says whether a quote behind a name opens a text; else it closes the one
// that the name stands in, as in "Password: ". slashes are before it.
func opens(s string, name int, quote byte, slashes int) bool {
	open := true
	for i := name - 1; i >= 0 && name-i < 4<<10 && s[i] != '\n'; i-- {
		if s[i] != quote {
			continue
		}
		n := 0
		for i-n > 0 && s[i-n-1] == '\\' {
			n++
		}
		if n == slashes {
			open = !open
		}
	}
	return open
}

// closing gives the place of the quote that closes a text which begins at i,
// with its slashes; the end of the line if there is none. In a text that is n
// times in JSON, slashes before a quote come in groups.
func closing(s string, i int, quote byte, slashes int) int {
	for k := i; k < len(s) && s[k] != '\n'; k++ {
		if s[k] != quote {
			continue
		}
		n := 0
		for k-n > i && s[k-n-1] == '\\' {
			n++
		}
		if n%(2*(slashes+1)) == slashes {
			return k - slashes
		}
	}
	if n := strings.IndexByte(s[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(s)
}

// field gives the value of a header: behind the scheme, or all of a cookie.
func field(s string, v int, name string) (from, to int) {
	end := v
	for end < len(s) && strings.IndexByte("\r\n\"'`\\", s[end]) < 0 {
		end++
	}
	line := s[v:end]
	if strings.HasSuffix(name, "cookie") {
		if strings.IndexByte(line, '=') < 0 {
			return 0, 0
		}
		return v, end
	}
	scheme, rest, _ := strings.Cut(line, " ")
	switch strings.ToLower(scheme) {
	case "digest", "aws4-hmac-sha256", "negotiate":
		if !stands(rest) {
			return v + len(scheme) + 1, end
		}
	case "basic", "bearer", "token", "bot", "apikey", "api-key", "key":
		word, _, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
		if !stands(word) {
			at := v + len(line) - len(strings.TrimLeft(rest, " "))
			return at, at + len(word)
		}
	}
	return 0, 0
}

// bare gives the end of a value without quotes at v, or v if it is rather code
// or prose than a value. name and p are the places of the name and its = or :.
func (w *redaction) bare(s string, name, p, v int) int {
	end := v
	for end < len(s) && s[end] > ' ' && strings.IndexByte("\"'`&;\\", s[end]) < 0 {
		end++
	}
	whole := end
	for end > v && strings.IndexByte(",)}].", s[end-1]) >= 0 {
		end--
	}
	value := s[v:end]
	if stands(value) || stands(s[v:whole]) || len(value) < 3 || strings.IndexByte("[{(<*|>", value[0]) >= 0 || value[:2] == "$(" || value[:2] == "${" {
		return v
	}
	ident, dots := true, false
	for i := range len(value) {
		switch c := lower(value[i]); {
		case c >= 'a' && c <= 'z' || c == '_':
		case c == '.':
			dots = true
		case c == '(' || c == '[' || c == '<':
			if ident && i > 0 {
				return v // a call or a type
			}
			ident = false
		default:
			ident = false
		}
	}
	if !ident {
		return end
	}
	if _, again := w.r.key(value[strings.LastIndexByte(value, '.')+1:]); dots || again {
		return v // password=self.password
	}
	if v == p+1 {
		return end
	}
	// With a space before it a word is a value if the line has nothing else.
	for name > 0 && strings.IndexByte(" \t-", s[name-1]) >= 0 {
		name--
	}
	begins := name == 0 || s[name-1] == '\n' || isQuote(s[name-1]) || strings.HasSuffix(s[:name], "export")
	if begins && end == whole && (whole == len(s) || s[whole] == '\n' || s[whole] == '\r') {
		return end
	}
	return v
}

// stands says whether a text stands for a value and is none: a variable, a
// placeholder, a type, what is redacted already.
func stands(v string) bool {
	if v == redacted || strings.Trim(v, "*") == "" || len(v) > 2 && strings.Trim(v, ".-x") == "" {
		return true
	}
	switch last := v[len(v)-1]; v[0] {
	case '<':
		return last == '>'
	case '{':
		return last == '}'
	case '$':
		return len(v) > 2 && (v[1] == '{' && last == '}' || v[1] == '(' && last == ')') || isVariable(v[1:])
	case '%':
		return len(v) == 2 || len(v) > 1 && (v[1] == '(' || v[1] == '{')
	}
	var buf [16]byte
	if len(v) > len(buf) {
		return false
	}
	plain := buf[:0]
	for i := range len(v) {
		plain = append(plain, lower(v[i]))
	}
	return words[string(plain)]
}

// isVariable says whether a text is a name of letters of one case.
func isVariable(v string) bool {
	upper := strings.Trim(v, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == ""
	return v != "" && v[0] > '9' && (upper || strings.Trim(v, "abcdefghijklmnopqrstuvwxyz_") == "")
}

var words = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields("true false yes no on off none null nil undefined string str bool boolean int integer number any object bytes byte text varchar required optional default empty void unknown") {
		m[w] = true
	}
	return m
}()
