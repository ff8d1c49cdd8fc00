package executor

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"steno/journal"
	"steno/replay"
	"steno/schema"
)

// An ApprovalInfo is a question that waits for a person.
type ApprovalInfo struct {
	Session    string         `json:"session"`
	CallID     string         `json:"call_id"`
	ApprovalID string         `json:"approval_id"`
	Tool       string         `json:"tool"`
	Tier       uint64         `json:"tier"`
	Args       jsontext.Value `json:"args"` // as they are recorded
	ArgsSHA256 string         `json:"args_sha256"`
	Redacted   string         `json:"redacted,omitzero"` // stands for what is hidden in Args; see replay.Hidden
	Actor      Actor          `json:"actor,omitzero"`    // whose call it is, as the application says
	Reason     string         `json:"reason"`            // why it is asked
	Asked      time.Time      `json:"asked"`
	Expires    string         `json:"expires_at,omitzero"`
}

// ApprovalsRequest asks for what waits in a session, or in the sessions behind
// one, in the order of their ids.
type ApprovalsRequest struct {
	Session string `json:"session,omitzero"`
	After   string `json:"after,omitzero"`
	Limit   int    `json:"limit,omitzero"` // of sessions; 100 if zero, which is the most
}

// ApprovalsAnswer is one page of what waits. After is where the next begins.
type ApprovalsAnswer struct {
	OK        bool           `json:"ok"`
	Approvals []ApprovalInfo `json:"approvals"`
	After     string         `json:"after,omitzero"`
	More      bool           `json:"more"`
}

// Approvals gives the questions of a session that wait for a person, from its
// log. It needs no lease.
func Approvals(ctx context.Context, store journal.Store, session string) ([]ApprovalInfo, error) {
	st := replay.New()
	if err := scan(ctx, store, session, st, func(*schema.Event) error { return nil }); err != nil {
		return nil, err
	}
	var list []ApprovalInfo
	at := map[uint64]int{} // which of them an event is about
	for _, c := range st.Open() {
		if c.Waiting != nil {
			at[c.Seq], at[c.Waiting.Seq] = len(list), len(list)
			list = append(list, ApprovalInfo{Session: session, CallID: c.ID, ApprovalID: c.Waiting.ID, Tool: c.Name, ArgsSHA256: c.ArgsSHA256, Redacted: c.Redacted, Expires: c.Waiting.Expires})
		}
	}
	if list == nil {
		return nil, nil
	}
	return list, scan(ctx, store, session, nil, func(e *schema.Event) error {
		i, ok := at[e.Seq]
		if !ok {
			return nil
		}
		a := &list[i]
		var data struct {
			Args   jsontext.Value `json:"args"`
			Tier   uint64         `json:"tier"`
			Actor  Actor          `json:"actor"`
			Reason string         `json:"reason"`
		}
		if err := schema.Unmarshal(e.Data, &data); err != nil {
			return err
		}
		if e.Type == schema.TypeToolCall {
			a.Args, a.Tier, a.Actor = data.Args, data.Tier, data.Actor
		} else {
			a.Reason, a.Asked = data.Reason, e.Time
		}
		return nil
	})
}

func scan(ctx context.Context, store journal.Store, session string, st *replay.State, each func(*schema.Event) error) error {
	opt := journal.ScanOptions{}
	if st != nil {
		opt.State = st
	}
	s := journal.NewScan(store, session, opt)
	for item, err := range s.Items(ctx) {
		if err == nil && item.Event != nil {
			err = each(item.Event)
		}
		if err != nil {
			return err
		}
	}
	if s.FirstError != nil {
		return s.FirstError.Err(session)
	}
	return nil
}

var approvalsVerb = verb{"list", (*Executor).runApprovals, false, ofLooks}

var approvalEndpoints = []endpoint{
	{"approval-list", "approval.list", approvalsSchema, approvalsAnswerSchema, approvalsVerb, false},
	{"approval-answer", "approval.answer", approveSchema, approveAnswerSchema, answerVerb, false},
	{"to-approve", "approve.*", approveSchema, approveAnswerSchema, answerVerb, true},
}

// runApprovals lists what waits for a person. A session that cannot be read
// hides no other.
func (x *Executor) runApprovals(ctx context.Context, _ string, payload []byte, _ bool) (reply, error) {
	var req ApprovalsRequest
	if _, err := door(payload, &req, levelData); err != nil {
		return reply{}, err
	}
	a := ApprovalsAnswer{OK: true, Approvals: []ApprovalInfo{}}
	if req.Session != "" {
		if err := schema.CheckSession(req.Session); err != nil {
			return reply{}, err
		}
		list, err := Approvals(ctx, x.cfg.Store, req.Session)
		if err != nil {
			return reply{}, err
		}
		a.Approvals = append(a.Approvals, list...)
		return answer(a, x, "", schema.Head{})
	}
	if req.Limit > 100 {
		return reply{}, schema.Errorf(schema.InvalidArgs, "limit must be 1 to 100")
	}
	var err error
	a.More, err = x.page(ctx, req.After, req.Limit, func(id string) bool {
		list, err := Approvals(ctx, x.cfg.Store, id)
		if err != nil {
			x.log.Warn("a session cannot be looked at for what waits in it", "session", id, "kind", schema.KindOf(err), "err", err)
		}
		a.Approvals, a.After = append(a.Approvals, list...), id
		return true
	})
	if err != nil {
		return reply{}, err
	}
	return answer(a, x, "", schema.Head{})
}

const (
	approvalInfo = `{"type":"object","required":["session","call_id","approval_id","tool","args","args_sha256","reason"],"properties":{"session":{"type":"string"},` +
		`"call_id":{"type":"string"},"approval_id":{"type":"string"},"tool":{"type":"string"},"tier":{"type":"integer"},"args":{},"args_sha256":{"type":"string"},"redacted":{"type":"string"},` +
		actorSchema + `,"reason":{"type":"string"},"asked":{"type":"string"},"expires_at":{"type":"string"}}}`
	approvalsSchema = `{"type":"object","properties":{"session":` + sessionID + `,"after":{"type":"string"},"limit":{"type":"integer","minimum":1,"maximum":100}}}`

	approvalsAnswerSchema = `{"type":"object","required":["ok","approvals","more"],"properties":{"ok":{"const":true},"more":{"type":"boolean"},` +
		`"after":{"type":"string"},"approvals":{"type":"array","items":` + approvalInfo + `}}}`
	approveSchema = `{"type":"object","required":["session","call_id","approval_id","decision"],"properties":{"session":` + sessionID + `,` +
		`"call_id":{"type":"string"},"approval_id":{"type":"string"},"decision":{"enum":["allow","deny"]},"reason":{"type":"string","maxLength":1024},` +
		`"args_sha256":{"type":"string"},"redacted":{"type":"string"},` + actorSchema + `,` +
		`"grant":{"type":"object","properties":{"until":{"type":"string","format":"date-time"}}}}}`
	approveAnswerSchema = `{"type":"object","required":["ok","session","call_id","approval_id","decision","first","seq","head"],"properties":{"ok":{"const":true},` +
		`"session":{"type":"string"},"call_id":{"type":"string"},"approval_id":{"type":"string"},"decision":{"type":"string"},"first":{"type":"boolean"},` +
		`"seq":{"type":"integer"},"head":{"type":"string"}}}`
)
