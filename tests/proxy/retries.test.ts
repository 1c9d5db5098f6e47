import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GatewayError } from '../../lib/errors.ts';
import type { Node } from '../../lib/model.ts';
import { isIdempotent, nothingLeft, Retries } from '../../lib/proxy/retries.ts';
import { serviceOf } from '../balance/services.ts';
import { contextOf } from '../support/stage.ts';

const RESPONSE_MS = 1_000;
const { nodes } = serviceOf({ id: 's', affinity: 'none', nodes: [{ id: 'a' }, { id: 'b' }, { id: 'c' }, { id: 'd' }] });
const [a, b, c] = nodes as [Node, Node, Node];

/** `fit`: nodes that are not DOWN; the others come last. */
function retriesOf(method: string, length = 0, fit: readonly Node[] = nodes) {
  const context = contextOf({ method });
  context.node = a;
  context.otherNode = (_, tried, onlyFit) => (onlyFit ? fit : nodes).find((node) => !tried.includes(node)) ?? undefined;
  const retries = Retries.of(context, length, 0, RESPONSE_MS);
  assert.ok(retries);
  const next = () => retries.next()?.id;
  return { retries, next };
}

test('a request whose stage named no other nodes has none, nor has a login', () => {
  const bound = contextOf({});
  bound.node = a;
  assert.equal(Retries.of(bound, 0, 0, RESPONSE_MS), null);
  const login = contextOf({ method: 'POST' });
  login.otherNode = () => b;
  login.login = { username: null, usernames: new Map(), bodyOnly: false, bodyRead: [], bodyComplete: true, seat: null };
  assert.equal(Retries.of(login, 0, 0, RESPONSE_MS), null);
});

test('without a connection any method may be repeated, after one only those that do no harm twice', () => {
  for (const method of ['GET', 'HEAD', 'PUT', 'DELETE', 'OPTIONS', 'TRACE', 'POST', 'PATCH', 'LOCK']) {
    const { retries } = retriesOf(method, -1);
    assert.equal(retries.mayRepeat('unreached', 0), true, method);
    assert.equal(retries.mayRepeat('closed', 0), isIdempotent(method), method);
  }
  assert.deepEqual(['PUT', 'POST', 'PATCH', 'CONNECT', undefined].map(isIdempotent), [
    true,
    false,
    false,
    false,
    false,
  ]);
});

test('a body that was sent is repeated if it is known whole, and one of more than 64 KB is never kept', () => {
  const { retries } = retriesOf('PUT', 65_536);
  retries.body.keep(Buffer.alloc(10));
  assert.equal(retries.mayRepeat('closed', 0), true);
  const larger = retriesOf('PUT', 65_537).retries;
  assert.equal(larger.mayRepeat('closed', 0), true, 'nothing of it was sent');
  larger.body.keep(Buffer.alloc(10));
  assert.equal(larger.body.bytes.length, 0);
  assert.equal(larger.mayRepeat('closed', 0), false);
  assert.equal(larger.mayRepeat('unreached', 0), true);
  const post = retriesOf('POST', 10).retries;
  post.body.keep(Buffer.alloc(10));
  assert.equal(post.body.bytes.length, 0, 'what may not be sent twice is not kept');
});

test('after silence a request goes on once, and none begins after twice the time-out', () => {
  const { retries } = retriesOf('GET');
  assert.equal(retries.mayRepeat('silent', RESPONSE_MS), true);
  assert.equal(retries.mayRepeat('silent', 2 * RESPONSE_MS), false);
  assert.equal(retries.mayRepeat('closed', 2 * RESPONSE_MS), true);
  assert.equal(retries.mayRepeat('closed', 2 * RESPONSE_MS + 1), false);
  assert.equal(retries.mayRepeat('unreached', 2 * RESPONSE_MS + 1), false);
});

test('each node has its turn once, those that are DOWN last', () => {
  const { next } = retriesOf('GET', 0, [a, c]);
  assert.deepEqual([next(), next(), next(), next()], ['c', 'b', 'd', undefined]);
});

test('a node whose kept connection was dead has one more turn, after the fit ones and before those that are DOWN', () => {
  const { retries, next } = retriesOf('GET', 0, [a, c]);
  retries.allowAgain(a);
  assert.deepEqual([next(), next(), next(), next(), next()], ['c', 'a', 'b', 'd', undefined]);
});

test('when nothing is left the answer is 503, except that silence stays 504', () => {
  const cause = new Error('refused');
  const last = nothingLeft(new GatewayError('node_unreachable', 'no connection', { cause, nodeId: 'a' }));
  assert.deepEqual([last.code, last.status, last.cause, last.nodeId], ['no_node_available', 503, cause, undefined]);
  const silent = new GatewayError('node_timeout', 'silent');
  assert.equal(nothingLeft(silent), silent);
});
