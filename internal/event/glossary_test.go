package event_test

// glossary says what members mean that many events share, where their own
// comment says nothing more. Type.member comes before member.
var glossary = map[string]string{
	"actor": "who asked: a token's name and id, or `local`", "reason": "why, for the record", "delivery_id": "the delivery",
	"message": "text that is safe to show", "message_id": "the assistant message of the step, `msg_…`", "duration_ms": "how long it took, in milliseconds",
	"name": "the tool's name", "attempt": "which attempt, from 1", "totals": "the run's counters", "part": "position of the part in the answer, from 0",
	"output": "what the model sees as the call's result", "content": "the text", "code": "stable word for what went wrong", "type": "what kind it is",
	"status": "HTTP status, when one was seen", "source": "where it comes from", "route": "the route's name", "partial": "its attempt broke before it ended",
	"model": "the vendor's name of the model", "level": "side-effect level", "class": "class of the failure, as the rules know it",
	"tools": "what the policy decides by", "settings": "the session's defaults", "reply_targets": "where the answer goes", "provider": "the adapter",
	"output_contract": "the contract that the answer must meet", "metadata": "the caller's own, never read", "input": "the canonical input",
	"finish": "why the model stopped", "calls": "the tool calls", "value": "the parsed value, whose canonical form is the text", "usage": "tokens; absent: not known",
	"url": "the address", "turns": "model turns, without repairs", "title": "for people", "thread_id": "the caller's own thread, told to receivers",
	"text_preview": "the beginning of the input", "text": "the text itself", "targets": "the deliveries that commit with it", "target_id": "the receiver",
	"structured_output": "the answer as JSON", "steps": "logical model calls, with repairs", "state": "reference of the sealed blob",
	"settings_version": "the settings that it was decided by", "secret": "name of the secret that signs", "schema": "rendered JSON Schema", "rule": "what decided",
	"route_policy": "the session's route and model", "repairs": "repair turns used", "reasoning": "reasoning tokens", "raw": "what came instead of a JSON object",
	"policy": "what the configuration says", "output_kind": "`assistant_text` or `structured_output`", "outcome": "`unknown` when it had begun and nobody knows its effect",
	"operation": "what the key is for", "ok": "whether it conforms", "max_turns": "turns at most", "max_repair_attempts": "repairs at most",
	"malformed": "why the call cannot run", "maker": "provider and model that made it, the only one to get it back", "large": "arguments past 16 KiB",
	"kind": "what kind of run", "key_hash": "SHA-256 of the caller's key", "instructions": "system text", "input_contract": "the contract that submissions must meet",
	"idempotent": "takes an idempotency key", "idempotency": "the submission's key", "headers": "further headers, no secrets", "gate": "`output`",
	"from": "the state before", "forced": "although it was no dead letter", "first_output_ms": "time to the first piece of the answer, in milliseconds",
	"fingerprint": "versioned digest of what shapes the run", "error": "the first mismatch, with its path", "digest": "SHA-256 of the definition or schema",
	"decision": "`allow` or `reject`", "confined": "effects stay in the session's workspace", "changed": "the members that change", "call_id": "the call",
	"cache_write": "tokens written to the vendor's cache", "cache_read": "tokens read from the vendor's cache", "budget": "how many are allowed",
	"body": "blob of the exact bytes", "attempts": "attempts in all", "arguments": "the canonical arguments", "after_ms": "after so many milliseconds",
	"address": "blob of the target's address", "folder": "name of the folder, of a file", "format": "of a webhook's body", "path": "of the file in its folder",
	"plugin": "name of the plugin", "server": "name of the mail or NATS server", "session": "the session that it is submitted to", "signing": "`hmac` or `ed25519`",
	"subject": "of the mail, or the NATS subject", "to": "the mail's receivers", "url_secret": "name of the secret that holds the address",

	"TokenUsage.input": "input tokens, cached ones included", "TokenUsage.output": "output tokens, reasoning included",
	"Totals.tools": "tool calls asked for", "ModelCallFailed.output": "some of the answer had come", "ModelCallFailed.code": "the vendor's own code",
	"InferenceCompleted.calls": "how many tool calls the answer holds", "NeedsAttention.calls": "the calls in doubt",
	"StepFailed.class": "class of the last attempt's failure",
}
