// A receiver that trusts the npm library of Standard Webhooks alone: it takes every attempt and the replay of a daemon's
// delivery, with one id and one body.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Webhook } from 'standardwebhooks'

const secret = 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD'
const hook = new Webhook(secret)
const seen = []
const server = createServer((req, res) => {
  const parts = []
  req.on('data', (p) => parts.push(p))
  req.on('end', () => {
    const body = Buffer.concat(parts).toString('utf8')
    let fault = ''
    try {
      hook.verify(body, req.headers)
    } catch (e) {
      fault = String(e)
    }
    seen.push({ id: req.headers['webhook-id'], body, fault })
    res.writeHead(seen.length < 3 ? 503 : 204).end()
  })
})
await new Promise((done) => server.listen(0, '127.0.0.1', done))

const dir = mkdtempSync(join(tmpdir(), 'holdfast-'))
const bin = join(dir, 'holdfast')
execFileSync('go', ['build', '-o', bin, './cmd/holdfast'], { cwd: resolve(import.meta.dirname, '../..'), stdio: 'inherit' })
writeFileSync(join(dir, 'script.yaml'), 'rules: [{reply: {text: "größer & <besser>"}}]\n')
writeFileSync(join(dir, 'holdfast.yaml'), `
listen: unix:${join(dir, 'hf.sock')}
routes: {main: {provider: scripted, script: script.yaml}}
secrets: {hook: {env: HOOK}}
targets: {signing_secret: hook, allow_private: [127.0.0.0/8], fallback: [{type: webhook, url: "http://127.0.0.1:${server.address().port}/"}]}
delivery: {initial_backoff: 50ms}
`)
const options = { cwd: dir, env: { ...process.env, HOOK: secret } }
const daemon = spawn(bin, ['serve'], { ...options, stdio: 'ignore' })
try {
  const holdfast = (...args) => execFileSync(bin, args, { ...options, encoding: 'utf8' })
  for (let i = 0; !existsSync(join(dir, 'hf.sock')); i++) {
    assert.ok(i < 200, 'the daemon does not start')
    await sleep(50)
  }
  const until = async (n) => {
    for (let i = 0; seen.length < n || !holdfast('deliveries', 'list').includes(' delivered '); i++) {
      assert.ok(i < 200, `${seen.length} attempts came, want ${n}`)
      await sleep(50)
    }
  }
  holdfast('run', 'hello')
  await until(3)
  holdfast('deliveries', 'replay', seen[0].id, '--force', '--reason', 'a check')
  await until(4)
  assert.deepEqual(seen.map((s) => s.fault), ['', '', '', ''])
  assert.equal(new Set(seen.map((s) => s.id)).size, 1)
  assert.equal(new Set(seen.map((s) => s.body)).size, 1)
  console.log('ok')
} finally {
  daemon.kill()
  await new Promise((done) => daemon.on('exit', done))
  server.close()
  rmSync(dir, { recursive: true })
}
