package schema

import (
	"math"
	"slices"
	"strings"
)

// want is what a field of data must be.
type want struct {
	name     string
	kind     byte // s string, n number from 0, b boolean, o object, a array, ? anything
	required bool
	allowed  []string // values that it may have, quoted; nil for any
}

// A spec such as "call_id!s args!? dry_run:b" lists the fields of a type: !
// is required, : is optional, the letter is the kind. "text|content" is
// required in one of two forms.
type spec struct {
	typ      string
	fields   []want // in the order of the text
	oneOf    []Key
	required []Key
	by       [maxKeys]uint8 // the index of a key's field, and one more
}

// specs are those of the types, by the number of their name.
var specs = []*spec{
	parseSpec(TypeWriterOpened, "claim!s how!s previous:o carried:n void:a skipped:a evidence:o"),
	parseSpec(TypeWriterReleased, "reason!s by:s why:s"),
	parseSpec(TypeSessionStarted, "labels:o workspace:s posture:o task_kind:s phase:s parent:o trace:?"),
	parseSpec(TypeUserMessage, "text|content text:s content:? partial:b model:s turn:?"),
	parseSpec(TypeAssistantMessage, "text|content text:s content:? partial:b model:s turn:?"),
	parseSpec(TypeReasoning, "item!? model!s dialect:s"),
	parseSpec(TypeToolCall, "call_id!s name!s args!? args_sha256!s context:? turn:? tier:n phase:s dry_run:b key:s delivery:? redacted:a trace:?"),
	parseSpec(TypeApprovalRequested, "call_id!s approval_id!s reason!s expires_at:s program:s"),
	parseSpec(TypeDecision, "call_id!s decision!s gate!s by!s approval_id:s args_sha256:s grant:o rule:s policy_hash:s reason:s"),
	parseSpec(TypeToolStarted, "call_id!s attempt!n executor!s original:s tool_version:s deadline:s possibly_running:?"),
	parseSpec(TypeToolResult, "output|error call_id!s attempt!n ok!b output:? error:o exit_code:? summary:s content:? structured:? artifacts:? meta:? truncated:o redacted:a duration_us!n files_read:a files_changed:a terminate:b synthetic:b supersedes:n by:s reason:s repeat:o"),
	parseSpec(TypePhaseChanged, "from!s to!s task_kind:s trigger:?"),
	parseSpec(TypePostureChanged, "from!? to!o by!s reason!s"),
	parseSpec(TypeStateChanged, "patch!?"),
	parseSpec(TypeUsage, "model!s tokens!? cost:?"),
	parseSpec(TypeTurnFailed, "terminal_status!s error!o"),
	parseSpec(TypeHistoryCompaction, "range!o summary!? strategy!s tail!?"),
	parseSpec(TypeHistoryRewind, "to_seq!n reason:s"),
	parseSpec(TypeSessionEnded, "outcome!s reason:s"),
	parseSpec(TypeDeadLetter, "call_id:s reason!s deliveries!n message!? redacted:a"),
	parseSpec(TypeNote, ""),
}

var typeNames = func() *names {
	var all []string
	for _, s := range specs {
		all = append(all, s.typ)
	}
	return newNames(all...)
}()

// specOf is nil for a type that is not known.
func specOf[T string | []byte](typ T) *spec {
	if n := number(typeNames, typ); n > 0 {
		return specs[n-1]
	}
	return nil
}

// everywhere lists the fields that the data of any event may have.
const everywhere = " actor:o origin:o replaced:n blobs:a"

func parseSpec(typ, text string) *spec {
	s := &spec{typ: typ}
	for f := range strings.FieldsSeq(text + everywhere) {
		name, kind, required := strings.Cut(f, "!")
		if !required {
			var ok bool
			if name, kind, ok = strings.Cut(f, ":"); !ok {
				for name := range strings.SplitSeq(f, "|") {
					s.oneOf = append(s.oneOf, keyOf(name))
				}
				continue
			}
		}
		key := keyOf(name)
		if key == 0 {
			panic("schema: no number for " + name)
		}
		s.fields = append(s.fields, want{name, kind[0], required, values[typ+"."+name]})
		s.by[key] = uint8(len(s.fields))
		if required {
			s.required = append(s.required, key)
		}
	}
	return s
}

