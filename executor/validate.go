package executor

import (
	"bytes"
	stdjson "encoding/json" // for Number only: the validator knows numbers as text by this type
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"steno/schema"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// A Violation is one way in which arguments do not fit a tool's schema. The
// message repeats no value of the arguments, for a value may be a secret.
type Violation struct {
	Pointer string `json:"pointer"` // JSON Pointer into the arguments; "" is all of them
	Message string `json:"message"`
}

const (
	maxViolations = 100             // that an error lists
	maxDepth      = schema.MaxDepth // levels of nesting in arguments and schemas
	largeArgs     = 64 << 10        // bytes from which only a few are validated at a time
	maxDigits     = 400             // of a number as the validator sees it, and of its exponent's value
)

// Validate checks arguments against the schema of the tool of that name.
//
// Kind invalid_args says that they do not fit, or are not one JSON object
// without duplicate names; details.violations is a []Violation with every
// violation, sorted by pointer and message. It holds at most 100, and
// details.omitted is the number of those left out. Kind unknown_tool is as for
// [Registry.Get].
//
// Numbers are compared as they are written; one of more than 400 digits counts
// as the largest, or the smallest, of 400.
func (r *Registry) Validate(name string, args jsontext.Value) error {
	e, err := r.lookup(name)
	if err != nil {
		return err
	}
	return e.fits(args, parseStrict)
}

// fits is Validate, with a reader of the arguments.
func (e *registered) fits(args jsontext.Value, read func([]byte) (any, []Violation)) error {
	defer e.room(len(args))()
	listed, omitted := listable(violations(e.input, args, read))
	if len(listed) == 0 {
		return nil
	}
	return invalidArgs(listed, omitted)
}

// room waits until a value of so many bytes may be validated. What does not fit
// in ten thousand places takes the validator a few hundred times the memory of
// the value.
func (e *registered) room(n int) (leave func()) {
	if n <= largeArgs {
		return func() {}
	}
	e.large <- struct{}{}
	return func() { <-e.large }
}

// violations are the ways in which the value does not fit the schema.
func violations(s *jsonschema.Schema, value []byte, read func([]byte) (any, []Violation)) []Violation {
	v, found := read(value)
	if len(found) > 0 {
		return found
	}
	err := s.Validate(v)
	if failed, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return collect(failed, "", nil)
	} else if err != nil {
		return []Violation{{"", err.Error()}}
	}
	return nil
}

// listable is what an error lists of them: sorted, each once, and bounded.
func listable(found []Violation) (listed []Violation, omitted int) {
	for i := range found {
		found[i].Pointer = shorten(found[i].Pointer, maxShown)
		found[i].Message = shorten(found[i].Message, maxShown)
	}
	slices.SortFunc(found, func(a, b Violation) int {
		if c := strings.Compare(a.Pointer, b.Pointer); c != 0 {
			return c
		}
		return strings.Compare(a.Message, b.Message)
	})
	found = slices.Compact(found) // two branches of a schema may say the same
	omitted = max(0, len(found)-maxViolations)
	return found[:len(found)-omitted], omitted
}

// invalidArgs is kind invalid_args with these violations, of which there is at
// least one.
func invalidArgs(listed []Violation, omitted int) *schema.Error {
	first, more := listed[0], len(listed)-1+omitted
	where := ""
	if first.Pointer != "" {
		where = " at " + first.Pointer
	}
	others := ""
	if more > 0 {
		others = fmt.Sprintf("; and %d more", more)
	}
	e := schema.Errorf(schema.InvalidArgs, "the arguments are not valid: %s%s%s", first.Message, where, others).
		With("violations", listed)
	if omitted > 0 {
		e.With("omitted", omitted)
	}
	return e
}

// compile compiles the schema of a tool's arguments, or of its answer.
func compile(text jsontext.Value) (*jsonschema.Schema, error) {
	doc, bad := parseStrict(text)
	if len(bad) > 0 {
		return nil, fmt.Errorf("%s at %q", bad[0].Message, bad[0].Pointer)
	}
	root, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("it is not a JSON object")
	}
	if root["type"] != "object" {
		return nil, errors.New(`its type is not "object"`)
	}
	switch s := root["$schema"]; s {
	case nil, "https://json-schema.org/draft/2020-12/schema",
		"http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-07/schema":
	default:
		return nil, fmt.Errorf("$schema is %v; 2020-12 and draft-07 are known", s)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	// No loader is set, so a $ref that leaves the document cannot be resolved,
	// not to a URL and not to a file. The URL is a base for $ref "#/…" alone.
	const base = "steno:///schema"
	if err := c.AddResource(base, doc); err != nil {
		return nil, err
	}
	return c.Compile(base)
}

