package executor

import (
	"context"
	"errors"

	"steno/lease"
	"steno/schema"
)

// LeaseInfo says who may write a session, as far as that can be said at once,
// and on what evidence.
type LeaseInfo struct {
	Session string         `json:"session"`
	State   lease.State    `json:"state"` // "" where the session cannot be looked at; Kind says why
	Epoch   uint64         `json:"epoch"`
	Holder  *schema.Holder `json:"holder"`
	BeatAge *int64         `json:"beat_age_ms"` // null where the holder's clock is not ours, or it has no beat
	Kind    schema.Kind    `json:"kind,omitzero"`
	// Undecided says that watching the holder for a while can change the state.
	Undecided bool   `json:"undecided,omitzero"`
	Observed  string `json:"observed,omitzero"`
	Next      string `json:"next,omitzero"`
}

// LeaseOf is what a look at the lease of a session says, or the error of it.
func LeaseOf(session string, st lease.Status, err error) LeaseInfo {
	if err != nil {
		kind := schema.KindOf(err)
		return LeaseInfo{Session: session, Kind: kind, Observed: schema.AsError(err).Message, Next: kind.Next(session)}
	}
	info := LeaseInfo{Session: session, State: st.State, Epoch: st.Epoch, Holder: st.Holder, Kind: st.Kind,
		Undecided: st.Undecided, Observed: st.Observed(), Next: st.Next(session)}
	if age, known := st.BeatAge(); known {
		ms := age.Milliseconds()
		info.BeatAge = &ms
	}
	return info
}

// LeaseAnswer is the lease of a session.
type LeaseAnswer struct {
	OK    bool      `json:"ok"`
	Lease LeaseInfo `json:"lease"`
}

// LeasesAnswer is one page of leases, in the order of the sessions' ids.
type LeasesAnswer struct {
	OK     bool        `json:"ok"`
	Leases []LeaseInfo `json:"leases"`
	More   bool        `json:"more"`
}

// ReleaseRequest asks the holder of a session to let go of it.
type ReleaseRequest struct {
	Session string `json:"session"`
	Reason  string `json:"reason,omitzero"` // goes into writer_released
}

// ReleaseAnswer says that the session was released, and what its log ends in.
type ReleaseAnswer struct {
	OK      bool   `json:"ok"`
	Session string `json:"session"`
	Head    string `json:"head"`
}

var (
	leaseVerb   = verb{"get", (*Executor).runLeaseGet, false, ofLooks}
	leasesVerb  = verb{"list", (*Executor).runLeaseList, false, ofLooks}
	releaseVerb = verb{"release", (*Executor).runRelease, true, ofLooks} // it waits for nothing
)

var leaseEndpoints = []endpoint{
	{"lease-list", "lease.list", leasesSchema, leasesAnswerSchema, leasesVerb, false},
	{"lease-get", "lease.get", sessionSchema, leaseAnswerSchema, leaseVerb, false},
	{"to-release", "release.*", releaseSchema, releaseAnswerSchema, releaseVerb, true},
}

// runLeaseGet looks at one lease. It reads files only.
func (x *Executor) runLeaseGet(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req struct {
		Session string `json:"session"`
	}
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	st, err := x.cfg.Store.Lease(ctx, req.Session)
	if err != nil {
		return reply{}, err
	}
	return answer(LeaseAnswer{true, LeaseOf(req.Session, st, nil)}, x, "", schema.Head{})
}

// runLeaseList looks at the leases of many sessions.
func (x *Executor) runLeaseList(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req struct {
		After string `json:"after"`
		Limit int    `json:"limit"`
	}
	_, err := door(payload, &req, levelData)
	if err != nil {
		return reply{}, err
	}
	a := LeasesAnswer{OK: true, Leases: []LeaseInfo{}}
	a.More, err = x.page(ctx, req.After, req.Limit, func(id string) bool {
		st, err := x.cfg.Store.Lease(ctx, id)
		if errors.Is(err, schema.NotFound) {
			return false // it was removed
		}
		a.Leases = append(a.Leases, LeaseOf(id, st, err))
		return true
	})
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, "", schema.Head{})
}

// maxReason bounds the reason of a release.
const maxReason = 1 << 10

// runRelease lets go of a session that this process holds and nobody uses. A
// session with calls on their way is Backpressure: their results are recorded
// first. One that this process does not hold is SessionWriterLost.
func (x *Executor) runRelease(ctx context.Context, session string, payload []byte, _ bool) (reply, error) {
	var req ReleaseRequest
	replaced, err := door(payload, &req, levelData)
	if err != nil {
		return reply{}, err
	}
	if req.Session != session {
		return reply{}, schema.Errorf(schema.InvalidArgs, "subject and request name different sessions").With("session", session)
	}
	if len(req.Reason) > maxReason || replaced > 0 { // writer_released has no place to count what was replaced
		return reply{}, schema.Errorf(schema.InvalidArgs, "reason must be valid Unicode of at most %d bytes", maxReason).With("session", session)
	}
	s, err := x.held(ctx, session)
	if err != nil {
		return reply{}, err
	}
	x.mu.Lock()
	others := s.unuse()
	if others == 0 && s.leaving == "" {
		if s.leaving = req.Reason; s.leaving == "" {
			s.leaving = "asked for"
		}
	}
	x.mu.Unlock()
	if others > 0 {
		return reply{}, schema.Errorf(schema.Backpressure, "session %s is in use by calls or requests", session).With("session", session).
			With("next", "wait for their results, then ask again")
	}
	if err := x.retire(s, ""); err != nil {
		return reply{}, err
	}
	head := s.journal.Head()
	return answer(ReleaseAnswer{true, session, head.String()}, x, session, head)
}

const (
	leaseInfo = `{"type":"object","required":["session","state","epoch","holder","beat_age_ms"],"properties":{"session":{"type":"string"},` +
		`"state":{"enum":["","available","active","stale","ambiguous"]},"epoch":{"type":"integer"},"holder":{"type":["object","null"]},` +
		`"beat_age_ms":{"type":["integer","null"]},"kind":{"type":"string"},"undecided":{"type":"boolean"},"observed":{"type":"string"},"next":{"type":"string"}}}`
	leaseAnswerSchema   = `{"type":"object","required":["ok","lease"],"properties":{"ok":{"const":true},"lease":` + leaseInfo + `}}`
	leasesAnswerSchema  = `{"type":"object","required":["ok","leases","more"],"properties":{"ok":{"const":true},"more":{"type":"boolean"},"leases":{"type":"array","items":` + leaseInfo + `}}}`
	releaseSchema       = `{"type":"object","required":["session"],"properties":{"session":` + sessionID + `,"reason":{"type":"string","maxLength":1024}}}`
	releaseAnswerSchema = `{"type":"object","required":["ok","session","head"],"properties":{"ok":{"const":true},"session":{"type":"string"},"head":{"type":"string"}}}`
)
