package redact

import (
	"math"
	"net/url"
	"os"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// Rules are what is secret besides what the built-in rules know. The zero
// value adds nothing.
type Rules struct {
	Keys     []string  // names whose values are secret, in JSON and in text; case, - and _ do not matter
	Patterns []Pattern // what secrets look like
	Values   []Secret  // secrets
}

// A Pattern is an RE2 expression. In each of its branches it must have three
// bytes or more in a row that stand in every text it matches.
type Pattern struct {
	Name  string `json:"name,omitzero"` // its number if empty
	Match string `json:"match"`
}

// A Secret is a known value of at least eight bytes.
type Secret struct{ Name, Value string }

const (
	minKnown   = 8  // bytes of a known value; shorter ones stand in too much else
	minLiteral = 3  // bytes of what each text that a pattern matches has
	minFound   = 5  // bytes of the shortest string in JSON that is looked at, with its quotes
	maxKeyName = 64 // bytes of a name before = or :
)

// FileSecrets are the values of the text of a file: of its lines NAME=value, or
// the whole, by the name of the file.
func FileSecrets(name, text string) (list []Secret) {
	for line := range strings.Lines(text) {
		key, value, is := strings.Cut(strings.TrimSpace(line), "=")
		key = strings.TrimSpace(strings.TrimPrefix(key, "export "))
		if !is || key == "" || strings.ContainsFunc(key, func(c rune) bool { return c > math.MaxInt8 || !nameByte(byte(c)) }) {
			continue
		}
		value = strings.TrimSpace(value)
		if n := len(value); n > 1 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		if len(value) >= minKnown { // others are settings, mostly
			list = append(list, Secret{key, value})
		}
	}
	if text = strings.TrimSpace(text); len(list) == 0 || !strings.Contains(text, "\n") {
		list = append(list, Secret{name, text})
	}
	return list
}

// secretKeys are names whose value is secret, secretEnds what such names end in
// and secretFields the headers whose value has several words.
var (
	secretKeys = strings.Fields(`password passwd passphrase pwd secret token api_key authorization proxy_authorization cookie set_cookie credential credentials
		private_key secret_key access_key secret_access_key client_secret access_token refresh_token id_token auth_token api_token session_token bearer_token
		x_api_key x_auth_token x_amz_security_token private_token job_token csrf_token xsrf_token connection_string pgpassword mysql_pwd`)
	secretEnds = strings.Fields(`password passwd passphrase api_key secret_key private_key secret_access_key client_secret access_token refresh_token auth_token api_token
		session_token bearer_token bot_token github_token gitlab_token npm_token slack_token vault_token webhook_secret signing_secret jwt_secret encryption_key signing_key`)
	secretFields = []string{"authorization", "proxy-authorization", "cookie", "set-cookie"}
)

type pattern struct {
	re   *regexp.Regexp
	rule string
}

// noRules finds nothing.
var noRules = new(Redactor)

// New makes a Redactor of the built-in rules and of more. secret is the
// key of the hashes, that of the store. Known values are also those of
// variables of this process whose names say so, such as API_TOKEN.
// InvalidConfig names the rule that cannot be used.
func New(secret []byte, more Rules) (*Redactor, error) {
	r := &Redactor{secret: secret, names: map[string]string{}}
	for _, name := range secretKeys {
		r.names[keyForm(name)] = "key:" + name
	}
	for _, name := range more.Keys {
		n := keyForm(name)
		if n == "" || len(n) > maxKeyName || strings.ContainsFunc(n, func(c rune) bool { return c > math.MaxInt8 || !nameByte(byte(c)) }) {
			return nil, schema.Errorf(schema.InvalidConfig, "the key %.200q is not 1 to %d letters, digits, - and _", name, maxKeyName)
		}
		r.names[n] = "key:" + name
	}
	table := map[uint16][]*literal{}
	named := &literal{pattern: -1}
	for name := range r.names {
		r.tail(name)
	}
	for _, end := range plainEnds {
		r.tail(end)
	}
	for c := range 256 {
		if r.mayEnd('-', byte(c)) || strings.IndexByte("\"'` \t", byte(c)) >= 0 {
			for _, then := range "=:" {
				table[uint16(c)<<8|uint16(then)] = []*literal{named}
			}
		}
	}
	for i := range shapes {
		for _, text := range shapes[i].begins {
			add(table, &literal{text: text, fold: shapes[i].fold, rule: "pattern:" + shapes[i].name, shape: &shapes[i], pattern: -1})
		}
	}
	for i, p := range more.Patterns {
		name := p.Name
		if name == "" {
			name = strconv.Itoa(i + 1)
		}
		re, err := regexp.Compile(p.Match)
		if err != nil {
			return nil, schema.Errorf(schema.InvalidConfig, "the pattern %.200q is no RE2 expression", name).Cause(err)
		}
		tree, _ := syntax.Parse(p.Match, syntax.Perl) // as Compile does
		texts := required(tree.Simplify())
		if shortest(texts) < minLiteral {
			return nil, schema.Errorf(schema.InvalidConfig, "the pattern %.200q matches texts that have no %d bytes in common that stand in a row; it would be tried everywhere", name, minLiteral)
		}
		for _, l := range texts {
			add(table, &literal{text: l.text, fold: l.fold, pattern: i})
		}
		r.patterns = append(r.patterns, &pattern{re, "pattern:" + name})
	}
	for _, v := range more.Values {
		if len(v.Value) < minKnown {
			return nil, schema.Errorf(schema.InvalidConfig, "the value of %.200q has less than %d bytes; so little stands in too much else", v.Name, minKnown)
		}
		addKnown(table, v)
	}
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); secretVariable(name) && LooksSecret(value) {
			addKnown(table, Secret{name, value})
		}
	}
	r.index(table)
	return r, nil
}

