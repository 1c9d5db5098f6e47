/** A gateway on the embedded store that is killed at any moment under load loses no login that its client heard of. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { GatewayProcess } from '../support/gateway-process.ts';
import { call } from '../support/http-client.ts';

const KILLS = 50;
/** Logins under way at one time. */
const LANES = 8;
/** The kill comes at random within so many milliseconds of load. */
const LOAD_MS = 120;
/** Of the users acknowledged in earlier rounds, so many are asked for after each restart. */
const SAMPLE = 40;

interface Acknowledged {
  readonly username: string;
  readonly token: string;
  readonly nodeId: string;
}

/** Mulberry32: the same moments in every run; numbers in [0, 1). */
function seededRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

describe('a gateway that is killed', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  const acknowledged: Acknowledged[] = [];
  const random = seededRandom(20_240_607);
  let folder: string;
  let config: string;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
    for (const node of nodes) await node.start();
    config = join(folder, 'gateway.yaml');
    const list = nodes.map((node) => `      - { id: ${node.id}, baseUrl: "${node.baseUrl}" }`);
    const lines = [
      'listen: 127.0.0.1:0',
      'admin: { listen: null }',
      `store: { dataDir: ${JSON.stringify(join(folder, 'data'))} }`,
      'services:',
      '  - { id: demo, pathPrefix: /js/a, loginPath: /auth/login, nodes: [',
      ...list.map((line) => `${line.replace('- ', '')},`),
      '    ] }',
      '',
    ];
    await writeFile(config, lines.join('\n'));
  });
  after(async () => {
    for (const node of nodes) await node.stop();
    await rm(folder, { recursive: true, force: true });
  });

  /** Logs in one new user after the other until the gateway is gone; counts only answers that came whole. */
  async function logInUntilGone(gateway: GatewayProcess, prefix: string, agent: http.Agent): Promise<void> {
    for (let index = 0; ; index += 1) {
      const username = `${prefix}-${index}`;
      const answer = await call(gateway.port, '/js/a/auth/login', {
        method: 'POST',
        body: JSON.stringify({ username }),
        agent,
      }).catch(() => undefined);
      if (answer === undefined) return;
      assert.equal(answer.status, 200, answer.text);
      const { token } = answer.json()['data'] as { token: string };
      acknowledged.push({ username, token, nodeId: String(answer.headers['x-gateway-node']) });
    }
  }

  /** Resolves with those whose login was answered before the kill. */
  async function killUnderLoad(gateway: GatewayProcess, round: number): Promise<readonly Acknowledged[]> {
    const agent = new http.Agent({ keepAlive: true });
    const before = acknowledged.length;
    const lanes = Array.from({ length: LANES }, (_, lane) => logInUntilGone(gateway, `r${round}-l${lane}`, agent));
    await new Promise((resolve) => setTimeout(resolve, random() * LOAD_MS));
    await gateway.kill();
    await Promise.all(lanes);
    agent.destroy();
    return acknowledged.slice(before);
  }

  async function assertServed(gateway: GatewayProcess, users: readonly Acknowledged[]): Promise<void> {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 20 });
    await Promise.all(
      users.map(async ({ username, token, nodeId }) => {
        const answer = await call(gateway.port, '/js/a/notes', { headers: { 'x-token': token }, agent });
        assert.equal(answer.status, 200, `${username}: ${answer.text}`);
        assert.equal(answer.headers['x-gateway-node'], nodeId, `${username} moved`);
        const home = nodes.find((node) => node.id === nodeId);
        // A request of nobody would have no epoch: it was the binding that led here.
        assert.equal(home?.withToken(token).at(-1)?.headers['x-gateway-epoch'], '1', `${username} is bound`);
      }),
    );
    agent.destroy();
  }

  it(`has every acknowledged login after each of ${KILLS} restarts`, { timeout: 120_000 }, async () => {
    let gateway = await GatewayProcess.serve(config);
    for (let round = 0; round < KILLS; round += 1) {
      const lastRound = await killUnderLoad(gateway, round);
      for (const node of nodes) node.journal.length = 0;
      gateway = await GatewayProcess.serve(config);
      const sample = Array.from({ length: SAMPLE }, () => acknowledged[Math.floor(random() * acknowledged.length)]);
      await assertServed(gateway, [...lastRound, ...sample.filter((user) => user !== undefined)]);
    }
    assert.ok(acknowledged.length > KILLS, `only ${acknowledged.length} logins were acknowledged`);
    // A second login of a user of an early round finds them at home too.
    const early = acknowledged[0]!;
    const again = await call(gateway.port, '/js/a/auth/login', {
      method: 'POST',
      body: JSON.stringify({ username: early.username }),
    });
    assert.equal(again.headers['x-gateway-node'], early.nodeId);
    for (const node of nodes) node.journal.length = 0;
    await assertServed(gateway, acknowledged);
    await gateway.kill();
  });
});
