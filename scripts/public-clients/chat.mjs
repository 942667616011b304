// The public client of Chat Completions against chatstub.
import OpenAI from "openai";
import { VERSION } from "openai/version";
import assert from "node:assert/strict";
import { start } from "./stub.mjs";

const stub = await start("chat");
const client = new OpenAI({ apiKey: "test-key", baseURL: stub.url + "/v1", maxRetries: 0 });
const model = "stub";
const ask = [{ role: "user", content: "hello" }];

// Text, as a stream and plain.
let text = "", usage;
for await (const chunk of await client.chat.completions.create({ model, messages: ask, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, "Hello from the stub: héllo 世界.");
assert.equal(usage.total_tokens, 17);
const plain = await client.chat.completions.create({ model, messages: ask });
assert.equal(plain.choices[0].message.content, text);
assert.equal(plain.choices[0].finish_reason, "stop");

// A picture.
const picture = { type: "image_url", image_url: { url: "data:image/png;base64,iVBORw0KGgo=" } };
const seen = await client.chat.completions.create({ model, messages: [{ role: "user", content: [{ type: "text", text: "what is this?" }, picture] }] });
assert.equal(seen.choices[0].message.content, text);

// A tool round trip with two parallel calls, as a stream, through the client's own runner.
const asked = [];
const runner = client.chat.completions.runTools({
  model, stream: true, messages: [{ role: "user", content: "weather?" }],
  tools: [{ type: "function", function: {
    name: "get_weather", description: "The weather of a city", parse: JSON.parse,
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    function: ({ city }) => { asked.push(city); return city + ": 3 degrees"; },
  } }],
});
assert.equal(await runner.finalContent(), "Oslo is cold, Rome is warm.");
assert.deepEqual(asked, ["Oslo", "Rome"]);

// Structured output in strict mode.
const schema = { type: "object", additionalProperties: false, required: ["status", "count", "tags"], properties: {
  status: { type: "string" }, count: { type: "number" }, tags: { anyOf: [{ type: "array", items: { type: "string" } }, { type: "null" }] } } };
const response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
const answer = await client.chat.completions.parse({ model, messages: ask, response_format });
assert.deepEqual(answer.choices[0].message.parsed, { status: "ok", count: 3, tags: null });

// Errors: of the script, and of the stand-in's rules.
await assert.rejects(client.chat.completions.create({ model, messages: [{ role: "user", content: "fail" }] }),
  (e) => e instanceof OpenAI.RateLimitError && e.status === 429 && e.code === "rate_limit_exceeded");
await assert.rejects(client.chat.completions.create({ model, messages: ask, tool_choice: "none" }), (e) => e.status === 400);

await stub.stop(["tool_choice is only allowed when tools are specified"]);
console.log("ok: openai", VERSION, "node", process.version);
