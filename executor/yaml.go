package executor

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"steno/schema"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	yamlparser "github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	maxYAML      = 256 << 10 // bytes of a file of settings
	maxYAMLDepth = 100       // levels of nesting in it
)

// readYAML reads a file of settings into v, by the rules of its JSON form: one
// document of plain YAML that is at the same time JSON in another spelling. A
// key that v does not have, or that stands twice, is an error, and so are
// anchors, aliases, tags and merges: what a person reads there is what counts.
//
// The error is of kind invalid_config; where its place is known, details.line
// and details.column have it.
func readYAML(text []byte, v any) error {
	if len(text) > maxYAML {
		return schema.Errorf(schema.InvalidConfig, "it is longer than %d bytes", maxYAML)
	}
	if !utf8.Valid(text) {
		return badYAML(nil, "it is not UTF-8")
	}
	tokens := lexer.Tokenize(string(text))
	if err := shallow(tokens); err != nil {
		return err
	}
	file, err := yamlparser.Parse(tokens, 0, yamlparser.AllowDuplicateMapKey()) // theirs looks at each key again for each key; ours is below
	if err != nil {
		if e, ok := errors.AsType[yaml.Error](err); ok {
			return badYAML(e.GetToken(), "%s", e.GetMessage())
		}
		return badYAML(nil, "it is not YAML").Cause(err)
	}
	var body ast.Node
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		if d.Body.Type() == ast.DirectiveType {
			return badYAML(d.Body.GetToken(), "directives are not read here")
		}
		if body != nil {
			return badYAML(d.Body.GetToken(), "a second document begins here; one is read")
		}
		body = d.Body
	}
	if body == nil {
		return badYAML(nil, "it is empty")
	}
	y := yamlReader{at: map[jsontext.Pointer]*token.Token{}, keys: map[jsontext.Pointer]*token.Token{}}
	y.enc = jsontext.NewEncoder(&y.out)
	if err := y.value(body); err != nil {
		return err
	}
	return y.into(v)
}

// shallow refuses what is nested deeper than anybody writes, before a parser
// that calls itself for each level sees it.
func shallow(tokens token.Tokens) error {
	open := 0
	for _, t := range tokens {
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open--
		}
		// A level of a block takes a column at least.
		block := t.Position.IndentNum
		if t.Type == token.SequenceEntryType || t.Type == token.MappingKeyType {
			block = t.Position.Column
		}
		if open > maxYAMLDepth || block > 8*maxYAMLDepth {
			return badYAML(t, "it is nested too deep")
		}
	}
	return nil
}

type yamlReader struct {
	out   bytes.Buffer
	enc   *jsontext.Encoder
	at    map[jsontext.Pointer]*token.Token // where each value stands
	keys  map[jsontext.Pointer]*token.Token // and its key, if it has one
	depth int
}