// CheckSchema says why a tool could not have a schema; nil if it could.
func CheckSchema(text jsontext.Value) error {
	_, err := compile(text)
	return err
}

// parseStrict gives the one JSON value in b as the validator wants it, with
// numbers as text, or what is wrong with it as JSON.
func parseStrict(b []byte) (any, []Violation) {
	p := parser{dec: jsontext.NewDecoder(bytes.NewReader(b))}
	v, err := p.value(0)
	if err == nil {
		if _, err = p.dec.ReadToken(); err == io.EOF {
			return v, p.bad
		}
		err = errors.New("there is more after the value")
	}
	pointer, message := "", "this is not JSON"
	var syntax *jsontext.SyntacticError
	switch {
	case len(b) == 0:
		message = "there is no value"
	case errors.As(err, &syntax):
		pointer = string(syntax.JSONPointer)
		if errors.Is(syntax.Err, jsontext.ErrDuplicateName) {
			message = "the name is there twice"
		}
	}
	return nil, append(p.bad, Violation{pointer, message})
}

type parser struct {
	dec *jsontext.Decoder
	bad []Violation // values that are JSON but beyond a bound
}

func (p *parser) value(depth int) (any, error) {
	k := p.dec.PeekKind()
	if (k == '{' || k == '[') && depth >= maxDepth {
		err := p.dec.SkipValue()
		p.bad = append(p.bad, Violation{string(p.dec.StackPointer()), fmt.Sprintf("nested deeper than %d levels", maxDepth)})
		return nil, err
	}
	tok, err := p.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch k {
	case '{':
		object := map[string]any{}
		for p.dec.PeekKind() != '}' {
			name, err := p.dec.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			if object[key], err = p.value(depth + 1); err != nil {
				return nil, err
			}
		}
		_, err = p.dec.ReadToken()
		return object, err
	case '[':
		array := []any{}
		for p.dec.PeekKind() != ']' {
			item, err := p.value(depth + 1)
			if err != nil {
				return nil, err
			}
			array = append(array, item)
		}
		_, err = p.dec.ReadToken()
		return array, err
	case '"':
		return tok.String(), nil
	case '0':
		text := tok.String()
		return stdjson.Number(bounded(text)), nil
	case 't', 'f':
		return tok.Bool(), nil
	}
	return nil, nil
}

// bounded is a number as the validator may see it. It turns numbers into
// fractions of whole numbers: 1e999999 would take a megabyte, and a larger
// exponent makes it panic. What is beyond is seen as the largest or the smallest
// number within, which is as far from every limit that a schema sets. The
// arguments keep their text.
func bounded(number string) string {
	digits, exp := number, 0
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		digits = number[:i]
		var err error
		if exp, err = strconv.Atoi(number[i+1:]); err != nil { // it has too many digits itself
			exp = maxDigits + 1
			if number[i+1] == '-' {
				exp = -exp
			}
		}
	}
	if len(digits) <= maxDigits && -maxDigits <= exp && exp <= maxDigits {
		return number
	}
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign = "-"
	}
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(digits, "-"), ".")
	whole = strings.TrimLeft(whole, "0")
	if whole == "" { // what stands first behind the point decides
		short := strings.TrimLeft(fraction, "0")
		exp -= len(fraction) - len(short)
		fraction = short
	}
	switch {
	case whole == "" && fraction == "":
		return "0"
	case len(whole)+exp > maxDigits:
		return sign + "1e" + strconv.Itoa(maxDigits)
	case len(whole)+exp < -maxDigits:
		return sign + "1e-" + strconv.Itoa(maxDigits)
	}
	// Many digits and a magnitude within: the digits that decide nothing go.
	all := whole + fraction
	return sign + "0." + all[:min(len(all), maxDigits)] + "e" + strconv.Itoa(len(whole)+exp)
}

