/** An explanation in words: for every outcome the first line has to say it all. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { explanationLines, type Question } from '../../lib/cli/explain-text.ts';
import { styleFor } from '../../lib/cli/style.ts';
import { systemClock } from '../../lib/support/clock.ts';

type Json = Record<string, unknown>;

const NOW_MS = Date.parse('2026-01-01T03:00:00.000Z');
const SHOWN = { style: styleFor(false, {}), clock: { ...systemClock, now: () => NOW_MS } };
const HEALTH = { state: 'UP', since: '2026-01-01T02:59:00.000Z', lastError: null };
const NODE = { id: 'n1', enabled: true, draining: false, health: HEALTH };
const BINDING = { nodeId: 'n1', epoch: 4, frozen: false };
const BODY: Json = {
  outcome: 'forward',
  stage: 'sticky-route',
  snapshot: { version: 7, stale: false },
  realm: 'demo',
  route: null,
  version: null,
  serviceId: 'demo',
  login: null,
  userId: '42',
  decision: 'bound',
  answeredBy: 'redis',
  binding: BINDING,
  wouldBind: false,
  wouldProbe: false,
  drawnAtRandom: false,
  node: NODE,
  error: null,
};
const BY_ID: Question = { method: 'GET', path: '/x', userId: '42', hasToken: false };
const NOBODY: Question = { method: 'GET', path: '/x', hasToken: false };

const lines = (body: Json, question: Question = BY_ID) => explanationLines({ ...BODY, ...body }, question, SHOWN);
const refused = (error: string, more: Json = {}, code = 503) => ({
  outcome: 'error',
  decision: null,
  error: { code, error, message: `because of ${error}`, ...(more['nodeId'] ? { nodeId: more['nodeId'] } : {}) },
  ...more,
});

describe('an explanation', () => {
  it('begins with the answer, and tells the way to it', () => {
    assert.deepEqual(lines({}), [
      'user 42 goes to n1: bound there, epoch 4',
      '  request   GET /x',
      '  services  version 7',
      '  service   demo',
      '  user      42 (as given)',
      '  binding   n1, epoch 4, says Redis',
      '  node      n1: UP for 60 s',
      '  decided   by stage sticky-route: bound',
    ]);
  });

  it('has words for every way to a node', () => {
    const first = (body: Json, question?: Question) => lines(body, question)[0];
    const unbound = { binding: null, userId: null };
    assert.match(first({ decision: 'default', wouldBind: true }) ?? '', /goes to n1, the default node: not bound yet/);
    assert.match(
      first({ ...unbound, decision: 'anonymous' }, NOBODY) ?? '',
      /^a request without a token goes to any usable node/,
    );
    assert.match(
      first({ ...unbound, decision: 'balanced', drawnAtRandom: true }, NOBODY) ?? '',
      /for example: drawn at random/,
    );
    assert.match(first({ ...unbound, decision: 'balanced' }, NOBODY) ?? '', /goes to n1, balanced/);
    assert.match(
      first({ ...unbound, decision: 'candidate', login: { username: null } }, NOBODY) ?? '',
      /^a login of somebody unknown goes to n1, picked for a new user/,
    );
    assert.match(
      first({ ...unbound, outcome: 'answered', stage: 'cors', decision: null, node: null }, NOBODY) ?? '',
      /CORS preflight/,
    );
  });

  it('has words, and a way out, for every refusal', () => {
    const down = { ...NODE, health: { ...HEALTH, state: 'DOWN', lastError: 'connect ECONNREFUSED' } };
    for (const [body, answer, advice] of [
      [
        refused('node_down', { nodeId: 'n1', node: down }),
        /^user 42 gets 503 node_down: bound to n1, which is DOWN for 60 s: connect ECONNREFUSED$/,
        /bring n1 back.*bindings move --user-id 42 --node NODE --service demo/,
      ],
      [
        refused('node_disabled', { nodeId: 'n1', node: { ...NODE, enabled: false } }),
        /bound to n1, which is disabled$/,
        /enable n1 again/,
      ],
      [
        refused('node_unknown', { nodeId: 'gone', node: null }),
        /bound to gone, which is no node of the service any more$/,
        /add gone again/,
      ],
      [
        refused('user_frozen', { binding: { ...BINDING, frozen: true } }),
        /frozen on n1 by an operator$/,
        /bindings unfreeze --user-id 42 --service demo/,
      ],
      [
        refused('user_not_bound', { binding: null, node: null }),
        /bound to no node/,
        /bindings set --user-id 42 --node NODE/,
      ],
      [
        refused('no_node_available', { binding: null, node: null }),
        /because of no_node_available$/,
        /sticky-gateway status/,
      ],
      [refused('directory_unavailable', { binding: null, node: null }), /because of/, /a store does not answer/],
      [refused('service_disabled', { node: null }), /because of/, /enable service demo again/],
      [
        refused('no_route', { serviceId: null, node: null, binding: null }, 404),
        /gets 404 no_route/,
        /the prefixes there are/,
      ],
    ] as const) {
      const [first = '', second = ''] = lines(body);
      assert.match(first, answer);
      assert.match(second, /^ {2}what helps: /);
      assert.match(second, advice);
    }
    assert.doesNotMatch(lines(refused('bad_request', { node: null }, 400)).join('\n'), /what helps/);
  });

  it('says what is out of the ordinary', () => {
    const text = lines({
      snapshot: { version: 7, stale: true },
      route: 'r',
      version: 'v2',
      realm: 'r',
      answeredBy: 'stale',
      wouldProbe: true,
      node: { ...NODE, draining: true },
    }).join('\n');
    for (const part of [
      /STALE/,
      /demo, through route r, version v2$/m,
      /an old entry of the cache/,
      /probed first/,
      /n1: UP, draining/,
    ])
      assert.match(text, part);
  });

  it('shows no token, and nothing that a terminal obeys', () => {
    const text = lines({ userId: 'a\u001b[2J' }, { method: 'GET', path: '/x?t=secret', hasToken: true }).join('\n');
    assert.doesNotMatch(text, /secret|\u001b/);
    assert.match(text, /user a\\u001b\[2J goes/);
  });

  it('writes names into commands as a shell reads them', () => {
    const [, advice = ''] = lines(refused('node_down', { nodeId: 'n1' }), { ...NOBODY, username: "o'neil $(x)" });
    assert.ok(advice.includes(`--username 'o'\\''neil $(x)'`), advice);
  });
});
