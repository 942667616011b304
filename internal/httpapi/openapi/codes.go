package openapi

import (
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/internal/gate"
)

// code is what a problem's code means: the statuses that it comes with, and a
// sentence for the reference.
type code struct {
	statuses []int
	text     string
}

// codes are the problem codes of the interface. They are stable: clients decide
// by them.
var codes = map[string]code{
	"already_replayed":                   {[]int{409}, "The delivery was replayed since it was a dead letter; `force` overrides it."},
	"asset_not_found":                    {[]int{400, 404}, "There is no such asset that the caller may see (400: of the session's user, as an item of an input)."},
	"asset_not_supported":                {[]int{400}, "The model of the chosen route does not take files of this kind. No run was made."},
	"asset_quota":                        {[]int{429}, "The assets of the user would hold more than `limits.user_asset_bytes`."},
	"asset_too_large":                    {[]int{413}, "The file is past `limits.asset_bytes`."},
	"empty_asset":                        {[]int{400}, "The file holds nothing."},
	"unsupported_asset_type":             {[]int{400}, "The file is neither a picture, nor a PDF, nor text in UTF-8."},
	"blob_not_found":                     {[]int{404}, "The session has no such content."},
	"invalid_former_for":                 {[]int{400}, "`former_for` is no duration, or past a week."},
	"invalid_hosts":                      {[]int{400}, "`hosts` holds something that is no host, or too many."},
	"invalid_secret":                     {[]int{400}, "The value of a secret is too short, or there is both a value and `generate`."},
	"invalid_secret_name":                {[]int{400}, "The name of a secret has not the form of one."},
	"no_master_key":                      {[]int{503}, "There is no master key to seal secrets with; the text says what to do (`master_key`)."},
	"secret_conflict":                    {[]int{409}, "Somebody else set the secret at the same moment."},
	"secret_in_configuration":            {[]int{409}, "The configuration has a secret of this name, under `secrets`; a slot of the daemon cannot have it too."},
	"secret_not_found":                   {[]int{404}, "There is no such secret slot of this user."},
	"secret_too_large":                   {[]int{413}, "The value of a secret holds more than 64 KiB."},
	"secret_unreadable":                  {[]int{409, 503}, "A secret does not open: it is sealed under a master key that is not here, or was changed."},
	"too_many_secrets":                   {[]int{429}, "The user has as many secret slots as there may be (`slots.per_owner`)."},
	"too_many_versions":                  {[]int{409}, "As many versions of the secret count now as may; `former_for` of `0s` ends those before."},
	"body_timeout":                       {[]int{408}, "The body of the request did not come in time."},
	"body_too_large":                     {[]int{413}, "The body of the request is past `limits.request_bytes`."},
	"call_not_in_doubt":                  {[]int{409}, "The run does not wait for a word on this call."},
	"connector_busy":                     {[]int{429}, "The connector takes no more events now: `limits.rate` of it."},
	"connector_not_found":                {[]int{404}, "There is no such connector."},
	"connector_unavailable":              {[]int{503}, "A secret of the connector cannot be read now; the daemon's log has the cause."},
	"event_conflict":                     {[]int{409}, "The id of the event was used with another body."},
	"event_id_required":                  {[]int{422}, "The event has no id where the connector looks for one."},
	"event_not_handled":                  {[]int{422}, "The connector refuses this kind of event."},
	"mapping_failed":                     {[]int{422}, "The body lacks what the connector maps, or it is of another type; `issues` has the path."},
	"reply_target_refused":               {[]int{422}, "The body names a reply target that the connector does not allow."},
	"sender_unknown":                     {[]int{401}, "The request does not prove who sends it. What is wrong with the proof is told to nobody."},
	"session_unavailable":                {[]int{503}, "The session that the connector feeds is not there."},
	"cross_origin":                       {[]int{403}, "A browser sent the request for a page of another origin."},
	"host_not_allowed":                   {[]int{421}, "The `Host` of the request is none of the daemon's names: loopback's, and those of `public_names`."},
	"invalid_expiry":                     {[]int{400}, "The time at which the token is to end is none, is over, or is past `tokens.max_expiry`."},
	"proxy_required":                     {[]int{403}, "The daemon takes requests from the proxies of `proxies` only."},
	"rate_limited":                       {[]int{429}, "More requests than `limits.token_rate`, or without a token than `limits.peer_rate`; `Retry-After` says when to come again."},
	"too_many_failures":                  {[]int{429}, "More tokens that are not good came from this address than `limits.auth_failures`; a good one still works."},
	"too_many_requests":                  {[]int{429}, "`limits.requests` requests are being answered."},
	"token_expired":                      {[]int{401}, "The token has expired."},
	"token_in_query":                     {[]int{400}, "A token stands in the URL; it is sent in the header."},
	"compaction_conflict":                {[]int{409}, "The session has a run that is not at its end, or is being compacted."},
	"delivery_in_flight":                 {[]int{409}, "An attempt of the delivery is in flight; try again when it is over."},
	"delivery_not_found":                 {[]int{404}, "There is no such delivery that the caller may see."},
	"delivery_resolved":                  {[]int{409}, "A person said that the delivery is done with; `force` overrides it."},
	"delivery_state_conflict":            {[]int{409}, "The delivery's status does not allow it."},
	"filter_required":                    {[]int{400}, "The filter, which must have a member, is not there."},
	"idempotency_conflict":               {[]int{409}, "The key was used with another request."},
	"input_contract_not_set":             {[]int{404}, "The session has no input contract."},
	"input_contract_schema_unsupported":  {[]int{400}, "The schema cannot be a contract; `issues` has every finding."},
	"input_contract_violated":            {[]int{400, 422}, "The input breaks the session's input contract; `issues` has the path. No run was made."},
	"input_too_large":                    {[]int{413}, "The input is past `limits.input_bytes`, or has too many items."},
	"instructions_too_large":             {[]int{413}, "The instructions are too long."},
	"internal":                           {[]int{500}, "A fault of the daemon; its log has the cause."},
	"invalid_body":                       {[]int{400}, "The body is JSON, but not what the operation takes; `issues` has the path."},
	"invalid_cursor":                     {[]int{400}, "The cursor is not one that this list gave, in this direction."},
	"invalid_filter":                     {[]int{400}, "A member of the filter has a value that it cannot take; `issues` has the path."},
	"invalid_limit":                      {[]int{400}, "`limit` is out of its bounds."},
	"invalid_plan_token":                 {[]int{400}, "The plan token is not one that a dry run gave to this caller."},
	"invalid_reason":                     {[]int{400}, "A reason is missing, or has more than 500 characters."},
	"job_not_found":                      {[]int{404}, "There is no such job that the caller may see."},
	"job_state_conflict":                 {[]int{409}, "The job is at its end."},
	"plan_drifted":                       {[]int{409}, "The set of deliveries is not the one of the plan any more; `issues` say what came, went or changed."},
	"plan_expired":                       {[]int{409}, "The plan was not started in time."},
	"plan_mismatch":                      {[]int{409}, "The request contradicts what the plan was made with; `issues` has the path."},
	"invalid_headers":                    {[]int{400}, "A header of a reply target cannot be set."},
	"invalid_history_limit":              {[]int{400}, "`history_limit` is out of its bounds."},
	"invalid_idempotency_key":            {[]int{400}, "The key is not one value of 1 to 255 visible ASCII characters."},
	"invalid_input":                      {[]int{400, 422}, "Neither `content` nor `input_items`, both, or an empty one."},
	"invalid_json":                       {[]int{400}, "The body, or `content`, is not one strict JSON value."},
	"invalid_max_turns":                  {[]int{400}, "`max_turns` is out of its bounds."},
	"invalid_metadata":                   {[]int{400}, "`metadata` is no JSON object, or too large."},
	"invalid_model":                      {[]int{400}, "The name of the model is too long."},
	"invalid_on_doubt":                   {[]int{400}, "`on_doubt` is neither `ask` nor `continue`."},
	"invalid_parameter":                  {[]int{400}, "A query parameter or header has a value that it cannot take."},
	"invalid_reply_target":               {[]int{400}, "A reply target is of an unknown type, or has not the form of its type."},
	"invalid_resolution":                 {[]int{400}, "The resolution is none of `completed`, `failed` and `retry`."},
	"invalid_role":                       {[]int{400}, "The role is none of `reader`, `operator` and `admin`."},
	"invalid_session_id":                 {[]int{400}, "The caller's id for the session has not the form of one."},
	"invalid_token":                      {[]int{401}, "The token is not known, or was revoked."},
	"invalid_tools":                      {[]int{400}, "`tools` is no list of names."},
	"invalid_url":                        {[]int{400, 422}, "The URL of a reply target cannot be used."},
	"invalid_user_id":                    {[]int{400}, "`user_id` has not the form of one."},
	"method_not_allowed":                 {[]int{405}, "The path takes other methods; `Allow` names them."},
	"metrics_unavailable":                {[]int{503}, "The figures cannot be given now."},
	"unbound_token_required":             {[]int{403}, "What is asked for is of all users: it wants a token that is not bound to one."},
	"no_snapshots":                       {[]int{409}, "What is named has no snapshots of files: no step that may have changed files has ended there, snapshots were off, or they could not be made."},
	"diff_too_wide":                      {[]int{400}, "The session's log is too long to look for snapshots in all of it; name a run or a step."},
	"snapshot_elsewhere":                 {[]int{409}, "A snapshot stands in the private store of another node, which `detail` names."},
	"snapshot_gone":                      {[]int{410}, "A snapshot was made and is not kept any more."},
	"diff_busy":                          {[]int{429}, "Too many comparisons of files at once; try again."},
	"name_too_large":                     {[]int{413}, "The name of the token is too long."},
	"not_found":                          {[]int{404}, "There is nothing at this path."},
	"not_ready":                          {[]int{503}, "The daemon does not take work now."},
	"nothing_to_change":                  {[]int{400}, "The body names no member to change."},
	"output_contract_not_set":            {[]int{404}, "The session has no output contract."},
	"output_contract_schema_unsupported": {[]int{400}, "The schema cannot be a contract; `issues` has every finding."},
	"output_too_large":                   {[]int{413}, "The output that the model is to see is too long."},
	"queue_full":                         {[]int{429}, "The session has `limits.queued_runs` runs that are not at their end."},
	"reply_targets_too_large":            {[]int{413}, "The reply targets together are too large."},
	"role_required":                      {[]int{403}, "The token's role does not allow it."},
	"route_policy_not_set":               {[]int{404}, "The session has no route policy."},
	"run_not_found":                      {[]int{404}, "There is no such run that the caller may see."},
	"run_state_conflict":                 {[]int{409}, "The run is at its end, or is being settled by others."},
	"session_active":                     {[]int{409}, "The session has unfinished runs or deliveries."},
	"session_busy":                       {[]int{409}, "The session is being changed by others; try again."},
	"session_closed":                     {[]int{409}, "The session is closed: it takes no new work and no change."},
	"session_erased":                     {[]int{410}, "The session was erased."},
	"session_exists":                     {[]int{409}, "The user has a session with this id."},
	"session_not_found":                  {[]int{404}, "There is no such session that the caller may see."},
	"settings_conflict":                  {[]int{409}, "The session is being changed by others; try again."},
	"stopping":                           {[]int{503}, "The daemon is stopping; try again when it is back."},
	"storage_full":                       {[]int{507}, "There is no room on the disk, or less than `store.reserve`; nothing was taken. Make room: the daemon goes on by itself. What ends work (cancel, resolve, erase) is taken as long as anything can be written."},
	"store_damaged":                      {[]int{503}, "The daemon's database is damaged: nothing more is written, what can be read is served. The operator has to restore a backup."},
	"store_unavailable":                  {[]int{503}, "The daemon cannot reach its database, or cannot write, now; try again, under an `Idempotency-Key` where work must not be done twice."},
	"target_not_allowed":                 {[]int{400, 422}, "The address of a reply target is not public and not in `targets.allow_private`; or the configuration does not allow its receiver or subject."},
	"target_not_configured":              {[]int{400}, "A reply target names a server, folder or plugin that the configuration does not have, or the standard output, which is closed."},
	"too_many_tests":                     {[]int{429}, "Too many test deliveries are in flight."},
	"secret_unavailable":                 {[]int{409, 503}, "A secret that is needed now cannot be read."},
	"signing_key_not_found":              {[]int{404}, "No secret of this name holds an ed25519 key."},
	"target_not_found":                   {[]int{404}, "There is no such target that the caller may see."},
	"thread_id_too_large":                {[]int{413}, "`thread_id` is too long."},
	"timeout":                            {[]int{503}, "The request was given up; its outcome is not known."},
	"title_too_large":                    {[]int{413}, "The title is too long."},
	"token_not_found":                    {[]int{404}, "There is no such token that the caller may see."},
	"token_required":                     {[]int{401}, "No token was sent."},
	"too_many_reply_targets":             {[]int{413}, "There are too many reply targets."},
	"too_many_plans":                     {[]int{429}, "`delivery.open_plans` plans of bulk replays are open, or four fifths of them by this caller; start or cancel one, or let it expire."},
	"too_many_streams":                   {[]int{429}, "`limits.streams` streams and waits are open, or four fifths of them by this token alone."},
	"too_many_uploads":                   {[]int{429}, "Too many files are handed in, or read back, at once."},
	"too_many_tools":                     {[]int{413}, "There are too many tools."},
	"unknown_parameter":                  {[]int{400}, "The operation has no such query parameter; the detail names those it has."},
	"unknown_route":                      {[]int{400}, "No route has this name."},
	"signing_secret_required":            {[]int{400}, "The daemon has no secret to sign webhooks with: the operator sets `targets.signing_secret`."},
	"unknown_secret":                     {[]int{400}, "No configured secret has this name."},
	"unknown_tool":                       {[]int{400, 409}, "No configured tool has this name (409: not any more)."},
	"unsupported_media_type":             {[]int{415}, "The body is not sent as `application/json`."},
	"wrong_user":                         {[]int{403}, "The token is bound to another user."},
}

