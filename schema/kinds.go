package schema

import "strings"

// A Kind says what went wrong and what a caller can do about it. Programs
// branch on kinds, never on messages. A Kind is itself an error, so it is its
// own sentinel: errors.Is(err, schema.SessionWriterActive). The list is
// closed; [Kinds] yields it, [Kind.Known] asks it. A kind keeps its name and
// its meaning for ever.
type Kind string

// Error makes a Kind usable as a target of errors.Is.
func (k Kind) Error() string { return string(k) }

// Tools and the executor.
const (
	InvalidArgs       Kind = "invalid_args"        // the request is wrong; details.violations has JSON pointers
	UnknownTool       Kind = "unknown_tool"        // no tool of that name; details.known lists the names there are
	OutsideWorkspace  Kind = "outside_workspace"   // a path leaves the session's workspace
	ProtectedPath     Kind = "protected_path"      // steno's own files, or a sensitive name
	NotFound          Kind = "not_found"           // no such session, or no such thing in it
	ResourceMissing   Kind = "resource_missing"    // the file or folder a tool was asked for is not there
	NoMatch           Kind = "no_match"            // the text to replace is not in the file
	NotUnique         Kind = "not_unique"          // the text to replace is there more than once
	ReadFailed        Kind = "read_failed"         // a tool could not read
	WriteFailed       Kind = "write_failed"        // a tool could not write
	CommandFailed     Kind = "command_failed"      // a command could not be run (a non-zero exit is a result)
	Timeout           Kind = "timeout"             // a deadline passed
	PermissionDenied  Kind = "permission_denied"   // policy said no
	WritePolicyDenied Kind = "write_policy_denied" // policy said no to a write
	BashDisabled      Kind = "bash_disabled"       // commands are switched off
	Detached          Kind = "detached"            // the tool goes on, but nobody listens to it any more
	Backpressure      Kind = "backpressure"        // too much is running or waiting; nothing was recorded
	PhaseDenied       Kind = "phase_denied"        // the session's phase does not admit the tool
	TierDenied        Kind = "tier_denied"         // the tool's tier is never granted
	ApprovalDenied    Kind = "approval_denied"     // a person said no
	ApprovalExpired   Kind = "approval_expired"    // nobody answered in time
	Cancelled         Kind = "cancelled"           // stopped on request
	Interrupted       Kind = "interrupted"         // the call started and its outcome was never recorded
	OrphanToolCall    Kind = "orphan_tool_call"    // a call that nothing answers
	OutcomeUnknown    Kind = "outcome_unknown"     // a write or call may or may not have taken effect
	CallConflict      Kind = "call_conflict"       // that call id already has other arguments
	DuplicateCall     Kind = "duplicate_call"      // that call id is recorded already
	ResultWithoutCall Kind = "result_without_call" // a result, start or decision names no recorded call
	ResultConflict    Kind = "result_conflict"     // a second result that does not say what it supersedes
	PayloadTooLarge   Kind = "payload_too_large"   // more bytes than a request or result may have
	ToolFailed        Kind = "tool_failed"         // the tool could not do its work
	RepeatLimit       Kind = "repeat_limit"        // the same call with the same result too often
	PoisonMessage     Kind = "poison_message"      // a queued message that can never work
)

// The turn loop of an agent.
const (
	ToolResultRecordFailed   Kind = "tool_result_record_failed"  // the tool ran; its result could not be recorded
	SessionRecordUnavailable Kind = "session_record_unavailable" // the record cannot be written now
	IterationCap             Kind = "iteration_cap"              // an agent stopped after too many turns
)

