// The public client of the Responses API against responsesstub.
import OpenAI from "openai";
import { VERSION } from "openai/version";
import assert from "node:assert/strict";
import { start } from "./stub.mjs";

const stub = await start("responses");
const client = new OpenAI({ apiKey: "test-key", baseURL: stub.url + "/v1", maxRetries: 0 });
const base = { model: "stub", store: false, include: ["reasoning.encrypted_content"] };
const hello = "Hello from the stub: héllo 世界.";

// Text: as raw events, through the client's own accumulator, and plain.
let text = "", thought = "", types = new Set();
for await (const ev of await client.responses.create({ ...base, input: "hello", stream: true })) {
  types.add(ev.type);
  if (ev.type === "response.output_text.delta") text += ev.delta;
  if (ev.type === "response.reasoning_summary_text.delta") thought += ev.delta;
  if (ev.type === "response.completed") assert.equal(ev.response.usage.total_tokens, 17);
}
assert.equal(text, hello);
assert.equal(thought, "Let me think.");
assert.ok(types.has("response.completed") && types.has("response.content_part.done"));
const accumulated = await client.responses.stream({ ...base, input: "hello" }).finalResponse();
assert.equal(accumulated.output_text, hello);
const plain = await client.responses.create({ ...base, input: "hello" });
assert.equal(plain.output_text, hello);
assert.equal(plain.status, "completed");

// A tool round trip with two parallel calls and sealed reasoning, whose items go back as they came.
const tools = [{ type: "function", name: "get_weather", description: "The weather of a city", strict: true,
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false } }];
const input = [{ role: "user", content: "weather?" }];
const asked = await client.responses.stream({ ...base, input, tools }).finalResponse();
const calls = asked.output.filter((it) => it.type === "function_call");
assert.deepEqual(calls.map((c) => JSON.parse(c.arguments).city), ["Oslo", "Rome"]);
// The accumulator adds what it parsed to its copies of the calls; the API does not take that.
input.push(...asked.output.map(({ parsed_arguments, ...it }) => it));
input.push(...calls.map((c) => ({ type: "function_call_output", call_id: c.call_id, output: "3 degrees" })));
const told = await client.responses.create({ ...base, input, tools });
assert.equal(told.output_text, "Oslo is cold, Rome is warm.");

// A hosted tool, whose item goes back too.
const found = await client.responses.create({ ...base, input: "search", tools: [{ type: "web_search" }] });
assert.equal(found.output[1].action.query, "oslo");
const after = await client.responses.create({ ...base, input: [{ role: "user", content: "search" }, ...found.output, { role: "user", content: "thanks" }] });
assert.equal(after.output_text, hello);

// Structured output in strict mode.
const schema = { type: "object", additionalProperties: false, required: ["status", "count", "tags"], properties: {
  status: { type: "string" }, count: { type: "number" }, tags: { anyOf: [{ type: "array", items: { type: "string" } }, { type: "null" }] } } };
const answer = await client.responses.parse({ ...base, input: "hello", text: { format: { type: "json_schema", name: "answer", strict: true, schema } } });
assert.deepEqual(answer.output_parsed, { status: "ok", count: 3, tags: null });

// A refusal, and an answer that the limit cut.
const refused = await client.responses.create({ ...base, input: "refuse" });
assert.equal(refused.output[1].content[0].refusal, "I cannot help.");
const cut = await client.responses.create({ ...base, input: "long", max_output_tokens: 16 });
assert.equal(cut.incomplete_details.reason, "max_output_tokens");

// Errors: of the script, inside a stream, and of the stand-in's rules.
await assert.rejects(client.responses.create({ ...base, input: "fail" }),
  (e) => e instanceof OpenAI.RateLimitError && e.status === 429 && e.code === "rate_limit_exceeded");
await assert.rejects(client.responses.stream({ ...base, input: "fail in the stream" }).finalResponse(), (e) => /retry later/.test(e.message));
await assert.rejects(client.responses.create({ ...base, input, tools: [], tool_choice: "none" }), (e) => e instanceof OpenAI.BadRequestError);

await stub.stop(["tool_choice is only allowed when 'tools' are specified."]);
console.log("ok: openai", VERSION, "node", process.version);
