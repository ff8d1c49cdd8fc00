package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// MaxInline is the most bytes that a value of one of the keys below has in
	// a line, as compact JSON. A larger one becomes a blob.
	MaxInline = 256 << 10
	// MaxBlob is the most bytes that a blob has.
	MaxBlob = 1 << 30
	// MaxPatch is the most bytes of a patch in state_changed, the one value that
	// whoever folds a log must have in memory.
	MaxPatch = 4 << 20
	// MaxRef is the most bytes that stand in a line for a blob: the reference
	// and the preview.
	MaxRef = maxPreview + 256

	maxPreview = 64 << 10 // of a preview, as JSON
)

// Media types of blobs. A text is the text of a JSON string; its value in data
// is that string with the fewest escapes. All else is the compact JSON itself.
const (
	MediaText = "text/plain"
	MediaJSON = "application/json"
)

// large are the keys of data whose values may become blobs.
var large = []string{"args", "output", "structured", "content", "text", "item", "patch"}

// A Ref names a blob: the hash and the length of its bytes.
type Ref struct {
	SHA256    string `json:"sha256"`
	Bytes     int64  `json:"bytes"`
	MediaType string `json:"media_type"`
}

// A Blob is a value that lies beside the log, or is about to.
type Blob struct {
	Ref
	Key     string // of data
	Preview string // its beginning and its end

	value []byte // as it stood in data
	text  string // instead, of a TextBlob
}

// TextBlob takes a text out before it becomes part of data, which saves making
// JSON of it; nil if it stays in its line. The text must be valid UTF-8.
// [Object.Blob] puts the blob in its place, and TakeOut is told of it.
func TextBlob(key, text string) *Blob {
	if 6*len(text)+2 <= MaxInline || quotedLen(text) <= MaxInline {
		return nil
	}
	b := &Blob{Key: key, text: text, Ref: Ref{MediaType: MediaText}}
	b.measure()
	return b
}

// ValueBlob is TextBlob for a value that came from Compact.
func ValueBlob(key string, value jsontext.Value) *Blob {
	if len(value) <= MaxInline {
		return nil
	}
	b := newBlob(key, value)
	return &b
}

// TakeOut makes a blob of every value in data that is too large for a line. It
// puts a reference in the value's place and lists the places in the key blobs,
// which is reserved: data of a caller that has it is InvalidArgs, so that
// nobody can pass off a value of their own as a blob. A value above MaxBlob is
// LineTooLong. data must come from Compact; the blobs refer to it. taken are
// blobs whose references stand in data already.
func TakeOut(data []byte, taken ...Blob) (small []byte, blobs []Blob, err error) {
	if !mayHave(data, "blobs") && len(data) <= MaxInline && len(taken) == 0 {
		return data, nil, nil
	}
	at, placed := 0, 0 // data is copied up to at
	members(data, func(key string, _, from, to int) bool {
		if key == "blobs" {
			err = Errorf(InvalidArgs, "data has a key blobs, which only the journal writes").With("pointer", "/data/blobs")
			return false
		}
		b := Blob{Key: key}
		if i := slices.IndexFunc(taken, func(b Blob) bool { return b.Key == key }); i >= 0 {
			b, placed = taken[i], placed+1
			if !bytes.Equal(data[from:to], b.reference()) {
				err = Errorf(InvalidArgs, "data has something else in the place of a blob").With("pointer", "/data/"+key)
				return false
			}
		} else if to-from > MaxInline && slices.Contains(large, key) {
			b = newBlob(key, data[from:to])
		} else {
			return true
		}
		if b.Bytes > MaxBlob {
			err = Errorf(LineTooLong, "%s has %d bytes; the limit is %d", key, b.Bytes, MaxBlob).With("bytes", b.Bytes).With("limit", MaxBlob)
			return false
		}
		small = append(append(small, data[at:from]...), b.reference()...)
		at, blobs = to, append(blobs, b)
		return true
	})
	if err == nil && placed < len(taken) {
		err = Errorf(InvalidArgs, "data has no place for a blob")
	}
	if err != nil || len(blobs) == 0 {
		return data, nil, err
	}
	small = append(append(small, data[at:len(data)-1]...), `,"blobs":[`...)
	for i, b := range blobs {
		if i > 0 {
			small = append(small, ',')
		}
		small = append(append(append(small, `"/`...), b.Key...), '"')
	}
	return append(small, "]}"...), blobs, nil
}

// Refs gives the blobs that data names, none for most. Data whose key blobs is
// no list of places, or names a place where no reference stands, is
// InvalidArgs.
func Refs(data []byte) ([]Blob, error) {
	if !mayHave(data, "blobs") {
		return nil, nil
	}
	var list jsontext.Value
	at := map[string]jsontext.Value{}
	members(data, func(key string, _, from, to int) bool {
		if key == "blobs" {
			list = data[from:to]
		} else if slices.Contains(large, key) {
			at[key] = data[from:to]
		}
		return true
	})
	if list == nil {
		return nil, nil
	}
	bad := func() error {
		return Errorf(InvalidArgs, "blobs does not list places where references stand").With("pointer", "/data/blobs")
	}
	var places []string
	if Unmarshal(list, &places) != nil {
		return nil, bad()
	}
	var blobs []Blob
	for _, p := range places {
		key, ok := strings.CutPrefix(p, "/")
		var v struct {
			Ref     *Ref           `json:"ref"`
			Preview jsontext.Value `json:"preview"`
		}
		value := at[key]
		delete(at, key) // a place stands in the list once
		if !ok || len(value) == 0 || value[0] != '{' || Unmarshal(value, &v) != nil || v.Ref == nil || !v.Ref.sound() {
			return nil, bad()
		}
		b := Blob{Ref: *v.Ref, Key: key}
		if len(v.Preview) > 0 && v.Preview[0] == '"' {
			text, _ := jsontext.AppendUnquote(nil, v.Preview) // an error only says that text was replaced
			b.Preview = string(text)
		}
		blobs = append(blobs, b)
	}
	return blobs, nil
}

func (r *Ref) sound() bool {
	_, err := ParseSum(r.SHA256)
	return err == nil && r.Bytes >= 0
}

