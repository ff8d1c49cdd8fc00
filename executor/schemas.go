package executor

import (
	"bytes"
	"context"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/micro"

	"steno/schema"
)

// The JSON Schemas (2020-12) of requests and answers, as `nats micro info`
// shows them.
const (
	getAnswerSchema = `{"type":"object","required":["ok","session","head","epochs","messages","calls","open"],"properties":{` +
		`"ok":{"const":true},"session":{"type":"string"},"head":{"type":"string"},"started":{"type":"string","format":"date-time"},` +
		`"workspace":{"type":"string"},"labels":{"type":"object"},"outcome":{"type":"string"},"task_kind":{"type":"string"},"phase":{"type":"string"},` +
		`"epochs":{"type":"integer"},"messages":{"type":"integer"},"calls":{"type":"object","additionalProperties":{"type":"integer"}},` +
		`"open":{"type":"array","items":{"type":"string"}}}}`
	listAnswerSchema = `{"type":"object","required":["ok","sessions","more"],"properties":{"ok":{"const":true},"more":{"type":"boolean"},` +
		`"ids":{"type":"array","items":{"type":"string"}},"sessions":{"type":"array","items":{"type":"object","required":["session","epoch"],"properties":{"session":{"type":"string"},` +
		`"lease":{"type":"string"},"kind":{"type":"string"},"epoch":{"type":"integer"}}}}}}`
	appendAnswerSchema = `{"type":"object","required":["ok","events","head"],"properties":{"ok":{"const":true},"head":{"type":"string"},` +
		`"events":{"type":"array","items":{"type":"object","required":["id","seq","type","sum"],"properties":{"id":{"type":"string"},` +
		`"seq":{"type":"integer"},"type":{"type":"string"},"sum":{"type":"string"}}}}}}`
	endAnswerSchema = `{"type":"object","required":["ok","seq","head"],"properties":{"ok":{"const":true},"seq":{"type":"integer"},"head":{"type":"string"}}}`
	sessionID       = `{"type":"string","pattern":"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$"}`
	sessionSchema   = `{"type":"object","required":["session"],"properties":{"session":` + sessionID + `}}`
	callSchema      = `{"type":"object","required":["call_id","name"],"properties":{` +
		`"call_id":{"type":"string","pattern":"^[!-~]{1,256}$"},"name":{"type":"string"},"args":{"type":"object"},` +
		`"key":{"type":"string"},"dry_run":{"type":"boolean"},"context":{},"turn":{},` + actorSchema + `}}`
	actorSchema  = `"actor":{"type":"object","required":["id"],"additionalProperties":false,"properties":{"id":{"type":"string","minLength":1,"maxLength":256},"via":{"type":"string"}}}`
	resultSchema = `{"type":"object","required":["call_id","attempt","ok","duration_us"],"properties":{` +
		`"call_id":{"type":"string"},"attempt":{"type":"integer"},"ok":{"type":"boolean"},"output":{},` +
		`"error":{"type":"object","required":["kind","message","details"]},"exit_code":{"type":"integer"},"duration_us":{"type":"integer"}}}`
	openSchema = `{"type":"object","properties":{"session":` + sessionID + `,"workspace":{"type":"string"},` +
		`"labels":{"type":"object"},` + stageSchema + `}}`
	openAnswerSchema = `{"type":"object","required":["ok","session","created","head"],"properties":{"ok":{"const":true},` +
		`"session":{"type":"string"},"created":{"type":"boolean"},"workspace":{"type":"string"},"head":{"type":"string"}}}`
	getSchema = `{"type":"object","required":["ok","session","head","epochs","messages","calls","open"],"properties":{"ok":{"const":true},` +
		`"session":{"type":"string"},"head":{"type":"string"},"started":{"type":"string"},"workspace":{"type":"string"},"labels":{"type":"object"},` +
		`"outcome":{"type":"string"},"task_kind":{"type":"string"},"phase":{"type":"string"},"epochs":{"type":"integer"},"messages":{"type":"integer"},` +
		`"calls":{"type":"object","additionalProperties":{"type":"integer"}},"open":{"type":"array","items":{"type":"string"}}}}`
	pageSchema   = `"after":{"type":"string"},"limit":{"type":"integer","minimum":1,"maximum":1000}`
	listSchema   = `{"type":"object","properties":{` + pageSchema + `,"ids":{"type":"boolean"}}}`
	leasesSchema = `{"type":"object","properties":{` + pageSchema + `}}`
	appendSchema = `{"type":"object","required":["session","events"],"properties":{"session":` + sessionID + `,"events":{"type":"array",` +
		`"minItems":1,"maxItems":1000,"items":{"type":"object","required":["type","data"],"properties":{"id":{"type":"string"},"type":{"type":"string"},"data":{}}}}}}`
	stageSchema       = `"phase":{"enum":["investigating","editing","verifying"]},"task_kind":{"enum":["edit","test_only","investigate"]}`
	phaseSchema       = `{"type":"object","required":["session","phase"],"properties":{"session":` + sessionID + `,` + stageSchema + `,"trigger":{}}}`
	phaseAnswerSchema = `{"type":"object","required":["ok","phase","changed","head"],"properties":{"ok":{"const":true},"phase":{"type":"string"},` +
		`"task_kind":{"type":"string"},"changed":{"type":"boolean"},"head":{"type":"string"}}}`
	toolsSchema       = `{"type":"object","required":["session"],"properties":{"session":` + sessionID + `,"format":{"enum":["steno","mcp","anthropic","openai","openai-responses"]}}}`
	toolsAnswerSchema = `{"type":"object","required":["ok","tools"],"properties":{"ok":{"const":true},"phase":{"type":"string"},"task_kind":{"type":"string"},` +
		`"tools":{"type":"array","items":{"type":"object"}}}}`
	endSchema = `{"type":"object","required":["session","outcome"],"properties":{"session":` + sessionID + `,` +
		`"outcome":{"enum":["completed","failed","partial","cancelled"]},"reason":{"type":"string"}}}`
	errorSchema = `{"type":"object","required":["ok","error"],"properties":{"ok":{"const":false},"error":{"type":"object",` +
		`"required":["kind","message","details"],"properties":{"kind":{"type":"string"},"message":{"type":"string"},"details":{"type":"object"}}}}}`
)

