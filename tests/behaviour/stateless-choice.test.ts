/**
 * Which node a request of a stateless service goes to, through a real gateway whose clock stands still, so that nothing
 * is probed but what the test or a request asks for. The numbers are those of the design papers' worked examples.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import type { NodeDefinition } from '../../lib/model.ts';
import { BackendNode } from '../support/backend-node.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import type { Answer } from '../support/http-client.ts';
import { connectRaw } from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

/** How often a stateless node is looked at. */
const REGULAR_MS = 30_000;

describe('the node of a request without affinity', () => {
  let stores: StoreSetup | undefined;
  let gateway: GatewayFixture;
  let nodes: BackendNode[] = [];
  let clock: FakeClock;

  afterEach(async () => {
    await gateway?.stop();
    await stores?.close();
    for (const node of nodes.splice(0)) await node.stop();
  });

  /** Starts as many nodes as `count` says, by the names of the papers, and a gateway of which none has been probed. */
  async function start(count: number, options: { service?: string; config?: string } = {}): Promise<void> {
    nodes = ['a', 'b', 'c', 'd', 'e'].slice(0, count).map((id) => new BackendNode(id));
    for (const node of nodes) await node.start();
    stores = await openStores('embedded');
    clock = new FakeClock();
    gateway = await startGateway({
      stores,
      nodes: [],
      clock,
      config: `health: { jitter: 0 }\n${options.config ?? ''}`,
      services: [
        'services:',
        '  - id: legacy',
        '    pathPrefix: /legacy',
        '    affinity: none',
        '    healthPath: /health',
        ...(options.service ? [`    ${options.service}`] : []),
        '    nodes:',
        ...nodes.map((node) => `      - { id: ${node.id}, baseUrl: "${node.baseUrl}" }`),
      ].join('\n'),
    });
  }

  const get = (headers: Record<string, string> = {}) => gateway.get('/legacy/x', undefined, headers);
  const nodeOf = (id: string) => nodes.find((node) => node.id === id)!;
  const chosen = (answer: Answer) => {
    assert.equal(answer.status, 200, answer.text);
    return String(answer.headers['x-gateway-node']);
  };

  async function picks(count: number): Promise<string> {
    let sequence = '';
    for (let index = 0; index < count; index += 1) sequence += chosen(await get());
    return sequence;
  }

  function shares(sequence: string): Record<string, number> {
    const counts: Record<string, number> = {};
    for (const id of sequence) counts[id] = (counts[id] ?? 0) + 1;
    return counts;
  }

  function change(edit: (list: readonly NodeDefinition[]) => readonly NodeDefinition[]): void {
    const { registry } = gateway.gateway;
    const { definition } = registry.snapshot!;
    const services = definition.services.map((service) => ({ ...service, nodes: edit(service.nodes) }));
    registry.swap({ ...definition, services }, { loadedAtMs: 0, stale: false });
  }

  const switchNode = (id: string, switches: Partial<NodeDefinition>) =>
    change((list) => list.map((node) => (node.id === id ? { ...node, ...switches } : node)));

  /** One round of probes: each node sees one more, and its result is taken in. */
  async function probeRound(byMs: number): Promise<void> {
    const seen = gateway.events('health_changed').length;
    await clock.advanceAsync(byMs);
    await waitUntil('the probes to be over', async () => {
      await clock.advanceAsync(0);
      return gateway.events('health_changed').length > seen;
    });
  }

  it('weights 3:2:1 give A B A C B A', async () => {
    await start(3);
    change((list) => list.map((node, index) => ({ ...node, weight: 3 - index })));
    // The first finds out that all are well.
    assert.equal(await picks(12), 'abacbaabacba');
  });

  it('three static nodes: two answer their probe, one does not and gets nothing until it is back', async () => {
    await start(3);
    await nodeOf('c').stop();
    assert.deepEqual(shares(await picks(10)), { a: 5, b: 5 });
    assert.equal(gateway.events('health_changed').length, 2, 'a and b are UP');
    await nodeOf('c').start();
    assert.deepEqual(shares(await picks(10)), { a: 5, b: 5 }, 'nobody has looked yet');
    await probeRound(REGULAR_MS);
    assert.deepEqual(shares(await picks(12)), { a: 4, b: 4, c: 4 });
  });

  it('a service whose only node counts as unhealthy tries it all the same, and it is back at once', async () => {
    await start(1, { service: 'health: { failures: 1 }' });
    await picks(1);
    await nodeOf('a').stop();
    const refused = await get();
    assert.equal(`${refused.status} ${refused.json()['error']}`, '503 no_node_available');
    await nodeOf('a').start();
    assert.equal(gateway.events('health_changed').at(-1)?.['to'], 'DOWN');
    assert.equal(await picks(1), 'a');
    assert.equal(gateway.events('health_changed').at(-1)?.['to'], 'UP');
  });

  it('all unhealthy: every one is tried, the late one answers', async () => {
    await start(3, { service: 'health: { failures: 1 }' });
    await picks(3);
    for (const node of nodes) await node.stop();
    assert.equal((await get()).status, 503);
    assert.equal(gateway.events('health_changed').filter(({ to }) => to === 'DOWN').length, 3);
    await nodeOf('b').start();
    assert.equal(await picks(4), 'bbbb');
  });

  it('four nodes of weight 1 get a quarter each; with B at 2 and a fifth, B a third and the others a sixth', async () => {
    await start(5);
    const all = gateway.gateway.registry.snapshot!.definition.services[0]!.nodes;
    change((list) => list.slice(0, 4));
    assert.deepEqual(shares(await picks(100)), { a: 25, b: 25, c: 25, d: 25 });
    change(() => all.map((node) => (node.id === 'b' ? { ...node, weight: 2 } : node)));
    // The fifth has not been looked at, and four are UP: it waits for its first probe.
    await probeRound(REGULAR_MS);
    assert.deepEqual(shares(await picks(120)), { a: 20, b: 40, c: 20, d: 20, e: 20 });
  });

  it('a node switched off for maintenance gets nothing from the next request on, and takes its part again after it', async () => {
    await start(3);
    await picks(3);
    for (const switches of [{ enabled: false }, { draining: true }, { weight: 0 }]) {
      switchNode('b', switches);
      assert.deepEqual(shares(await picks(8)), { a: 4, c: 4 }, JSON.stringify(switches));
      switchNode('b', { enabled: true, draining: false, weight: 1 });
      // Not watched while switched off, so never probed since.
      if (switches.enabled === false) await probeRound(REGULAR_MS);
      assert.deepEqual(shares(await picks(9)), { a: 3, b: 3, c: 3 });
    }
    for (const id of ['a', 'b', 'c']) switchNode(id, { enabled: false });
    const none = await get();
    assert.equal(`${none.status} ${none.json()['error']}`, '503 no_node_available');
    assert.ok(Number(none.headers['retry-after']) > 0);
  });

  it('a key of a consistent hash stays with its node, by X-Hash-Key or the client behind trusted proxies', async () => {
    await start(5, { service: 'balance: consistent-hash', config: 'trustedProxies: [127.0.0.1]' });
    await picks(1);
    const byHeader = (field: string) => async (value: string) => chosen(await get({ [field]: value }));
    for (const ask of [byHeader('X-Hash-Key'), byHeader('X-Forwarded-For')]) {
      const owners = new Map<string, string>();
      for (let key = 0; key < 40; key += 1) owners.set(`10.0.0.${key}`, await ask(`10.0.0.${key}`));
      assert.equal(new Set(owners.values()).size, 5, 'all have a part');
      for (const [key, owner] of owners) assert.equal(await ask(key), owner);
    }
    // The right-most hop that is no proxy counts, not what the client claims; and the header goes before it.
    const claimed = await byHeader('X-Forwarded-For')('10.9.9.9, 10.0.0.7');
    assert.equal(claimed, await byHeader('X-Forwarded-For')('10.0.0.7'));
    assert.equal(
      chosen(await get({ 'X-Hash-Key': '10.0.0.3', 'X-Forwarded-For': '10.0.0.7' })),
      await byHeader('X-Hash-Key')('10.0.0.3'),
    );
  });

  it('requests that find no node known share one round of probes, and go only where it found one', async () => {
    await start(3);
    await nodeOf('a').stop();
    const answers = await Promise.all(Array.from({ length: 20 }, () => get()));
    assert.deepEqual(shares(answers.map(chosen).join('')), { b: 10, c: 10 });
    for (const node of nodes) assert.ok(node.probes <= 1, `${node.id}: ${node.probes}`);
  });

  it('a client that leaves during that probe is not sent anywhere, and the next one is served', async () => {
    await start(1);
    const [node] = nodes;
    node!.mode = 'black-hole';
    const requests = [
      'GET /legacy/left HTTP/1.1\r\nHost: h\r\n\r\n',
      'POST /legacy/left HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello',
      'GET /legacy/left HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n',
    ];
    for (const [index, request] of requests.entries()) {
      const client = await connectRaw(gateway.port);
      client.write(request);
      await waitUntil('the request waits', () => inFlight() === 1 && node!.probes === 1);
      client.reset();
      await waitUntil('it is gone', () => inFlight() === 0).catch(() => assert.fail(`request ${index} is not noticed`));
    }
    node!.mode = 'up';
    // The probe's own time-out: the node stays UNKNOWN, and whoever still waits goes there.
    const waiting = get();
    await clock.advanceAsync(2_000);
    assert.equal(chosen(await waiting), 'a');
    assert.deepEqual(
      node!.journal.map(({ path }) => path),
      ['/legacy/x'],
    );
  });

  it('a node that takes the connection of its probe and stays silent holds nobody up where another is well', async () => {
    await start(2);
    nodeOf('a').mode = 'black-hole';
    const answer = get();
    await waitUntil('the good one is known', () => gateway.events('health_changed').length === 1);
    await clock.advanceAsync(100);
    assert.equal(chosen(await answer), 'b');
  });

  it('without a health path a connection is enough', async () => {
    await start(2);
    const { registry } = gateway.gateway;
    const { definition } = registry.snapshot!;
    registry.swap(
      { ...definition, services: definition.services.map((service) => ({ ...service, healthPath: null })) },
      { loadedAtMs: 0, stale: false },
    );
    nodeOf('a').mode = 'status-500';
    const statuses = [(await get()).status, (await get()).status].sort();
    assert.deepEqual(statuses, [200, 500], 'both count as healthy');
    assert.deepEqual(
      nodes.map(({ probes }) => probes),
      [0, 0],
    );
  });

  function inFlight(): number {
    return Number(/gateway_requests_in_flight (\d+)/.exec(gateway.gateway.metrics.render())?.[1]);
  }
});