func (y *yamlReader) value(n ast.Node) error {
	if y.depth++; y.depth > maxYAMLDepth {
		return badYAML(n.GetToken(), "it is nested deeper than %d levels", maxYAMLDepth)
	}
	defer func() { y.depth-- }()
	switch n := n.(type) {
	case *ast.MappingNode:
		return y.object(n.Values)
	case *ast.MappingValueNode:
		return y.object([]*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		return y.array(n.Values)
	case *ast.StringNode:
		if t := n.GetToken(); t.Type == token.StringType && jsontext.Value(n.Value).IsValid() {
			// Too large for a number of the parser's.
			return badYAML(t, "is %s text or a number? Put text between quotes", quoted(n.Value))
		}
		return y.token(n, jsontext.String(n.Value))
	case *ast.LiteralNode:
		return y.token(n, jsontext.String(n.Value.Value))
	case *ast.BoolNode:
		return y.token(n, jsontext.Bool(n.Value))
	case *ast.NullNode:
		return y.token(n, jsontext.Null)
	case *ast.IntegerNode, *ast.FloatNode:
		number := jsontext.Value(n.GetToken().Value)
		if !number.IsValid() {
			return badYAML(n.GetToken(), "%s is a number only to YAML: write it in decimal, or put it between quotes", quoted(string(number)))
		}
		if err := y.enc.WriteValue(number); err != nil {
			return badYAML(n.GetToken(), "it cannot be read").Cause(err)
		}
		y.at[y.enc.StackPointer()] = n.GetToken()
		return nil
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode, *ast.TagNode:
		return badYAML(n.GetToken(), "anchors, aliases, merges and tags are not read here: write the value out")
	}
	return badYAML(n.GetToken(), "a value of this form is not read here")
}

func (y *yamlReader) token(n ast.Node, t jsontext.Token) error {
	if err := y.enc.WriteToken(t); err != nil {
		return badYAML(n.GetToken(), "it cannot be read: %s", lastWords(err)).Cause(err)
	}
	y.at[y.enc.StackPointer()] = n.GetToken()
	return nil
}

func (y *yamlReader) object(members []*ast.MappingValueNode) error {
	if err := y.enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	if len(members) > 0 {
		y.at[y.enc.StackPointer()] = members[0].Key.GetToken()
	}
	seen := map[string]bool{}
	for _, m := range members {
		key, ok := m.Key.(*ast.StringNode)
		if !ok {
			return badYAML(m.Key.GetToken(), "a key is text: put it between quotes")
		}
		if seen[key.Value] {
			return badYAML(key.GetToken(), "the key %s stands twice", quoted(key.Value))
		}
		seen[key.Value] = true
		if err := y.token(key, jsontext.String(key.Value)); err != nil {
			return err
		}
		y.keys[y.enc.StackPointer()] = key.GetToken()
		if m.Value == nil || m.Value.GetToken().Type == token.ImplicitNullType {
			return badYAML(key.GetToken(), "the key %s has no value", quoted(key.Value))
		}
		if err := y.value(m.Value); err != nil {
			return err
		}
	}
	return y.enc.WriteToken(jsontext.EndObject)
}

func (y *yamlReader) array(items []ast.Node) error {
	if err := y.enc.WriteToken(jsontext.BeginArray); err != nil {
		return err
	}
	if len(items) > 0 {
		y.at[y.enc.StackPointer()] = items[0].GetToken()
	}
	for _, n := range items {
		if err := y.value(n); err != nil {
			return err
		}
	}
	return y.enc.WriteToken(jsontext.EndArray)
}

// into fills v with what was read.
func (y *yamlReader) into(v any) error {
	err := json.Unmarshal(y.out.Bytes(), v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return badYAML(nil, "it cannot be read: %s", lastWords(err)).Cause(err)
	}
	where := e.JSONPointer
	for y.at[where] == nil && where != "" {
		where = where.Parent()
	}
	name := "it"
	if e.JSONPointer != "" {
		name = quoted(e.JSONPointer.LastToken())
	}
	switch {
	case errors.Is(err, json.ErrUnknownName):
		return badYAML(y.keys[e.JSONPointer], "there is no key %s", name)
	case e.Err != nil:
		return badYAML(y.at[where], "%s: %s", name, lastWords(e.Err)).Cause(err)
	case e.GoType != nil:
		return badYAML(y.at[where], "%s is %s, and %s is wanted", name, yamlKind(e.JSONKind), goKind(e.GoType.Kind().String())).Cause(err)
	}
	return badYAML(y.at[where], "%s cannot be read", name).Cause(err)
}

func yamlKind(k jsontext.Kind) string {
	switch k {
	case '{':
		return "a mapping"
	case '[':
		return "a list"
	case '"':
		return "text"
	case '0':
		return "a number"
	case 'n':
		return "nothing"
	}
	return "true or false"
}

func goKind(k string) string {
	switch {
	case k == "struct" || k == "map":
		return "a mapping"
	case k == "slice":
		return "a list"
	case k == "string":
		return "text"
	case strings.Contains(k, "int"), strings.Contains(k, "float"):
		return "a number"
	}
	return "true or false"
}

func badYAML(at *token.Token, format string, args ...any) *schema.Error {
	message := fmt.Sprintf(format, args...)
	if at == nil || at.Position == nil {
		return schema.Errorf(schema.InvalidConfig, "%s", message)
	}
	return schema.Errorf(schema.InvalidConfig, "line %d, column %d: %s", at.Position.Line, at.Position.Column, message).
		With("line", at.Position.Line).With("column", at.Position.Column)
}

// A span is a length of time in a file of settings, as 90s or 5m.
type span time.Duration

func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("it is no length of time: write it as 90s or 5m")
	}
	*s = span(d)
	return nil
}

// A size is a number of bytes in a file of settings, as 512KiB or 64MiB.
type size int64

func (s *size) UnmarshalText(text []byte) error {
	number, unit := strings.TrimRight(string(text), "BKMGi"), 0
	switch string(text[len(number):]) {
	case "B":
	case "KiB":
		unit = 10
	case "MiB":
		unit = 20
	case "GiB":
		unit = 30
	default:
		number = ""
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 1 {
		return errors.New("it is no number of bytes: write it as 512KiB or 64MiB")
	}
	*s = size(n << unit)
	return nil
}
