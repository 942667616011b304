// The public client of generateContent against geministub.
import { GoogleGenAI, ApiError, Type } from "@google/genai";
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { start } from "./stub.mjs";

const stub = await start("gemini");
const connect = (apiKey) => new GoogleGenAI({ apiKey, httpOptions: { baseUrl: stub.url } });
const ai = connect("test-key");
const model = "gemini-3-flash";

// Text, as a stream and plain.
let text = "", usage;
for await (const chunk of await ai.models.generateContentStream({ model, contents: "hello", config: { systemInstruction: "Be brief.", maxOutputTokens: 100, thinkingConfig: { thinkingLevel: "LOW" } } })) {
  text += chunk.text ?? "";
  usage = chunk.usageMetadata ?? usage;
}
assert.equal(text, "Hello from the stub: héllo 世界.");
assert.equal(usage.totalTokenCount, 20);
const plain = await ai.models.generateContent({ model, contents: "hello" });
assert.equal(plain.text, text);
assert.equal(plain.candidates[0].finishReason, "STOP");

// A tool round trip with two parallel calls, as a stream. All parts of an answer go back in one content: each content of the
// model counts as a step of its own, whose first call must be signed.
const tools = [{ functionDeclarations: [{ name: "get_weather", description: "The weather of a city", parameters: { type: Type.OBJECT, properties: { city: { type: Type.STRING } }, required: ["city"] } }] }];
const contents = [{ role: "user", parts: [{ text: "weather?" }] }];
const turn = async (config) => {
  const parts = [];
  for await (const chunk of await ai.models.generateContentStream({ model, contents, config })) parts.push(...(chunk.candidates?.[0]?.content?.parts ?? []));
  contents.push({ role: "model", parts: parts.filter((p) => !p.thought) });
  return parts;
};
const calls = (await turn({ tools })).flatMap((p) => p.functionCall ?? []);
assert.deepEqual(calls.map((c) => [c.id, c.name, c.args.city]), [["fc_1", "get_weather", "Oslo"], ["fc_2", "get_weather", "Rome"]]);
contents.push({ role: "user", parts: calls.map((c) => ({ functionResponse: { id: c.id, name: c.name, response: { output: "3 degrees" } } })) });
assert.equal((await turn({ tools })).map((p) => p.text).join(""), "Oslo is cold, Rome is warm.");
contents.push({ role: "user", parts: [{ text: "thanks" }] });
assert.equal((await turn({ tools, toolConfig: { functionCallingConfig: { mode: "NONE" } } })).map((p) => p.text).join(""), text);

// The client's own chat, plain: it keeps the signatures by itself.
const chat = ai.chats.create({ model, config: { tools } });
const asked = (await chat.sendMessage({ message: "weather?" })).functionCalls;
const said = await chat.sendMessage({ message: asked.map((c) => ({ functionResponse: { id: c.id, name: c.name, response: { output: "3 degrees" } } })) });
assert.equal(said.text, "Oslo is cold, Rome is warm.");

// Structured output, in the vendor's words and as JSON Schema, and code that the vendor runs.
const config = { responseMimeType: "application/json", responseSchema: { type: Type.OBJECT, properties: { status: { type: Type.STRING }, count: { type: Type.NUMBER } }, required: ["status", "count"] } };
assert.deepEqual(JSON.parse((await ai.models.generateContent({ model, contents: "answer", config })).text), { status: "ok", count: 3 });
const free = { responseMimeType: "application/json", responseJsonSchema: { type: "object", properties: { status: { type: "string" } }, additionalProperties: false } };
assert.deepEqual(JSON.parse((await ai.models.generateContent({ model, contents: "answer", config: free })).text), { status: "ok", count: 3 });
const ran = await ai.models.generateContent({ model, contents: "compute", config: { tools: [{ codeExecution: {} }] } });
assert.equal(ran.codeExecutionResult, "42\n");

// A blocked prompt, and errors: of the script, inside a stream, of the key, and of the stand-in's rules.
const blocked = await ai.models.generateContent({ model, contents: "forbidden" });
assert.equal(blocked.promptFeedback.blockReason, "PROHIBITED_CONTENT");
await assert.rejects(ai.models.generateContent({ model, contents: "fail" }), (e) => e instanceof ApiError && e.status === 429 && e.message.includes("RESOURCE_EXHAUSTED"));
await assert.rejects(async () => { for await (const _ of await ai.models.generateContentStream({ model, contents: "break off" })); }, (e) => e.message.includes("UNAVAILABLE"));
await assert.rejects(connect("other-key").models.generateContent({ model, contents: "hello" }), (e) => e.status === 400 && e.message.includes("API key not valid"));
const foreign = [{ role: "user", parts: [{ text: "x" }] }, { role: "model", parts: [{ functionCall: { name: "get_weather", args: {} } }] }, { role: "user", parts: [{ functionResponse: { name: "get_weather", response: {} } }] }];
await assert.rejects(ai.models.generateContent({ model, contents: foreign }), (e) => e.status === 400 && e.message.includes("missing a thought_signature"));

await stub.stop(["API key not valid", "contents[1]: Function call is missing a thought_signature in functionCall parts."]);
const { version } = JSON.parse((await import("node:fs")).readFileSync(createRequire(import.meta.url).resolve("@google/genai").replace(/dist.*$/, "package.json")));
console.log("ok: @google/genai", version, "node", process.version);