// collect appends what e and its causes say. Branches of which one must hold
// are told apart, since none of them is demanded by itself.
func collect(e *jsonschema.ValidationError, prefix string, list []Violation) []Violation {
	at := pointerTo(e.InstanceLocation)
	say := func(format string, args ...any) {
		list = append(list, Violation{at, prefix + fmt.Sprintf(format, args...)})
	}
	branches := func() {
		for i, cause := range e.Causes {
			list = collect(cause, fmt.Sprintf("%salternative %d: ", prefix, i+1), list)
		}
	}
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf:
		say("at least one of %d alternatives must hold", len(e.Causes))
		branches()
	case *kind.OneOf:
		if len(k.Subschemas) > 1 {
			say("alternatives %d and %d both hold, only one may", k.Subschemas[0]+1, k.Subschemas[1]+1)
			break
		}
		say("exactly one of %d alternatives must hold", len(e.Causes))
		branches()
	case *kind.Required:
		for _, name := range k.Missing {
			say("%s is missing", quoted(name))
		}
	case *kind.Dependency:
		for _, name := range k.Missing {
			say("%s is missing, %s needs it", quoted(name), quoted(k.Prop))
		}
	case *kind.DependentRequired:
		for _, name := range k.Missing {
			say("%s is missing, %s needs it", quoted(name), quoted(k.Prop))
		}
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			list = append(list, Violation{at + pointerTo([]string{name}), prefix + "there is no such property"})
		}
	case *kind.FalseSchema:
		say("nothing may be here")
	case *kind.Type:
		say("must be %s, is %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		say("must be one of %s", listed(k.Want))
	case *kind.Const:
		say("must be %s", listed([]any{k.Want}))
	case *kind.Format:
		say("must be a valid %s", k.Want)
	case *kind.Pattern:
		say("must match the pattern %s", k.Want)
	case *kind.PropertyNames:
		// The location of this one is not to be trusted: the validator hands
		// out a slice that it goes on writing to. The name says enough.
		at = ""
		say("a property may not be named %s", quoted(k.Property))
	case *kind.Not:
		say("must not hold what the schema excludes")
	case *kind.MinProperties:
		say("must have at least %d properties, has %d", k.Want, k.Got)
	case *kind.MaxProperties:
		say("must have at most %d properties, has %d", k.Want, k.Got)
	case *kind.MinItems:
		say("must have at least %d items, has %d", k.Want, k.Got)
	case *kind.MaxItems:
		say("must have at most %d items, has %d", k.Want, k.Got)
	case *kind.AdditionalItems:
		say("has %d items too many", k.Count)
	case *kind.UniqueItems:
		say("items %d and %d are equal", k.Duplicates[0], k.Duplicates[1])
	case *kind.Contains:
		say("no item is as one must be")
	case *kind.MinContains:
		say("at least %d items must be as the schema says, %d are", k.Want, len(k.Got))
	case *kind.MaxContains:
		say("at most %d items may be as the schema says, %d are", k.Want, len(k.Got))
	case *kind.MinLength:
		say("must have at least %d characters, has %d", k.Want, k.Got)
	case *kind.MaxLength:
		say("must have at most %d characters, has %d", k.Want, k.Got)
	case *kind.Minimum:
		say("must be at least %s", decimal(k.Want))
	case *kind.Maximum:
		say("must be at most %s", decimal(k.Want))
	case *kind.ExclusiveMinimum:
		say("must be above %s", decimal(k.Want))
	case *kind.ExclusiveMaximum:
		say("must be below %s", decimal(k.Want))
	case *kind.MultipleOf:
		say("must be a multiple of %s", decimal(k.Want))
	default: // groups, references, allOf: they fail by their causes
		for _, cause := range e.Causes {
			list = collect(cause, prefix, list)
		}
		if len(e.Causes) == 0 {
			say("does not fit the schema")
		}
	}
	return list
}

func pointerTo(tokens []string) string {
	var p jsontext.Pointer
	for _, t := range tokens {
		p = p.AppendToken(t)
	}
	return string(p)
}

// decimal is x as people write it: whole numbers with all their digits.
func decimal(x *big.Rat) string {
	if digits, exact := x.FloatPrec(); exact && digits <= 50 {
		return x.FloatString(digits)
	}
	return x.RatString()
}

// listed is values of a schema as JSON, up to what a message holds.
func listed(values []any) string {
	var b strings.Builder
	for i, v := range values {
		if b.Len() > maxShown {
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		text, err := stdjson.Marshal(v)
		if err != nil {
			text = []byte("?")
		}
		b.Write(text)
	}
	return b.String()
}