// The codes of what several operations share.
var (
	settingsCodes = []string{"invalid_on_doubt", "invalid_max_turns", "invalid_history_limit", "instructions_too_large", "title_too_large",
		"too_many_tools", "unknown_tool", "invalid_tools", "invalid_metadata"}
	inputCodes   = []string{"input_contract_schema_unsupported"}
	outputCodes  = []string{"output_contract_schema_unsupported"}
	routeCodes   = []string{"unknown_route", "invalid_model"}
	targetCodes  = []string{"too_many_reply_targets", "reply_targets_too_large", "invalid_reply_target", "invalid_url", "invalid_headers", "target_not_allowed", "target_not_configured", "signing_secret_required", "unknown_secret", "secret_unavailable", "session_not_found", "session_erased", "session_closed"}
	changeCodes  = []string{"session_closed", "settings_conflict"}
	assetCodes   = []string{"asset_quota", "asset_too_large", "empty_asset", "unsupported_asset_type"}
	replayCodes  = slices.Concat([]string{"delivery_state_conflict", "already_replayed", "delivery_resolved", "delivery_in_flight", "invalid_reason"}, addressCodes)
	addressCodes = []string{"invalid_reply_target", "invalid_url", "invalid_headers", "target_not_allowed", "signing_secret_required", "unknown_secret"}
	streamsCodes = []string{"too_many_streams"}
)

