// What a JavaScript client does when things go wrong for it: it ends without a
// close frame, comes back with what it signed before, and sends what the ws
// package and JSON.stringify let it send.
import WebSocket from 'ws'
import { finalizeEvent, generateSecretKey, getPublicKey } from 'nostr-tools/pure'

const [url, host] = process.argv.slice(2)
const secret = generateSecretKey(), self = getPublicKey(secret)
const fail = words => { console.error(words); process.exit(1) }
setTimeout(() => fail('nothing more came within 40 s'), 40000).unref()
const now = () => Math.floor(Date.now() / 1000)
const sign = (content, kind = 3188, tags = [['p', host], ['h', 'a'.repeat(64)], ['t', 'oa:artifact:v1']]) =>
  finalizeEvent({ kind, created_at: now(), content, tags }, secret)
const login = challenge => sign('', 22242, [['relay', url], ['challenge', challenge]])

const connect = async () => {
  const ws = new WebSocket(url), inbox = []
  let wake = () => {}, ours = false
  ws.on('message', data => { inbox.push(JSON.parse(data.toString())); wake() })
  ws.on('error', e => ours || fail('socket: ' + e.message))
  ws.on('close', () => ours || fail('the relay closed the connection'))
  const take = async matches => {
    for (;;) {
      const i = inbox.findIndex(matches)
      if (i >= 0) return inbox.splice(i, 1)[0]
      await new Promise(resolve => { wake = resolve })
    }
  }
  const send = (...frame) => ws.send(JSON.stringify(frame))
  const c = {
    ws, inbox, take, send,
    ok: event => take(m => m[0] === 'OK' && m[1] === event.id),
    publish: event => { send('EVENT', event); return c.ok(event) },
    auth: event => { send('AUTH', event); return c.ok(event) },
    gone: end => new Promise(resolve => { ours = true; ws.on('close', resolve); end() }),
    challenge: async () => (await take(m => m[0] === 'AUTH'))[1],
  }
  await new Promise(resolve => ws.on('open', resolve))
  return c
}

// The end of a process and of a network: FIN and RST, each while an event is
// under way. Whether it arrived nobody can say, so that it is sent again.
const request = sign('request')
let used
for (const end of [c => c.ws.terminate(), c => c.ws._socket.resetAndDestroy()]) {
  const c = await connect()
  used = login(await c.challenge())
  if (!(await c.auth(used))[2]) fail('login')
  c.send('REQ', 'live', { kinds: [3188], '#p': [self], limit: 0 })
  await c.take(m => m[0] === 'EOSE')
  c.send('EVENT', request)
  await c.gone(() => end(c))
}

const c = await connect()
const challenge = await c.challenge()
const replayed = await c.auth(used)
if (replayed[2] || !replayed[3].startsWith('invalid:')) fail('the login of an earlier connection: ' + replayed)
const fresh = await c.challenge()
if (fresh === challenge) fail('one challenge twice')
if (!(await c.auth(login(fresh)))[2]) fail('login after a refusal')
if (!(await c.publish(request))[2]) fail('the same request on a new connection')
const replies = ['REQ', 'replies', { kinds: [3188], authors: [host], '#p': [self] }]
c.send(...replies)
await c.take(m => m[0] === 'EVENT' && m[1] === 'replies')

// Frames that are none: each brings one notice, and the next good one counts.
const lone = sign('half of a pair: \ud83d')
for (const bad of ['', '{', '["EVENT"]', '["EVENT","', '[]', '["REQ","x",{}', 'null', '["REQ","",{"limit":1}]',
  '[' + '['.repeat(20000), '["CLOSE","\\ud800"]', '["EVENT",{"kind":1,"kind":3188}]', JSON.stringify(['EVENT', lone])]) {
  c.ws.send(bad)
  const [, words] = await c.take(m => m[0] === 'NOTICE')
  if (!words.startsWith('invalid:')) fail('notice: ' + words)
}
c.ws.send(Buffer.from(JSON.stringify(['EVENT', sign('binary')])), { binary: true }) // is no message

// A pong comes between the fragments of a message, and for an idle connection.
const pong = payload => new Promise(resolve => {
  c.ws.once('pong', data => data.toString() === payload ? resolve() : fail('pong: ' + data))
  c.ws.ping(payload)
})
await pong('idle')
const last = sign('last'), frame = JSON.stringify(['EVENT', last])
c.ws.send(frame.slice(0, 40), { fin: false })
await pong('between')
c.ws.send(frame.slice(40, 90), { fin: false })
c.ws.send(frame.slice(90), { fin: true })
if (!(await c.ok(last))[2]) fail('a message in fragments')
if (c.inbox.some(m => m[0] === 'NOTICE' || m[0] === 'CLOSED' || m[0] === 'OK')) fail('left over: ' + JSON.stringify(c.inbox))
await c.gone(() => c.ws.close())
console.log(request.id + '\n' + last.id)
process.exit(0)
