package demo

// runbook is what the agent reads.
const runbook = `# Disk full on a database host

1. Severity is 3 while writes still succeed, 1 when they fail.
2. The category is "storage".
3. A person is needed only when writes fail.
`

// script is the model: a function of the request alone, so that a restart in
// the middle of an answer changes nothing.
const script = `rules:
  - when: {turn: 1}
    reply: {tool_calls: [{name: read_file, arguments: {path: runbook.md}}], usage: {input: 212, output: 18}}
  - when: {turn: 2, repair: 0}
    reply: {text: '{"category":"storage","severity":"three"}', usage: {input: 301, output: 12}}
  - when: {turn: 2, repair: 1}
    reply:
      text: '{"category":"storage","severity":3,"needs_human":false}'
      delay: 1500ms # long enough to be killed in the middle of it
      usage: {input: 388, output: 17}
`

// configuration is the whole holdfast.yaml of the demo.
const configuration = `listen: 127.0.0.1:0
default_route: scripted
routes:
  scripted: {provider: scripted, script: ./demo.script.yaml}
targets:
  allow_private: [127.0.0.0/8]   # the receiver of this demo is on this machine
tools:
  workspace: {type: workspace, root: ./work, shared: true, allow: [list_files, read_file]}
`

// realModel is what puts a real model in the place of the scripted one.
const realModel = `default_route: main
routes:
  main: {provider: openai, model: gpt-5-mini, api_key: {env: OPENAI_API_KEY}}
`

const inputSchema = `{"type":"object","properties":{"host":{"type":"string"},"message":{"type":"string"}},
	"required":["host","message"],"additionalProperties":false}`

const outputSchema = `{"type":"object","properties":{"category":{"type":"string"},"severity":{"type":"number"},"needs_human":{"type":"boolean"}},
	"required":["category","severity","needs_human"],"additionalProperties":false}`

// wanted is the one answer, byte for byte.
const wanted = `{"category":"storage","needs_human":false,"severity":3}`