// The log and its lease.
const (
	UnsafeStatePath          Kind = "unsafe_state_path"          // a file in the store is not a plain file of ours
	UnsupportedSchemaVersion Kind = "unsupported_schema_version" // written by a newer steno
	EphemeralNotLoggable     Kind = "ephemeral_not_loggable"     // a live-only type was appended
	LogEncodeFailed          Kind = "log_encode_failed"          // an event cannot be written as a line
	LogReadFailed            Kind = "log_read_failed"            // the store could not be read
	LogWriteFailed           Kind = "log_write_failed"           // a write failed; details.outcome says not_stored, unknown, recorded or recorded_in_part
	SyncFailed               Kind = "sync_failed"                // a sync failed; details.outcome says not_stored, unknown, recorded or recorded_in_part
	LineTooLong              Kind = "line_too_long"              // an event's line would exceed MaxLine
	AlreadyExists            Kind = "already_exists"             // that name is taken
	SessionEnded             Kind = "session_ended"              // the session has ended and takes no such event
	SessionWriterActive      Kind = "session_writer_active"      // another live process holds the session
	SessionWriterStale       Kind = "session_writer_stale"       // the holder is dead; the next writer takes the session over
	SessionWriterAmbiguous   Kind = "session_writer_ambiguous"   // nobody can tell whether the holder lives
	SessionWriterLost        Kind = "session_writer_lost"        // this process held the session and was replaced
	LeaseStoreUnsupported    Kind = "lease_store_unsupported"    // a file system on which the lease proves nothing
	HeadMismatch             Kind = "head_mismatch"              // the log is not the one a kept head names
)

// What a reader finds; see the FORMAT page beside this file.
const (
	CorruptLogLine     Kind = "corrupt_log_line"     // a durable line is damaged; the finding has a reason
	TornTail           Kind = "torn_tail"            // a write that did not finish, as far as the log shows
	TailSuspect        Kind = "tail_suspect"         // a last line that does not check out and may have been acknowledged
	Repaired           Kind = "repaired"             // damage that a repair has set aside
	Surplus            Kind = "surplus"              // bytes behind what the next seal counts
	VoidClaim          Kind = "void_claim"           // a claim that was never sealed
	UnknownType        Kind = "unknown_type"         // an event type of a newer steno, kept
	BlankLine          Kind = "blank_line"           // white space where a line would stand
	ClockWentBack      Kind = "clock_went_back"      // the writer's wall clock stepped back
	TakeoverInProgress Kind = "takeover_in_progress" // a claim is being sealed; the end of the log is tentative
)

// Replay.
const (
	ReplayDivergence        Kind = "replay_divergence"         // a re-run asked for something the record does not have
	ImportFailed            Kind = "import_failed"             // a foreign log could not be read
	ResumePolicyUnavailable Kind = "resume_policy_unavailable" // the recorded policy cannot be had
)

// The service.
const (
	SessionStartFailed Kind = "session_start_failed" // a session could not be made
	Unavailable        Kind = "unavailable"          // disk, broker or holder cannot serve now
	NotAuthenticated   Kind = "not_authenticated"    // who are you
	InvalidConfig      Kind = "invalid_config"       // settings that cannot be used
	Internal           Kind = "internal"             // a bug in steno
	NoPrompt           Kind = "no_prompt"            // an answer is needed and there is nobody to ask
	StdinError         Kind = "stdin_error"          // standard input could not be read
)

// Kinds that agents write about their model provider and that steno carries.
const (
	ProviderHTTPError            Kind = "provider_http_error"            // the provider answered with an HTTP error
	ModelNotSupported            Kind = "model_not_supported"            // the provider does not have the model
	UsageLimitReached            Kind = "usage_limit_reached"            // the account has used up what it may use
	RateLimited                  Kind = "rate_limited"                   // too many requests in a short time
	Network                      Kind = "network"                        // the provider could not be reached
	ProviderRefusal              Kind = "provider_refusal"               // the provider declined to answer
	UnsupportedTransport         Kind = "unsupported_transport"          // the provider does not speak this transport
	UnsupportedBackendCapability Kind = "unsupported_backend_capability" // the provider lacks what the request needs
	ContextOverflow              Kind = "context_overflow"               // the conversation is longer than the model takes
	StreamIdleTimeout            Kind = "stream_idle_timeout"            // a streamed answer stopped coming
	InsecureAuthTransport        Kind = "insecure_auth_transport"        // credentials would have gone over a plain connection
	TokenRequestFailed           Kind = "token_request_failed"           // no access token was granted
	NoAccountID                  Kind = "no_account_id"                  // the credentials name no account
	InvalidResponse              Kind = "invalid_response"               // an answer of the authorization server that makes no sense
	CorruptAuth                  Kind = "corrupt_auth"                   // stored credentials cannot be understood
	AuthReadFailed               Kind = "auth_read_failed"               // stored credentials could not be read
	AuthWriteFailed              Kind = "auth_write_failed"              // credentials could not be stored
	DeviceAuthFailed             Kind = "device_auth_failed"             // a login with a device code failed
	DeviceCodeUnsupported        Kind = "device_code_unsupported"        // the server offers no login with a device code
)

