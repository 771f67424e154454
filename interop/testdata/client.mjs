// A device as another programmer would write it: NIP-01 and NIP-42 by hand over
// the ws package, keys and signatures by nostr-tools.
import WebSocket from 'ws'
import { finalizeEvent, generateSecretKey, getPublicKey, verifyEvent } from 'nostr-tools/pure'

const [url, host] = process.argv.slice(2)
const secret = generateSecretKey(), self = getPublicKey(secret)
const fail = words => { console.error(words); process.exit(1) }
setTimeout(() => fail('nothing more came within 40 s'), 40000).unref()

const ws = new WebSocket(url), inbox = []
let wake = () => {}
ws.on('message', data => { inbox.push(JSON.parse(data.toString())); wake() })
ws.on('error', e => fail('socket: ' + e.message))
ws.on('close', () => fail('the relay closed the connection'))
const take = async matches => {
  for (;;) {
    const i = inbox.findIndex(matches)
    if (i >= 0) return inbox.splice(i, 1)[0]
    await new Promise(resolve => { wake = resolve })
  }
}
const send = (...frame) => ws.send(JSON.stringify(frame))
const publish = async event => { send('EVENT', event); return take(m => m[0] === 'OK' && m[1] === event.id) }
const now = () => Math.floor(Date.now() / 1000)
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

await new Promise(resolve => ws.on('open', resolve))
const [, challenge] = await take(m => m[0] === 'AUTH')
const request = finalizeEvent({ kind: 3188, created_at: now(), content: 'request',
  tags: [['p', host], ['h', 'a'.repeat(64)], ['t', 'oa:artifact:v1']] }, secret)
const early = await publish(request)
if (early[2] || !early[3].startsWith('auth-required:')) fail('unauthenticated: ' + early)
const latest = inbox.findLast(m => m[0] === 'AUTH')
const auth = finalizeEvent({ kind: 22242, created_at: now(), content: '',
  tags: [['relay', url], ['challenge', latest ? latest[1] : challenge]] }, secret)
send('AUTH', auth)
const login = await take(m => m[0] === 'OK' && m[1] === auth.id)
if (!login[2]) fail('login: ' + login)

send('REQ', 'live', { kinds: [3188], authors: [host], '#p': [self], limit: 0 })
await take(m => m[0] === 'EOSE' && m[1] === 'live')
if (!(await publish(request))[2]) fail('publish')
const [, , reply] = await take(m => m[0] === 'EVENT' && m[1] === 'live')
if (!verifyEvent(reply) || reply.content !== 'reply' || reply.pubkey !== host) fail('reply: ' + JSON.stringify(reply))
if (!(await publish(request))[2]) fail('duplicate')
await sleep(11000) // the relay tells a retry from an echo after 5 to 10 s
if (!(await publish(request))[2]) fail('retry')

send('REQ', 'stored', { kinds: [3188], '#p': [self], limit: 4 })
await take(m => m[0] === 'EOSE' && m[1] === 'stored')
const stored = inbox.filter(m => m[0] === 'EVENT' && m[1] === 'stored')
if (stored.length !== 1 || stored[0][2].id !== reply.id) fail('stored: ' + JSON.stringify(stored))
console.log(request.id)
process.exit(0)