// codesOf are the codes of an operation beyond those that follow from its shape.
var codesOf = map[string][]string{
	"createSession":        slices.Concat(settingsCodes, inputCodes, outputCodes, routeCodes, targetCodes, []string{"invalid_session_id", "thread_id_too_large", "session_exists", "session_busy"}),
	"updateSession":        slices.Concat(settingsCodes, changeCodes, []string{"nothing_to_change"}),
	"closeSession":         changeCodes,
	"compactSession":       slices.Concat(routeCodes, []string{"session_closed", "compaction_conflict"}),
	"eraseSession":         {"session_active", "settings_conflict"},
	"getInputContract":     {"input_contract_not_set"},
	"putInputContract":     slices.Concat(inputCodes, changeCodes),
	"deleteInputContract":  changeCodes,
	"getOutputContract":    {"output_contract_not_set"},
	"putOutputContract":    slices.Concat(outputCodes, changeCodes),
	"deleteOutputContract": changeCodes,
	"getRoutePolicy":       {"route_policy_not_set"},
	"putRoutePolicy":       slices.Concat(routeCodes, changeCodes),
	"deleteRoutePolicy":    changeCodes,
	"putReplyTargets":      slices.Concat(targetCodes, changeCodes),
	"deleteReplyTargets":   changeCodes,
	"createAsset":          slices.Concat(assetCodes, []string{"too_many_uploads"}),
	"getAssetBytes":        {"too_many_uploads"},
	"submitRun": slices.Concat(routeCodes, targetCodes, streamsCodes, assetCodes, []string{"asset_not_found", "asset_not_supported", "invalid_input", "input_too_large", "input_contract_violated", "invalid_idempotency_key", "idempotency_conflict",
		"invalid_max_turns", "invalid_metadata", "queue_full", "session_busy", "session_closed", "unknown_tool", "settings_conflict"}),
	"receiveEvent": slices.Concat(routeCodes, slices.DeleteFunc(slices.Clone(targetCodes), func(code string) bool { return code == "session_erased" }), []string{"connector_not_found", "connector_busy", "connector_unavailable", "event_conflict", "event_id_required", "event_not_handled", "mapping_failed",
		"reply_target_refused", "sender_unknown", "session_unavailable", "invalid_json", "unsupported_media_type", "body_too_large", "input_contract_violated", "invalid_input", "input_too_large",
		"queue_full", "session_busy", "session_closed", "unknown_tool"}),
	"testConnector":    {"connector_not_found", "connector_unavailable"},
	"getRun":           streamsCodes,
	"streamRun":        streamsCodes,
	"streamSession":    streamsCodes,
	"cancelRun":        {"run_state_conflict"},
	"resolveAttention": {"invalid_resolution", "output_too_large", "call_not_in_doubt", "run_state_conflict"},
	"getBlob":          {"blob_not_found"},
	"getSessionDiff":   {"run_not_found", "no_snapshots", "snapshot_elsewhere", "snapshot_gone", "diff_too_wide", "diff_busy"},
	"replayDelivery":   replayCodes,
	"resolveDelivery":  {"delivery_state_conflict", "delivery_in_flight", "invalid_reason"},
	"replayDeliveries": {"filter_required", "invalid_filter", "invalid_limit", "invalid_reason", "invalid_plan_token", "plan_expired", "plan_mismatch", "plan_drifted", "too_many_plans", "wrong_user", "invalid_user_id"},
	"cancelJob":        {"job_state_conflict", "invalid_reason"},
	"testTarget":       slices.Concat(targetCodes, []string{"too_many_tests", "wrong_user"}),
	"getSigningKey":    {"signing_key_not_found", "secret_unavailable"},
	"createToken":      {"invalid_role", "invalid_expiry", "name_too_large"},
	"listAudit":        {"unbound_token_required"},
	"putSecret":        {"invalid_secret_name", "invalid_secret", "invalid_hosts", "invalid_former_for", "secret_too_large", "secret_conflict", "secret_in_configuration", "too_many_versions", "too_many_secrets", "no_master_key"},
	"rekeySecrets":     {"unbound_token_required", "secret_unreadable", "no_master_key"},
	"readyz":           {"not_ready"},
	"listNodes":        {"unbound_token_required"},
	"metrics":          {"metrics_unavailable", "unbound_token_required", "not_found"},
}