// secretVariable says whether a variable of this process holds a secret.
func secretVariable(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc([]string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "_KEY", "APIKEY", "PGPASS"}, func(end string) bool { return strings.HasSuffix(name, end) })
}

// LooksSecret says whether a value, as of a variable, can be told from a word. One
// that cannot would be hidden wherever the word stands.
func LooksSecret(v string) bool {
	return len(v) >= minKnown && v[0] != '/' && !strings.ContainsAny(v, " \t\n") && strings.ContainsAny(v, "0123456789")
}

// addKnown adds a value, also as it stands in a URL and in JSON.
func addKnown(table map[uint16][]*literal, v Secret) {
	rule := "value:" + v.Name
	forms := []string{v.Value, url.QueryEscape(v.Value), url.PathEscape(v.Value)}
	text := v.Value
	for range 2 { // in JSON, and in JSON in a string of JSON
		b, _ := jsontext.AppendQuote(nil, text)
		text = string(b[1 : len(b)-1])
		forms = append(forms, text, strings.ReplaceAll(text, "/", `\/`))
	}
	slices.Sort(forms)
	for _, form := range slices.Compact(forms) {
		add(table, &literal{text: form, rule: rule, pattern: -1})
	}
}

// add puts a literal where its first two bytes lead.
func add(table map[uint16][]*literal, l *literal) {
	for _, a := range spellings(l.text[0], l.fold) {
		for _, b := range spellings(l.text[1], l.fold) {
			k := uint16(a)<<8 | uint16(b)
			table[k] = append(table[k], l)
		}
	}
}

func spellings(c byte, fold bool) []byte {
	if fold && c >= 'a' && c <= 'z' {
		return []byte{c, c - 'a' + 'A'}
	}
	return []byte{c}
}

// index makes the groups of the table. Where they do not suffice, what is left
// shares the last one.
func (r *Redactor) index(table map[uint16][]*literal) {
	keys := make([]uint16, 0, len(table))
	for k := range table {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	n := 0
	for _, k := range keys {
		g := 1
		for g <= n && !slices.Equal(r.groups[g], table[k]) {
			g++
		}
		last := len(r.groups) - 1
		if g > n && n < last-1 {
			n++
			r.groups[n] = table[k]
		} else if g > n {
			g = last
			for _, l := range table[k] {
				if !slices.Contains(r.groups[last], l) {
					r.groups[last] = append(r.groups[last], l)
				}
			}
		}
		r.begins[k] = uint8(g)
	}
}

// Classes of bytes: 1 to 26 are letters of either case.
const (
	dashByte  = 27 // or _
	digitByte = 28
)

var classes = func() (list [256]uint8) {
	for c := range list {
		switch l := lower(byte(c)); {
		case l >= 'a' && l <= 'z':
			list[c] = l - 'a' + 1
		case l >= '0' && l <= '9':
			list[c] = digitByte
		case l == '-' || l == '_':
			list[c] = dashByte
		}
	}
	return list
}()

// mayEnd says whether the name of a secret may end in these two bytes; the first
// does not matter where the name has one only. Most names end otherwise, so that
// nothing more need be asked about them.
func (r *Redactor) mayEnd(a, b byte) bool {
	return r.tails[uint(classes[a]&31)<<5|uint(classes[b]&31)]
}

// tail has mayEnd know a name.
func (r *Redactor) tail(name string) {
	n := len(name)
	last := int(classes[name[n-1]])
	r.tails[dashByte<<5|last] = true // there may be dashes in it
	if n > 1 {
		r.tails[int(classes[name[n-2]])<<5|last] = true
		return
	}
	for first := range 32 {
		r.tails[first<<5|last] = true
	}
}

// key says whether a name is one of secrets, and by which rule.
func (r *Redactor) key(name string) (rule string, is bool) {
	n := len(name)
	if n == 0 || n > maxKeyName || n > 1 && !r.mayEnd(name[n-2], name[n-1]) {
		return "", false
	}
	var buf [maxKeyName]byte
	plain := buf[:0]
	for i := range len(name) {
		if c := name[i]; c != '-' && c != '_' {
			plain = append(plain, lower(c))
		}
	}
	if rule, is = r.names[string(plain)]; is {
		return rule, true
	}
	for i, end := range plainEnds {
		if len(plain) > len(end) && string(plain[len(plain)-len(end):]) == end {
			return endRules[i], true
		}
	}
	if up := name[len(name)-1] < 'a'; up && (strings.HasSuffix(name, "_TOKEN") || strings.HasSuffix(name, "_SECRET")) {
		return "key:token", true
	}
	return "", false
}

var plainEnds, endRules = func() (ends, rules []string) {
	for _, name := range secretEnds {
		ends, rules = append(ends, keyForm(name)), append(rules, "key:"+name)
	}
	return ends, rules
}()

func keyForm(name string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

func nameByte(c byte) bool {
	c = lower(c)
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}
