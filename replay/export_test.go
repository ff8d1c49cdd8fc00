package replay

import (
	"github.com/go-json-experiment/json/jsontext"

	"steno/schema"
)

// PatchOf is a JSON document as the state would hold it, null members too,
// which no merge patch can make.
func PatchOf(doc jsontext.Value) *Patch {
	p := &Patch{}
	var by map[string]jsontext.Value
	if len(doc) == 0 || doc[0] != '{' || schema.Unmarshal(doc, &by) != nil {
		p.leaf = doc
		return p
	}
	p.object = map[string]*Patch{}
	for k, v := range by {
		p.object[k] = PatchOf(v)
	}
	return p
}

// Merge applies a merge patch.
func (p *Patch) Merge(patch jsontext.Value) { p.merge(patch) }

// Fields is what the fold reads of data, by key.
func Fields(b []byte, keys ...string) (map[string]string, error) {
	var f schema.Fields
	if !f.Read(b) {
		return nil, schema.Errorf(schema.InvalidArgs, "data is not an object")
	}
	out := map[string]string{}
	for _, k := range keys {
		if v := f.Get(map[string]schema.Key{"call_id": schema.KeyCallID, "patch": schema.KeyPatch, "tokens": schema.KeyTokens, "to": schema.KeyTo,
			"by": schema.KeyBy, "reason": schema.KeyReason, "error": schema.KeyError, "labels": schema.KeyLabels}[k]); v != nil {
			out[k] = string(v)
		}
	}
	return out, nil
}

// SetRecent says how many of the last calls a saved state has.
func SetRecent(n int) { recent = n }