// keyOf is the number of a key, 0 if it is not known.
func keyOf[T string | []byte](name T) Key { return Key(number(keys, name)) }

// values that one field of one type may have.
var values = map[string][]string{
	TypeDecision + ".decision":    {`"allow"`, `"deny"`},
	TypeDecision + ".by":          {`"policy"`, `"human"`, `"grant"`, `"auto"`},
	TypeSessionEnded + ".outcome": {`"completed"`, `"failed"`, `"partial"`, `"cancelled"`},
	TypeWriterOpened + ".how":     {`"new"`, `"resumed"`, `"takeover"`, `"forced"`, `"roll"`, `"repair"`},
}

// CheckData says whether data fits its type: InvalidArgs with the pointer of
// what is missing or of the wrong kind, EphemeralNotLoggable for live-only
// types, LineTooLong for a patch above MaxPatch, nil for every type that is not known. Keys that are not known are
// kept and ignored; that is how types grow. data must come from Compact.
func CheckData(typ string, data []byte) error {
	var f Fields
	f.Read(data)
	return f.Check(typ)
}

// Check is CheckData for what has been read.
func (f *Fields) Check(typ string) error {
	spec := f.spec
	if spec == nil || spec.typ != typ {
		spec = specOf(typ)
	}
	if spec == nil {
		if ephemeral[typ] {
			return Errorf(EphemeralNotLoggable, "%s is only ever published live", typ)
		}
		if !ValidType(typ) {
			return Errorf(InvalidArgs, "%s is no type of an event", quote(typ))
		}
		return nil
	}
	bad := func(key, why string) error {
		return Errorf(InvalidArgs, "%s: %s %s", typ, key, why).With("pointer", "/data/"+key)
	}
	if len(f.b) == 0 || f.b[0] != '{' {
		return Errorf(InvalidArgs, "%s: data is not an object", typ).With("pointer", "/data")
	}
	blobs, err := f.Refs()
	if err != nil {
		e := AsError(err)
		e.Message = typ + ": " + e.Message
		return e
	}
	for _, b := range blobs {
		if typ == TypeStateChanged && b.Key == "patch" && b.Bytes > MaxPatch {
			return Errorf(LineTooLong, "%s: the patch has %d bytes; the limit is %d", typ, b.Bytes, MaxPatch).With("bytes", b.Bytes).With("limit", MaxPatch)
		}
	}
	for i := range f.list {
		k := &f.list[i]
		n := spec.by[k.known]
		if n == 0 {
			continue
		}
		w, v := &spec.fields[n-1], f.value(k)
		switch {
		case w.kind == 's' && w.required && string(v) == `""`: // an empty call id or reason says nothing
			return bad(w.name, "is empty")
		case !fits(v, w.kind) && !slices.ContainsFunc(blobs, func(b Blob) bool { return b.Key == w.name }): // of a blob only its hash is known here
			return bad(w.name, "must be "+kindName[w.kind])
		case w.allowed != nil && !slices.Contains(w.allowed, string(v)):
			return bad(w.name, "must be one of "+strings.ReplaceAll(strings.Join(w.allowed, ", "), `"`, ""))
		}
	}
	for _, k := range spec.required {
		if f.at[k] == 0 {
			return bad(keys.all[k-1], "is missing")
		}
	}
	if k := spec.oneOf; k != nil && f.at[k[0]] == 0 && f.at[k[1]] == 0 {
		return bad(keys.all[k[0]-1]+" or "+keys.all[k[1]-1], "is missing")
	}
	return nil
}

var kindName = map[byte]string{'s': "a string", 'n': "a number from 0, without fraction", 'b': "true or false", 'o': "an object", 'a': "an array"}

func fits(v []byte, kind byte) bool {
	switch kind {
	case 's':
		return v[0] == '"'
	case 'n':
		n := uint64(0)
		for _, c := range v {
			d := uint64(c - '0')
			if d > 9 || n > (math.MaxInt64-d)/10 {
				return false
			}
			n = 10*n + d
		}
		return true
	case 'b':
		return v[0] == 't' || v[0] == 'f'
	case 'o':
		return v[0] == '{'
	case 'a':
		return v[0] == '['
	}
	return true
}