// pathCodes are those of what a path names.
var pathCodes = map[string][]string{
	"s": {"session_not_found", "session_erased", "wrong_user"}, "r": {"run_not_found", "session_erased"}, "d": {"delivery_not_found", "session_erased"}, "t": {"token_not_found"}, "a": {"asset_not_found"}, "target": {"target_not_found"}, "j": {"job_not_found"}, "secret": {"secret_not_found"},
}

// everyCodes are those that an operation may always answer with, as trouble on the daemon's side.
var everyCodes = []string{"internal", "store_damaged", "store_unavailable", "stopping", "timeout"}

// problemCodes lists the codes that the operation may answer with, by status.
func (op *Operation) problemCodes() map[int][]string {
	names := append([]string{"invalid_parameter", "unknown_parameter", "cross_origin", "host_not_allowed", "proxy_required", "token_in_query", "rate_limited"}, codesOf[op.ID]...)
	if op.Role > gate.Public {
		names = append(names, "token_required", "invalid_token", "role_required", "token_expired", "too_many_failures")
		if !op.Stream {
			names = append(names, "too_many_requests")
		}
	}
	if op.Method != "GET" {
		names = append(names, "storage_full")
	}
	if op.Method != "GET" && !op.Raw {
		names = append(names, "unsupported_media_type")
	}
	if op.Body != nil {
		names = append(names, "invalid_json", "invalid_body", "body_timeout", "body_too_large", "unsupported_media_type")
	}
	if op.Raw {
		names = append(names, "invalid_body", "body_timeout")
	}
	for _, name := range op.pathNames() {
		names = append(names, pathCodes[name]...)
	}
	for _, p := range op.Params {
		switch p.Name {
		case "cursor":
			names = append(names, "invalid_cursor")
		case "user_id":
			names = append(names, "wrong_user", "invalid_user_id")
		}
	}
	if op.ID == "createSession" || op.ID == "createToken" { // the user stands in the body
		names = append(names, "wrong_user", "invalid_user_id")
	}
	out := map[int][]string{}
	for _, name := range names {
		for _, status := range codes[name].statuses {
			// A status that the table does not give the operation is none of its own.
			if slices.Contains(op.problems(), status) && !slices.Contains(out[status], name) {
				out[status] = append(out[status], name)
			}
		}
	}
	for status := range out {
		slices.Sort(out[status])
	}
	return out
}

// codeList names codes for a description.
func codeList(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }
