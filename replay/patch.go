package replay

import (
	"bytes"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// Patch is a JSON value that merge patches have been applied to (RFC 7396).
// Numbers keep their text, strings are encoded with the fewest escapes, and keys
// sorted by their bytes. The zero Patch is null.
type Patch struct {
	leaf   jsontext.Value // nil for an object
	object map[string]*Patch
}

// merge applies a merge patch: an object merges key by key, null removes, and
// anything else replaces what was there.
func (p *Patch) merge(patch jsontext.Value) {
	if len(patch) == 0 {
		return
	}
	var by map[string]jsontext.Value
	if patch[0] != '{' || schema.Unmarshal(patch, &by) != nil {
		*p = Patch{leaf: bytes.Clone(patch)}
		return
	}
	if p.object == nil {
		*p = Patch{object: make(map[string]*Patch, len(by))}
	}
	for k, v := range by {
		if string(v) == "null" {
			delete(p.object, k)
			continue
		}
		child := p.object[k]
		if child == nil {
			child = &Patch{}
			p.object[k] = child
		}
		child.merge(v)
	}
}

// UnmarshalJSONFrom reads what MarshalJSONTo has written.
func (p *Patch) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	v, err := dec.ReadValue()
	if err == nil && v.Kind() != 'n' {
		p.merge(v)
	}
	return err
}

// MarshalJSONTo encodes the value.
func (p *Patch) MarshalJSONTo(enc *jsontext.Encoder) error {
	if p.object == nil {
		if p.leaf == nil {
			return enc.WriteToken(jsontext.Null)
		}
		return enc.WriteValue(p.leaf)
	}
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	keys := make([]string, 0, len(p.object))
	for k := range p.object {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := enc.WriteToken(jsontext.String(k)); err != nil {
			return err
		}
		if err := p.object[k].MarshalJSONTo(enc); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}
