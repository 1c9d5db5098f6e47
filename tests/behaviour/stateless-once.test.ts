/**
 * A stateless service whose nodes fail at random in every phase, with bodies cut at random: what cannot be repeated
 * reaches one node at most, each node sees a request once at most, and an answer is always that to the whole body.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { chunked, connectRaw, fieldOf, ok, type RawConnection, RawNode } from '../support/raw-http.ts';
import { Seeded } from '../support/seeded.ts';
import { waitUntil } from '../support/wait-until.ts';

const PHASES = [
  'none',
  'first byte',
  'head',
  'part of the body',
  'body',
  'part of a head',
  'part of the answer',
] as const;
type Phase = (typeof PHASES)[number];
const ROUNDS = 400;
const BODY = Array.from({ length: 70_000 }, (_, index) => String.fromCharCode(97 + (index % 26))).join('');
/** Of the longest body that may be sent again. */
const REPLAYED = 65_536;

describe('requests without affinity, on nodes that fail in every phase', () => {
  const nodes = [new RawNode(), new RawNode(), new RawNode()];
  const phases: Phase[] = ['none', 'none', 'none'];
  /** `id node`, one entry for each time a head or a part of it came. */
  const journal: string[] = [];
  let byReset = false;
  let stores: StoreSetup;
  let gateway: GatewayFixture;

  async function play(connection: RawConnection, index: number): Promise<void> {
    const leave = (): void => void (byReset ? connection.reset() : connection.socket.destroy());
    for (;;) {
      await connection.until('a byte', () => connection.unread !== '', 60_000);
      const phase = phases[index];
      if (phase === 'first byte') {
        journal.push(`${/X-Id: (\S+)/.exec(connection.unread)?.[1]} ${index}`);
        return leave();
      }
      const head = await connection.readHead();
      journal.push(`${fieldOf(head.fields, 'x-id')} ${index}`);
      if (phase === 'head') return leave();
      if (phase === 'part of the body') {
        await connection.until('a part', () => connection.unread !== '');
        return leave();
      }
      const { body } = await connection.readBody(head);
      if (phase === 'body') return leave();
      if (phase === 'part of a head') connection.write('HTTP/1.1 200 OK\r\nContent-Le');
      if (phase === 'part of the answer') connection.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345');
      if (phase !== 'none') {
        await new Promise((resolve) => setImmediate(resolve));
        return leave();
      }
      connection.write(ok(`${body.length} ${body.toString() === BODY.slice(0, body.length)}`));
    }
  }

  before(async () => {
    for (const node of nodes) await node.start();
    stores = await openStores('embedded');
    gateway = await startGateway({
      stores,
      nodes: [],
      config: 'health: { interval: 1h, failures: 1000000 }\n',
      services: [
        'services:',
        '  - id: free',
        '    pathPrefix: /free',
        '    affinity: none',
        '    balance: random',
        '    healthPath: null',
        '    nodes:',
        ...nodes.map((node, index) => `      - { id: f${index}, baseUrl: "${node.baseUrl}" }`),
      ].join('\n'),
    });
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of nodes) await node.stop();
  });

  it(`come out right in ${ROUNDS} rounds`, async () => {
    const random = new Seeded(77_003);
    let served = 0;
    let moved = 0;
    for (let round = 0; round < ROUNDS; round += 1) {
      for (const [index, node] of nodes.entries()) {
        phases[index] = 'none';
        // Half of the rounds begin with kept connections, some of which die.
        if (random.oneIn(2)) node.restart((connection) => play(connection, index));
        phases[index] = random.oneIn(3) ? 'none' : random.pick(PHASES);
      }
      byReset = random.oneIn(2);
      const id = `id-${round}`;
      const method = random.pick(['POST', 'PUT', 'DELETE', 'PATCH']);
      const length = random.pick([1, 5_000, REPLAYED, REPLAYED + 1, BODY.length]);
      const body = BODY.slice(0, length);
      const framed = random.oneIn(2)
        ? `Content-Length: ${length}\r\n\r\n${body}`
        : `Transfer-Encoding: chunked\r\n\r\n${chunked(...(body.match(/.{1,9000}/g) ?? []))}`;
      const request = `${method} /free/x HTTP/1.1\r\nHost: h\r\nX-Id: ${id}\r\n${framed}`;
      const client = await connectRaw(gateway.port);
      const cut = random.oneIn(2) ? request.length : random.below(request.length);
      client.write(request.slice(0, cut));
      if (cut < request.length) await new Promise((resolve) => setImmediate(resolve));
      client.write(request.slice(cut));
      const what = `round ${round}: ${method} of ${length}, ${phases.join(', ')}`;
      const answer = await client.readAnswer(method).catch(() => null);
      if (answer?.status === 200 && !phases.includes('part of the answer')) {
        assert.equal(answer.body.toString(), `${length} true`, what);
        served += 1;
      } else if (answer !== null && answer.status !== 200) assert.ok([502, 503].includes(answer.status), what);
      const seen = journal.filter((each) => each.startsWith(`${id} `));
      const repeatable = ['PUT', 'DELETE'].includes(method);
      const fails = phases.filter((phase) => phase !== 'none').length;
      if (!repeatable) assert.ok(seen.length <= 1, `${what}: ${seen}`);
      if (seen.length > 1) moved += 1;
      // A node whose kept connection was dead may get it once more, on a fresh one.
      for (const each of seen) assert.ok(seen.filter((one) => one === each).length <= 2, `${what}: ${seen}`);
      if (repeatable && length <= REPLAYED && fails < 3 && !phases.includes('part of the answer')) {
        assert.equal(answer?.status, 200, `${what}: ${seen} ${answer?.body}`);
      }
      client.socket.destroy();
    }
    assert.ok(served > ROUNDS / 4 && moved > ROUNDS / 10, `${served} served, ${moved} of more than one node`);
    await waitUntil('nothing is under way', () => gateway.gateway.parts.forwarder.inFlight === 0);
    assert.equal(
      [...gateway.gateway.parts.forwarder.options.connections.inFlight.values()].every((count) => count === 0),
      true,
    );
  });
});
