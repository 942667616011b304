// The public client of the Messages API against messagesstub.
import Anthropic from "@anthropic-ai/sdk";
import { VERSION } from "@anthropic-ai/sdk/version";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { jsonSchemaOutputFormat } from "@anthropic-ai/sdk/helpers/json-schema";
import assert from "node:assert/strict";
import { start } from "./stub.mjs";

const stub = await start("anthropic");
const client = new Anthropic({ apiKey: "test-key", baseURL: stub.url, maxRetries: 0 });
const model = "stub", max_tokens = 4096, thinking = { type: "adaptive" };
const ask = [{ role: "user", content: "hello" }];
const text = (message) => message.content.filter((b) => b.type === "text").map((b) => b.text).join("");

// Text and hidden thinking, as a stream and plain.
let streamed = "";
const stream = client.messages.stream({ model, max_tokens, thinking, messages: ask }).on("text", (t) => (streamed += t));
const whole = await stream.finalMessage();
assert.equal(streamed, "Hello from the stub: héllo 世界.");
assert.equal(text(whole), streamed);
assert.deepEqual(whole.content.map((b) => b.type), ["thinking", "text"]);
assert.equal(whole.usage.output_tokens, 5);
assert.equal(whole.usage.cache_read_input_tokens, 3);
assert.equal(whole.stop_reason, "end_turn");
const plain = await client.messages.create({ model, max_tokens, messages: ask });
assert.deepEqual(plain.content, whole.content);

// A tool round trip with two parallel calls and signed thinking, as a stream,
// through the client's own runner.
const asked = [];
const weather = betaTool({
  name: "get_weather", description: "The weather of a city",
  inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }) => { asked.push(city); return city + ": 3 degrees"; },
});
const runner = client.beta.messages.toolRunner({ model, max_tokens, thinking, stream: true, thread: false, tools: [weather], messages: [{ role: "user", content: "weather?" }] });
for await (const turn of runner) for await (const _ of turn);
assert.equal(text(await runner.done()), "Oslo is cold, Rome is warm.");
assert.deepEqual(asked, ["Oslo", "Rome"]);

// A pause in the middle of a hosted search, sent back as it came.
const tools = [{ type: "web_search_20250305", name: "web_search" }];
const search = [{ role: "user", content: "search the weather" }];
const paused = await client.messages.stream({ model, max_tokens, tools, messages: search }).finalMessage();
assert.equal(paused.stop_reason, "pause_turn");
const rest = await client.messages.create({ model, max_tokens, tools, messages: [...search, { role: "assistant", content: paused.content }] });
assert.deepEqual(rest.content.map((b) => b.type), ["web_search_tool_result", "text"]);

// Structured output.
const schema = { type: "object", additionalProperties: false, required: ["status", "count"], properties: { status: { type: "string" }, count: { type: "number" } } };
const answer = await client.messages.parse({ model, max_tokens, messages: ask, output_config: { format: jsonSchemaOutputFormat(schema) } });
assert.deepEqual(answer.parsed_output, { status: "ok", count: 3 });

// Errors: of the script, inside a stream, and of the stand-in's rules.
const say = (content) => ({ model, max_tokens, messages: [{ role: "user", content }] });
await assert.rejects(client.messages.create(say("fail")), (e) => e.status === 529 && e.error.error.type === "overloaded_error");
await assert.rejects(client.messages.stream(say("break")).finalMessage(), (e) => e instanceof Anthropic.APIError && /Overloaded/.test(e.message));
await assert.rejects(client.messages.create({ ...say("x"), tool_choice: { type: "none" } }), (e) => e instanceof Anthropic.BadRequestError);
await assert.rejects(client.messages.create({ ...say("x"), messages: [...ask, { role: "assistant", content: [{ type: "thinking", thinking: "changed", signature: whole.content[0].signature }, { type: "text", text: "x" }] }, ...ask] }),
  (e) => e instanceof Anthropic.BadRequestError && /Invalid `signature`/.test(e.message));

await stub.stop(["tool_choice may only be specified while providing tools", "messages.1.content.0: Invalid `signature` in `thinking` block"]);
console.log("ok: @anthropic-ai/sdk", VERSION, "node", process.version);
