/** With warm caches a request is on its way to the node in the tick it arrived in: no await, no timer, no JSON between. */
import assert from 'node:assert/strict';
import * as diagnostics from 'node:diagnostics_channel';
import { once } from 'node:events';
import http, { type IncomingMessage, type RequestOptions } from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';

/** What happened between a request's arrival and the making of the request to the node. */
interface Passage {
  ticks: number;
  microtasks: number;
  timers: number;
  json: number;
}

const SAME_TICK: Passage = { ticks: 0, microtasks: 0, timers: 0, json: 0 };

/**
 * Watches one request after another. Only the gateway calls http.request here: the clients of this file are bare
 * sockets. Node announces an arrival right before it emits 'request'.
 */
class Watch {
  #arrived: { passage: Passage; path: string } | undefined;
  #seen: Passage[] = [];
  readonly #request = http.request;
  readonly #setTimeout = globalThis.setTimeout;
  readonly #stringify = JSON.stringify;
  readonly #parse = JSON.parse;

  start(): void {
    diagnostics.subscribe('http.server.request.start', this.#onArrival);
    const count = (what: 'timers' | 'json') => {
      if (this.#arrived) this.#arrived.passage[what] += 1;
    };
    const { request, stringify, parse } = { request: this.#request, stringify: this.#stringify, parse: this.#parse };
    const setTimeoutAsBefore = this.#setTimeout;
    http.request = ((...parts: [RequestOptions]) => {
      if (this.#arrived && parts[0].path === this.#arrived.path) {
        this.#seen.push(this.#arrived.passage);
        this.#arrived = undefined;
      }
      return request(...parts);
    }) as typeof http.request;
    syncBuiltinESMExports();
    globalThis.setTimeout = ((...parts: Parameters<typeof setTimeout>) => {
      count('timers');
      return setTimeoutAsBefore(...parts);
    }) as typeof setTimeout;
    JSON.stringify = ((...parts: Parameters<typeof JSON.stringify>) => {
      count('json');
      return stringify(...parts);
    }) as typeof JSON.stringify;
    JSON.parse = (...parts: Parameters<typeof JSON.parse>) => {
      count('json');
      return parse(...parts);
    };
  }

  stop(): void {
    diagnostics.unsubscribe('http.server.request.start', this.#onArrival);
    http.request = this.#request;
    syncBuiltinESMExports();
    globalThis.setTimeout = this.#setTimeout;
    JSON.stringify = this.#stringify;
    JSON.parse = this.#parse;
  }

  take(): Passage[] {
    return this.#seen.splice(0);
  }

  readonly #onArrival = (message: unknown): void => {
    const { request } = message as { request: IncomingMessage };
    // The nodes of this test are servers in this process too: theirs is the arrival after the departure.
    if (!request.headers['x-watched'] || request.headers['x-forwarded-for'] !== undefined) return;
    // Copied at the departure, so what is counted afterwards does not matter.
    const passage = { ...SAME_TICK };
    this.#arrived = { passage, path: request.url ?? '' };
    const still = () => this.#arrived?.passage === passage;
    queueMicrotask(() => {
      if (still()) passage.microtasks += 1;
    });
    process.nextTick(() => {
      if (still()) passage.ticks += 1;
    });
  };
}

/** Sends one request over a bare socket and resolves with the status of the answer. */
async function send(port: number, method: string, path: string, fields: string, body = ''): Promise<number> {
  const socket = net.connect(port, '127.0.0.1');
  let answer = '';
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    answer += chunk;
  });
  const length = body === '' ? '' : `Content-Length: ${body.length}\r\n`;
  socket.write(
    `${method} ${path} HTTP/1.1\r\nHost: demo\r\nX-Watched: 1\r\n${fields}${length}Connection: close\r\n\r\n${body}`,
  );
  await once(socket, 'close');
  return Number(answer.split(' ')[1]);
}

/** The nodes as a route's second version, so that a binding there says nothing until the first one was asked. */
function canary(nodes: readonly BackendNode[]): { services: string } {
  const list = nodes.map(({ id, baseUrl }) => `{ id: ${id}, baseUrl: "${baseUrl}" }`).join(', ');
  return {
    services: [
      'services:',
      '  - { id: app-v1, loginPath: /auth/login, nodes: [] }',
      `  - { id: app-v2, loginPath: /auth/login, nodes: [${list}] }`,
      'routes:',
      '  - id: app',
      '    pathPrefix: /js/a',
      '    versions: [{ version: v1, service: app-v1 }, { version: v2, service: app-v2, weight: 1 }]',
      '    rules: [{ type: header, name: X-Version, value: v1, version: v1 }, { type: query, name: v, value: "1", version: v1 }]',
    ].join('\n'),
  };
}

for (const [kind, shape] of STORE_KINDS.flatMap((one) => [[one, 'a service'] as const, [one, 'a route'] as const])) {
  describe(`a request with warm caches, to ${shape}, on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2')];
    const watch = new Watch();
    let stores: StoreSetup;
    let gateway: GatewayFixture;
    let token: string;

    before(async () => {
      for (const node of nodes) await node.start();
      stores = await openStores(kind);
      const setup = {
        stores,
        nodes,
        config: 'identity: { token: { header: x-token, cookie: session, query: token } }',
        ...(shape === 'a route' ? canary(nodes) : {}),
      };
      gateway = await startGateway(setup);
      token = await gateway.tokenOf('alice');
      await gateway.stop();
      gateway = await startGateway(setup);
      watch.start();
    });
    after(async () => {
      watch.stop();
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });

    it('could be seen to wait: the first one of a user does', async () => {
      assert.equal(await send(gateway.port, 'GET', '/js/a/cold', `x-token: ${token}\r\n`), 200);
      const [passage, ...more] = watch.take();
      assert.equal(more.length, 0);
      assert.ok(passage && passage.microtasks > 0, 'the look-ups took at least one turn');
      // The connections to a node are set up at its first request; nobody's requests go to each node in turn.
      for (const _ of nodes) assert.equal(await send(gateway.port, 'GET', '/js/a/cold', ''), 200);
      watch.take();
    });

    const cases: [string, () => [method: string, path: string, fields: string, body?: string]][] = [
      ['with the token in a header', () => ['GET', '/js/a/notes', `x-token: ${token}\r\n`]],
      ['with the token in a cookie', () => ['GET', '/js/a/notes', `Cookie: a=b; session=${token}\r\n`]],
      ['with the token in the query', () => ['GET', `/js/a/notes?x=1&token=${token}`, '']],
      ['with a body', () => ['POST', '/js/a/notes', `x-token: ${token}\r\n`, 'x'.repeat(10_000)]],
      ['of nobody', () => ['GET', '/js/a/notes', '']],
    ];
    for (const [title, request] of cases) {
      it(`goes to the node in the tick it came in, ${title}`, async () => {
        for (let round = 0; round < 5; round += 1) {
          assert.equal(await send(gateway.port, ...request()), 200);
          assert.deepEqual(watch.take(), [SAME_TICK]);
        }
      });
    }
  });
}
