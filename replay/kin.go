package replay

import (
	"iter"

	"steno/schema"
)

// A Kin is what the beginning of a session says of where it comes from.
type Kin struct {
	Session string      `json:"session"`
	Parent  string      `json:"parent,omitzero"` // "" of one that was not forked
	Seq     uint64      `json:"seq,omitzero"`    // of the parent, up to which it was forked
	Sum     string      `json:"sum,omitzero"`    // of that event
	How     string      `json:"how,omitzero"`
	Kind    schema.Kind `json:"kind,omitzero"` // why that is not known
}

// kinEvents bounds how far ReadKin looks for a session_started.
const kinEvents = 64

// ReadKin reads the beginning of a session. It does not fail: what keeps it from
// knowing is the Kind.
func ReadKin(session string, events iter.Seq2[*schema.Event, error]) Kin {
	k := Kin{Session: session, Kind: schema.CorruptLogLine}
	n := 0
	for e, err := range events {
		if err != nil {
			k.Kind = schema.KindOf(err)
			return k
		}
		if n++; e.Type != schema.TypeSessionStarted {
			if n < kinEvents {
				continue
			}
			return k
		}
		k.Kind = ""
		var f schema.Fields
		f.Read(e.Data)
		parent := f.Get(schema.KeyParent)
		if parent == nil {
			return k
		}
		var p struct {
			Session string `json:"session"`
			Seq     uint64 `json:"seq"`
			Sum     string `json:"sum"`
			How     string `json:"how"`
		}
		if schema.Unmarshal(parent, &p) != nil || !schema.ValidSession(p.Session) {
			k.Kind = schema.CorruptLogLine
			return k
		}
		k.Parent, k.Seq, k.Sum, k.How = p.Session, p.Seq, p.Sum, p.How
		return k
	}
	if n == 0 {
		k.Kind = schema.NotFound
	}
	return k
}

// A Branch is a session with those that were forked from it.
type Branch struct {
	Kin
	Missing  bool      `json:"missing,omitzero"` // its children name it, and it is not there
	Cycle    bool      `json:"cycle,omitzero"`   // it is an ancestor of itself
	Children []*Branch `json:"children,omitzero"`
}

// Family gives the trees of sessions, in the order of all. A parent that is not
// among them is Missing; a Cycle, which no fork makes, is shown from the first
// of its sessions. Each session stands in it once.
func Family(all []Kin) []*Branch {
	by := map[string]*Branch{}
	order := make([]*Branch, 0, len(all))
	for _, k := range all {
		b := &Branch{Kin: k}
		by[k.Session], order = b, append(order, b)
	}
	var roots []*Branch
	for _, b := range order {
		parent := by[b.Parent]
		switch {
		case b.Parent == "":
			roots = append(roots, b)
			continue
		case parent == nil:
			parent = &Branch{Kin: Kin{Session: b.Parent, Kind: schema.NotFound}, Missing: true}
			by[b.Parent], roots = parent, append(roots, parent)
		}
		parent.Children = append(parent.Children, b)
	}
	placed := map[*Branch]bool{}
	place := func(b *Branch) {
		for left := []*Branch{b}; len(left) > 0; {
			b, left = left[0], left[1:]
			placed[b] = true
			left = append(left, b.Children...)
		}
	}
	for _, b := range roots {
		place(b)
	}
	for _, b := range order {
		if placed[b] {
			continue
		}
		// Every unplaced one leads into a cycle: from here up to the first that comes twice.
		seen := map[*Branch]bool{}
		for ; !seen[b]; b = by[b.Parent] {
			seen[b] = true
		}
		parent := by[b.Parent]
		for i, c := range parent.Children {
			if c == b {
				parent.Children = append(parent.Children[:i:i], parent.Children[i+1:]...)
				break
			}
		}
		b.Cycle = true
		roots = append(roots, b)
		place(b)
	}
	return roots
}
