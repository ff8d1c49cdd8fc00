package executor

import (
	"cmp"
	"context"
	"strconv"
	"strings"
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
	Program    string         `json:"program,omitzero"`    // that it runs, and that a grant would be for; "" if that is not known
	Seq        uint64         `json:"seq"`                 // of the question
	Args       jsontext.Value `json:"args"`                // as they are recorded
	ArgsBytes  int            `json:"args_bytes,omitzero"` // how long they are, where Args is only their beginning, as a text
	ArgsSHA256 string         `json:"args_sha256"`
	Redacted   string         `json:"redacted,omitzero"` // stands for what is hidden in Args; see replay.Hidden
	Actor      Actor          `json:"actor,omitzero"`    // whose call it is, as the application says
	Reason     string         `json:"reason"`            // why it is asked
	Asked      time.Time      `json:"asked"`
	Expires    string         `json:"expires_at,omitzero"`
}

// ApprovalsRequest asks for what waits in a session, or in all of them in the
// order of their ids, behind After: a session, or the After of a page before.
type ApprovalsRequest struct {
	Session string `json:"session,omitzero"`
	After   string `json:"after,omitzero"`
	Limit   int    `json:"limit,omitzero"` // of sessions; 100 if zero, which is the most
}

// ApprovalsAnswer is one page of what waits. After is where the next begins, if
// there is More.
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
			list = append(list, ApprovalInfo{Session: session, CallID: c.ID, ApprovalID: c.Waiting.ID, Seq: c.Waiting.Seq, Tool: c.Name, ArgsSHA256: c.ArgsSHA256, Redacted: c.Redacted, Expires: c.Waiting.Expires})
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
			Args    jsontext.Value `json:"args"`
			Tier    uint64         `json:"tier"`
			Actor   Actor          `json:"actor"`
			Reason  string         `json:"reason"`
			Program string         `json:"program"`
		}
		if err := schema.Unmarshal(e.Data, &data); err != nil {
			return err
		}
		if e.Type == schema.TypeToolCall {
			a.Args, a.Tier, a.Actor = data.Args, data.Tier, data.Actor
		} else {
			a.Reason, a.Program, a.Asked = data.Reason, data.Program, e.Time
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
	if req.Limit > 100 {
		return reply{}, schema.Errorf(schema.InvalidArgs, "limit must be 1 to 100")
	}
	from, place, _ := strings.Cut(req.After, "/")
	behind, err := strconv.ParseUint(cmp.Or(place, "0"), 10, 64)
	if err != nil || req.Session != "" && from != "" && from != req.Session {
		return reply{}, schema.Errorf(schema.InvalidArgs, "after is not that of a page before").With("after", quoted(req.After))
	}
	a := ApprovalsAnswer{OK: true, Approvals: []ApprovalInfo{}}
	size := 0
	add := func(session string, behind uint64) error {
		if a.More {
			return nil // the page is full
		}
		list, err := Approvals(ctx, x.cfg.Store, session)
		for _, q := range list {
			if q.Seq <= behind {
				continue
			}
			if len(q.Args) > maxShownArgs {
				text, _ := schema.Truncate(string(q.Args), maxShownArgs)
				q.ArgsBytes = len(q.Args)
				q.Args, _ = jsontext.AppendQuote(nil, text)
			}
			if size += len(q.Args) + len(q.Reason) + len(q.Actor.ID) + 1<<10; size > maxQuestions && len(a.Approvals) > 0 {
				a.More = true
				return err
			}
			a.Approvals, a.After = append(a.Approvals, q), session+"/"+strconv.FormatUint(q.Seq, 10)
		}
		return err
	}
	if req.Session != "" {
		if err := schema.CheckSession(req.Session); err != nil {
			return reply{}, err
		}
		if err := add(req.Session, behind); err != nil {
			return reply{}, err
		}
		return answer(a, x, "", schema.Head{})
	}
	each := func(id string, behind uint64) {
		if err := add(id, behind); err != nil {
			x.log.Warn("a session cannot be looked at for what waits in it", "session", id, "kind", schema.KindOf(err), "err", err)
		}
		if !a.More {
			a.After = id
		}
	}
	if behind > 0 {
		each(from, behind)
	}
	more, err := x.page(ctx, from, req.Limit, func(id string) bool {
		each(id, 0)
		return true
	})
	if err != nil {
		return reply{}, err
	}
	a.More = a.More || more
	return answer(a, x, "", schema.Head{})
}

// maxShownArgs is how much of the arguments of a call a page shows, maxQuestions
// about how long a page is: many calls with long arguments may wait.
const (
	maxShownArgs = 16 << 10
	maxQuestions = 512 << 10
)

const (
	approvalInfo = `{"type":"object","required":["session","call_id","approval_id","seq","tool","args","args_sha256","reason"],"properties":{"session":{"type":"string"},` +
		`"call_id":{"type":"string"},"approval_id":{"type":"string"},"tool":{"type":"string"},"seq":{"type":"integer"},"tier":{"type":"integer"},"program":{"type":"string"},"args":{},"args_bytes":{"type":"integer"},"args_sha256":{"type":"string"},"redacted":{"type":"string"},` +
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