// Exit codes of the steno command. A kind has one of them.
const (
	ExitOK          = 0
	ExitOther       = 1 // any other kind, or a bug
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitCorrupt     = 4
	ExitLease       = 5
	ExitLost        = 6
	ExitDenied      = 7
	ExitUnknown     = 8 // outcome unknown, interrupted
	ExitDivergence  = 9
	ExitTooLarge    = 10
	ExitUnavailable = 11
)

// KindInfo is what is known of a kind beside its name.
type KindInfo struct {
	Kind   Kind
	Origin string // where it arises: tools, turn, log, finding, replay, service, provider, auth
	By     string // who emits it: a package of steno, or "agent" for kinds that are only carried
	Retry  bool   // can repeating the same request help
	Exit   int    // exit code of the command
	Status int    // HTTP-like number, sent as Nats-Service-Error-Code
	Next   string // the next thing to do; {session} stands for details.session
}

const (
	nextRepair = "run: steno repair {session}"
	nextLease  = "run: steno lease show {session}"
	nextAgain  = "try the same call again with the same call id"
	nextFix    = "mend the request and send it again"
	nextShow   = "run: steno session show {session}"
	nextAgent  = "the agent that wrote it knows; run: steno session show {session}"
)

var kinds = []KindInfo{
	{InvalidArgs, "tools", "executor", false, ExitUsage, 400, nextFix},
	{UnknownTool, "tools", "executor", false, ExitNotFound, 404, "use one of the names in details.known; this answer is recorded, so where the tool has come since (--tools, a worker) call it under a new call id"},
	{OutsideWorkspace, "tools", "executor", false, ExitDenied, 403, "use a path inside the session's workspace"},
	{ProtectedPath, "tools", "executor", false, ExitDenied, 403, "use another path; this one is protected"},
	{NotFound, "tools", "executor", false, ExitNotFound, 404, "look at the name; steno session ls, or session.list on NATS, lists those that are there; steno run --session NAME, or session.open, makes one"},
	{ResourceMissing, "tools", "executor", false, ExitNotFound, 404, "look what is there with the list tool"},
	{NoMatch, "tools", "executor", false, ExitOther, 422, "read the file again and copy the text exactly"},
	{NotUnique, "tools", "executor", false, ExitOther, 422, "give more of the surrounding text, or set replace_all"},
	{ReadFailed, "tools", "executor", true, ExitOther, 500, "look at details.cause and try again"},
	{WriteFailed, "tools", "executor", true, ExitOther, 500, "look at details.cause and try again"},
	{CommandFailed, "tools", "executor", false, ExitOther, 500, "check that the program exists and may be run"},
	{Timeout, "tools", "executor", true, ExitOther, 504, "give it more time, or less to do"},
	{PermissionDenied, "tools", "executor", false, ExitDenied, 403, "ask whoever sets the policy"},
	{WritePolicyDenied, "tools", "executor", false, ExitDenied, 403, "ask whoever sets the policy"},
	{BashDisabled, "tools", "executor", false, ExitDenied, 403, "use another tool; commands are switched off"},
	{Detached, "tools", "executor", false, ExitOther, 409, nextShow},
	{Backpressure, "tools", "executor", true, ExitUnavailable, 429, "wait a little, then try again"},
	{PhaseDenied, "tools", "executor", false, ExitDenied, 403, "move the session to a phase that admits the tool"},
	{TierDenied, "tools", "executor", false, ExitDenied, 403, "use a tool of a lower tier"},
	{ApprovalDenied, "tools", "executor", false, ExitDenied, 403, "do without the call, or ask again with a reason"},
	{ApprovalExpired, "tools", "executor", false, ExitDenied, 403, "send the call again under a new call id"},
	{Cancelled, "tools", "executor", false, ExitOther, 499, "send it under a new call id if it is still wanted"},
	{Interrupted, "tools", "executor", false, ExitUnknown, 409, "look whether the tool took effect, then settle it; run: steno calls ls {session}"},
	{OrphanToolCall, "tools", "replay", false, ExitOther, 409, nextShow},
	{OutcomeUnknown, "tools", "executor", false, ExitUnknown, 409, "look whether it took effect; run: steno session show {session}"},
	{CallConflict, "tools", "executor", false, ExitOther, 409, "use a new call id for other arguments"},
	{DuplicateCall, "tools", "replay", false, ExitOther, 409, "use a new call id, or ask for the recorded result"},
	{ResultWithoutCall, "tools", "replay", false, ExitOther, 409, nextShow},
	{ResultConflict, "tools", "replay", false, ExitOther, 409, nextShow},
	{PayloadTooLarge, "tools", "executor", false, ExitTooLarge, 413, "send less, or put it into a file of the workspace"},
	{ToolFailed, "tools", "executor", false, ExitOther, 500, "look at the message; the operator's log has the cause"},
	{RepeatLimit, "tools", "executor", false, ExitOther, 429, "do something else; the same call keeps giving the same result"},
	{PoisonMessage, "tools", "executor", false, ExitOther, 422, "mend the message and publish it again"},

	{ToolResultRecordFailed, "turn", "executor", true, ExitUnknown, 503, nextAgain},
	{SessionRecordUnavailable, "turn", "executor", true, ExitUnavailable, 503, nextAgain},
	{IterationCap, "turn", "agent", false, ExitOther, 500, nextAgent},

	{UnsafeStatePath, "log", "journal", false, ExitOther, 500, "look with ls -li at what the message names: wrong modes are mended with chmod 600 (a folder 700); what belongs to another user than its folder is given back with chown; a link or a second name is somebody's work, so put the plain file back. To write, be the store's owner"},
	{UnsupportedSchemaVersion, "log", "journal", false, ExitCorrupt, 501, "use a newer steno; run: steno version"},
	{EphemeralNotLoggable, "log", "journal", false, ExitUsage, 400, "publish it live, or use an x. type of your own"},
	{LogEncodeFailed, "log", "journal", false, ExitOther, 500, nextFix},
	{LogReadFailed, "log", "journal", true, ExitOther, 500, "check the disk, then run: steno verify {session}"},
	{LogWriteFailed, "log", "journal", true, ExitUnavailable, 503, "check the disk's space and modes, then try the same call again with the same call id"},
	{SyncFailed, "log", "journal", true, ExitUnavailable, 503, "check the disk, then try the same call again with the same call id"},
	{LineTooLong, "log", "journal", false, ExitTooLarge, 413, "send less in one event"},
	{AlreadyExists, "log", "journal", false, ExitOther, 409, "use another name"},
	{SessionEnded, "log", "replay", false, ExitOther, 409, "open a new session"},
	{SessionWriterActive, "log", "lease", true, ExitLease, 423, "send it through the holder, which details name, or wait until it lets go"},
	{SessionWriterStale, "log", "lease", true, ExitLease, 423, "send the next call; it takes the session over"},
	{SessionWriterAmbiguous, "log", "lease", true, ExitLease, 423, nextLease},
	{SessionWriterLost, "log", "lease", false, ExitLost, 409, "stop writing; " + nextLease},
	{LeaseStoreUnsupported, "log", "lease", false, ExitLease, 501, "put the store on a local file system"},
	{HeadMismatch, "log", "journal", false, ExitCorrupt, 409, "stop the session's writers; look for a copy of the log that has that head and restore it, or go on without what is missing"},

	{CorruptLogLine, "finding", "journal", false, ExitCorrupt, 500, nextRepair},
	{TornTail, "finding", "journal", false, ExitOK, 200, "nothing; the next writer leaves it out. Hold the log against a head kept elsewhere to be sure"},
	{TailSuspect, "finding", "journal", false, ExitCorrupt, 500, nextRepair},
	{Repaired, "finding", "journal", false, ExitOK, 200, "nothing; the repair is in the log"},
	{Surplus, "finding", "journal", false, ExitOK, 200, "nothing; these bytes do not count, whoever wrote them"},
	{VoidClaim, "finding", "journal", false, ExitOK, 200, "nothing; the next writer skips it"},
	{UnknownType, "finding", "journal", false, ExitOK, 200, "nothing; a newer steno may know the type"},
	{BlankLine, "finding", "journal", false, ExitOK, 200, "nothing; but somebody has edited the file"},
	{ClockWentBack, "finding", "journal", false, ExitOK, 200, "nothing; seq decides the order"},
	{TakeoverInProgress, "finding", "journal", true, ExitOK, 200, "look again in a moment"},

	{ReplayDivergence, "replay", "replay", false, ExitDivergence, 409, nextShow},
	{ImportFailed, "replay", "replay", false, ExitOther, 422, "look at details.line of the source"},
	{ResumePolicyUnavailable, "replay", "replay", false, ExitOther, 409, nextShow},

	{SessionStartFailed, "service", "executor", true, ExitUnavailable, 503, "check that the store can be written"},
	{Unavailable, "service", "executor", true, ExitUnavailable, 503, nextAgain},
	{NotAuthenticated, "service", "executor", false, ExitDenied, 401, "give credentials; serve prints the NATS context to use"},
	{InvalidConfig, "service", "executor", false, ExitUsage, 400, "mend the setting that the message names"},
	{Internal, "service", "executor", false, ExitOther, 500, "this is a bug; keep the log and report it"},
	{NoPrompt, "service", "cmd/steno", false, ExitUsage, 400, "give the answer as a flag"},
	{StdinError, "service", "cmd/steno", true, ExitOther, 500, "check what is piped in"},

	{ProviderHTTPError, "provider", "agent", true, ExitOther, 502, nextAgent},
	{ModelNotSupported, "provider", "agent", false, ExitOther, 400, nextAgent},
	{UsageLimitReached, "provider", "agent", true, ExitOther, 429, nextAgent},
	{RateLimited, "provider", "agent", true, ExitOther, 429, nextAgent},
	{Network, "provider", "agent", true, ExitOther, 502, nextAgent},
	{ProviderRefusal, "provider", "agent", false, ExitOther, 403, nextAgent},
	{UnsupportedTransport, "provider", "agent", false, ExitOther, 400, nextAgent},
	{UnsupportedBackendCapability, "provider", "agent", false, ExitOther, 400, nextAgent},
	{ContextOverflow, "provider", "agent", false, ExitOther, 413, nextAgent},
	{StreamIdleTimeout, "provider", "agent", true, ExitOther, 504, nextAgent},

	{InsecureAuthTransport, "auth", "agent", false, ExitOther, 400, nextAgent},
	{TokenRequestFailed, "auth", "agent", true, ExitOther, 502, nextAgent},
	{NoAccountID, "auth", "agent", false, ExitOther, 401, nextAgent},
	{InvalidResponse, "auth", "agent", true, ExitOther, 502, nextAgent},
	{CorruptAuth, "auth", "agent", false, ExitOther, 401, nextAgent},
	{AuthReadFailed, "auth", "agent", false, ExitOther, 500, nextAgent},
	{AuthWriteFailed, "auth", "agent", false, ExitOther, 500, nextAgent},
	{DeviceAuthFailed, "auth", "agent", true, ExitOther, 401, nextAgent},
	{DeviceCodeUnsupported, "auth", "agent", false, ExitOther, 400, nextAgent},
}

var kindIndex = func() map[Kind]*KindInfo {
	m := make(map[Kind]*KindInfo, len(kinds))
	for i := range kinds {
		m[kinds[i].Kind] = &kinds[i]
	}
	return m
}()

// Kinds returns the closed list, in the order of the KINDS page.
func Kinds() []KindInfo { return append([]KindInfo(nil), kinds...) }

// Known reports whether k is in the closed list.
func (k Kind) Known() bool { return kindIndex[k] != nil }

// Info returns what is known of k; an unknown kind has that of Internal.
func (k Kind) Info() KindInfo {
	if i := kindIndex[k]; i != nil {
		return *i
	}
	return *kindIndex[Internal]
}

// Next is the next thing to do about k, for this session where there is one.
func (k Kind) Next(session string) string {
	// People paste this line into a shell, and the id may come from elsewhere.
	if !ValidSession(session) {
		session = "SESSION"
	}
	return strings.ReplaceAll(k.Info().Next, "{session}", session)
}