// PutBack puts values in the places of the blobs that data names, as with gives
// them, and takes the list of places away. With the values that TakeOut took
// out it gives back the bytes that TakeOut was given.
func PutBack(data []byte, with func(Blob) (jsontext.Value, error)) ([]byte, error) {
	blobs, err := Refs(data)
	if err != nil || blobs == nil {
		return data, err
	}
	values := map[string]jsontext.Value{}
	for _, b := range blobs {
		if values[b.Key], err = with(b); err != nil {
			return nil, err
		}
	}
	size := len(data)
	for _, v := range values {
		size += len(v)
	}
	out := append(make([]byte, 0, size), '{')
	members(data, func(key string, start, from, to int) bool {
		if key == "blobs" {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		v, ok := values[key]
		if !ok {
			v = data[from:to]
		}
		out = append(append(out, data[start:from]...), v...)
		return true
	})
	return append(out, '}'), nil
}

// Value is the JSON that a blob stands for, given its bytes. CorruptLogLine:
// they are no text or no compact JSON, whatever their hash says.
func (r *Ref) Value(b []byte) (jsontext.Value, error) {
	switch r.MediaType {
	case MediaText:
		if utf8.Valid(b) {
			return jsontext.AppendQuote(make([]byte, 0, len(b)+len(b)/16+2), b)
		}
	case MediaJSON:
		if v, n, err := Compact(make([]byte, 0, len(b)), b, 2); err == nil && n == 0 && bytes.Equal(v, b) {
			return b, nil
		}
	}
	return nil, Errorf(CorruptLogLine, "blob %s does not hold what its media type %s says", r.SHA256, quote(r.MediaType)).
		With("reason", string(BadEvent)).With("sha256", r.SHA256)
}

// Previews is data as it is shown: with previews in the places of its blobs.
func Previews(data []byte) []byte {
	shown, err := PutBack(data, func(b Blob) (jsontext.Value, error) {
		valid, _ := ValidUTF8(b.Preview)
		return jsontext.AppendQuote(nil, valid)
	})
	if err != nil {
		return data // somebody's own idea of blobs
	}
	return shown
}

// newBlob makes a blob of a value.
func newBlob(key string, value []byte) Blob {
	b := Blob{Key: key, value: value, Ref: Ref{MediaType: MediaText}}
	if value[0] != '"' || !exact(value) {
		b.MediaType = MediaJSON
	}
	b.measure()
	return b
}

func (b *Blob) measure() {
	m := measure{hash: sha256.New()}
	if _, err := b.WriteTo(&m); err != nil {
		panic("schema: a blob of text that did not come from Compact: " + err.Error())
	}
	b.Bytes, b.SHA256, b.Preview = m.bytes, hex.EncodeToString(m.hash.Sum(nil)), m.preview()
}

// exact reports whether a string is written with the fewest escapes, so that
// its text alone gives it back.
func exact(value []byte) bool {
	var again []byte
	err := pieces(value, func(quoted, text []byte) error {
		again, _ = jsontext.AppendQuote(again[:0], text)
		if !utf8.Valid(text) || !bytes.Equal(again, quoted) {
			return InvalidArgs
		}
		return nil
	})
	return err == nil
}

// WriteTo writes the bytes of a blob that TakeOut has made.
func (b *Blob) WriteTo(w io.Writer) (n int64, err error) {
	if b.MediaType == MediaJSON {
		k, err := w.Write(b.value)
		return int64(k), err
	}
	if b.value == nil {
		return io.Copy(w, onlyReader{strings.NewReader(b.text)})
	}
	err = pieces(b.value, func(_, text []byte) error {
		k, err := w.Write(text)
		n += int64(k)
		return err
	})
	return n, err
}

// An onlyReader is read piece by piece: a Reader of a string would copy it whole
// into one write.
type onlyReader struct{ io.Reader }

// pieces gives a JSON string piece by piece, quoted and as text. Together the
// texts are that of the string.
func pieces(value []byte, f func(quoted, text []byte) error) error {
	const size = 32 << 10
	quoted, text := make([]byte, 0, size+16), make([]byte, 0, size+16)
	for body := value[1 : len(value)-1]; len(body) > 0; {
		n := 0
		for n < len(body) && n < size {
			if body[n] != '\\' {
				n++
			} else if k, _ := escape(body[n:]); k > 0 {
				n += k
			} else {
				return InvalidJSON
			}
		}
		for n < len(body) && !utf8.RuneStart(body[n]) {
			n++
		}
		quoted = append(append(append(quoted[:0], '"'), body[:n]...), '"')
		text, _ = jsontext.AppendUnquote(text[:0], quoted) // an error only says that text was replaced
		if err := f(quoted, text); err != nil {
			return err
		}
		body = body[n:]
	}
	return nil
}

// A measure takes down what a reference says of the bytes written to it.
type measure struct {
	hash  hash.Hash
	bytes int64
	head  []byte // the first of them
	tail  []byte // the last of them
}

func (m *measure) Write(b []byte) (int, error) {
	m.hash.Write(b)
	m.bytes += int64(len(b))
	if room := maxPreview - len(m.head); room > 0 {
		m.head = append(m.head, b[:min(room, len(b))]...)
	}
	if len(m.tail)+len(b) > 4*maxPreview {
		m.tail = append(m.tail[:0], m.tail[max(0, len(m.tail)-maxPreview):]...)
	}
	m.tail = append(m.tail, b[max(0, len(b)-maxPreview):]...)
	return len(b), nil
}

// preview is the beginning and the end, with a marker between them, as long as
// its JSON has room: a control character takes six bytes there.
func (m *measure) preview() string {
	head, tail := string(m.head), string(m.tail)
	for limit := maxPreview; ; {
		text := strings.ToValidUTF8(head, "\uFFFD")
		if m.bytes > int64(limit) {
			text, _ = JoinEnds(head, tail, int(m.bytes), limit)
		}
		q, _ := jsontext.AppendQuote(nil, text)
		if len(q) <= maxPreview {
			return text
		}
		limit = limit*maxPreview/len(q) - 1
	}
}

// reference is what stands in a blob's place.
func (b *Blob) reference() []byte {
	var ref, o Object
	ref.Text("sha256", b.SHA256).Uint("bytes", uint64(b.Bytes)).Text("media_type", b.MediaType)
	return o.Raw("ref", ref.Bytes()).Text("preview", b.Preview).Bytes()
}

// Blob puts the reference to a blob in its place.
func (o *Object) Blob(b *Blob) *Object { return o.Raw(b.Key, b.reference()) }

// mayHave reports whether sound JSON may have a key: not at all, for most.
func mayHave(data []byte, key string) bool {
	return bytes.Contains(data, []byte(key)) || bytes.Contains(data, []byte(`\u`))
}

// members gives the keys of an object that is compact JSON, and where they and
// their values stand, until f has seen enough. What is no object has none.
func members(b []byte, f func(key string, start, from, to int) bool) {
	var in Fields
	in.Read(b)
	for i := range in.list {
		k := &in.list[i]
		if !f(string(in.text(k)), k.key, k.end+1, k.to) {
			return
		}
	}
}