// infoFirst is how long the first executor has to say which store it has,
// infoQuiet each further one. Where none serves, the server says so at once.
const (
	infoFirst = time.Second
	infoQuiet = 100 * time.Millisecond
	// maxExecutors bounds those that answer within an instant and are heard.
	maxExecutors = 64
)

// sameStore refuses to serve beside an executor that has the same prefix and
// another store. Where nobody serves, the broker says so at once.
func (x *Executor) sameStore(ctx context.Context) error {
	in, err := x.answers.newInbox(maxExecutors)
	if err != nil {
		return err
	}
	defer in.close()
	if err := x.cfg.Conn.PublishRequest("$SRV.INFO.steno", in.subject, nil); err != nil {
		return unavailable("the broker does not answer", err)
	}
	for patience := infoFirst; ; patience = infoQuiet {
		m, err := in.next(ctx, patience)
		if err != nil {
			return ctx.Err() // nil where nobody serves, or nobody has more to say
		}
		var info micro.Info
		if json.Unmarshal(bytes.TrimSpace(m.Data), &info) != nil {
			continue // whoever that is, it is no executor of ours
		}
		if info.Metadata["prefix"] == x.cfg.Prefix && info.Metadata["store"] != x.cfg.Store.ID() {
			return schema.Errorf(schema.InvalidConfig, "executor %s behind prefix %s has store %s; this one has %s",
				info.Metadata["executor"], x.cfg.Prefix, info.Metadata["store"], x.cfg.Store.ID()).
				With("next", "give both executors the same --dir, or use a server of its own")
		}
	}
}
