/** `apply` against a real gateway: what differs, in which order it is pushed, and what is said of what was not. */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { after, before, beforeEach, describe, it } from 'node:test';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { type CliSetup, runCli } from '../support/cli.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';

type Json = Record<string, unknown>;

const START = `
  - id: demo
    pathPrefix: /js/a
    loginPath: /auth/login
    nodes:
      - { id: n1, baseUrl: "http://127.0.0.1:9001" }
      - { id: n2, baseUrl: "http://127.0.0.1:9002" }
  - { id: other, pathPrefix: /other, nodes: [{ id: o1, baseUrl: "http://127.0.0.1:9003" }] }
`;

for (const kind of STORE_KINDS) {
  describe(`apply, ${kind}`, () => {
    const node = new BackendNode('n1');
    let stores: StoreSetup;
    let fixture: GatewayFixture;
    let admin: AdminClient;
    let folder: string;

    before(async () => {
      await node.start();
      folder = await mkdtemp(join(tmpdir(), 'sticky-cli-'));
      stores = await openStores(kind);
      fixture = await startGateway({ stores, nodes: [], services: `services:${START}`, admin: ADMIN_TOKENS });
      admin = new AdminClient(fixture.adminPort);
    });
    after(async () => {
      await fixture?.stop();
      await stores?.close();
      await node.stop();
      await rm(folder, { recursive: true, force: true });
    });

    async function fileOf(services: string, port = fixture.adminPort): Promise<string> {
      const file = join(folder, 'gateway.yaml');
      await writeFile(file, `admin: { listen: "127.0.0.1:${port}", ${ADMIN_TOKENS} }\nservices:${services}`);
      return file;
    }
    async function apply(services: string, args: readonly string[] = ['--yes'], setup: CliSetup = {}) {
      return runCli(['apply', '--config', await fileOf(services), ...args], setup);
    }
    const definitions = async () => (await admin.read('/api/services'))['services'] as (Json & { nodes: Json[] })[];
    const shape = async () =>
      Object.fromEntries(
        (await definitions()).map(({ id, nodes }) => [
          id,
          nodes
            .map((one) => one['id'] as string)
            .sort()
            .join(' '),
        ]),
      );

    beforeEach(async () => {
      for (const user of ['u1', 'u2']) await admin.delete(`/api/services/demo/bindings/${user}`);
      const reset = await apply(START);
      assert.equal(reset.code, 0, reset.stderr);
    });

    it('has nothing to do when the gateway has what the file says', async () => {
      const end = await apply(START, []);
      assert.equal(end.code, 0);
      assert.match(end.stdout, /nothing to do/);
      assert.deepEqual((await apply(START, ['--json'])).json(), { changes: [], applied: 0, failed: 0 });
    });

    const CHANGED = `
  - id: demo
    pathPrefix: /js/a
    loginPath: /auth/login
    placement: least-users
    health: { interval: 9s }
    nodes:
      - { id: n2, baseUrl: "http://127.0.0.1:9002", weight: 3 }
      - { id: n3, baseUrl: "http://127.0.0.1:9004" }
  - { id: fresh, pathPrefix: /fresh, nodes: [{ id: f1, baseUrl: "http://127.0.0.1:9005" }] }
`;

    it('shows what differs, field by field, and changes nothing in a dry run', async () => {
      const before = await definitions();
      const end = await apply(CHANGED, ['--dry-run']);
      assert.equal(end.code, 0, end.stderr);
      assert.equal(
        end.stdout,
        `~ service demo
    placement: round-robin -> least-users
    health.interval: null -> 9000ms
~ node n2 of service demo
    weight: 1 -> 3
+ node n3 of service demo http://127.0.0.1:9004
- node n1 of service demo
+ service fresh /fresh
    + node f1 http://127.0.0.1:9005
- service other

3 to add, 2 to change, 2 to remove
`.replace('3 to add', '2 to add'),
      );
      const json = (await apply(CHANGED, ['--dry-run', '--json'])).json();
      assert.deepEqual(
        (json['changes'] as Json[]).map(({ status }) => status),
        Array(6).fill('planned'),
      );
      assert.deepEqual(await definitions(), before);
    });

    it('asks on a terminal, and elsewhere wants --yes', async () => {
      const unasked = await apply(CHANGED, []);
      assert.equal(unasked.code, 2);
      assert.match(unasked.stderr, /add --yes to go ahead, or --dry-run/);
      const declined = await apply(CHANGED, [], { terminal: true, stdin: 'no\n', env: { NO_COLOR: '1' } });
      assert.equal(declined.code, 1);
      assert.match(declined.stderr, /Make these 6 changes at .*nothing was changed/s);
      assert.deepEqual(await shape(), { demo: 'n1 n2', other: 'o1' });
      const agreed = await apply(CHANGED, [], { terminal: true, stdin: 'yes\n', env: { NO_COLOR: '1' } });
      assert.equal(agreed.code, 0, agreed.stderr);
      assert.deepEqual(await shape(), { demo: 'n2 n3', fresh: 'f1' });
    });

    it('makes the changes, what comes before what goes, and tells each', async () => {
      const end = await apply(CHANGED, ['--yes', '--reason', 'third node']);
      assert.equal(end.code, 0, end.stderr);
      assert.deepEqual(
        end.stdout.split('\n').filter((line) => line.startsWith('done:')),
        [
          'done: add service fresh',
          'done: add node n3 of service demo',
          'done: change node n2 of service demo',
          'done: change service demo',
          'done: remove node n1 of service demo',
          'done: remove service other',
        ],
      );
      assert.match(end.stdout, /applied: 6 of 6/);
      const [demo] = await definitions();
      assert.equal((demo!['health'] as Json)['interval'], '9000ms');
      const { entries } = (await admin.read('/api/audit?limit=6')) as { entries: Json[] };
      assert.ok(entries.every(({ reason }) => reason === 'third node'));
      assert.match((await apply(CHANGED, [])).stdout, /nothing to do/);
    });

    it('leaves a node with users where it is, says how many, and applies the rest', async () => {
      for (const user of ['u1', 'u2']) await admin.put(`/api/services/demo/bindings/${user}`, { nodeId: 'n1' });
      const dry = await apply(CHANGED, ['--dry-run']);
      assert.match(dry.stdout, /- node n1 of service demo: 2 users are bound there, so the gateway will refuse it/);
      const end = await apply(CHANGED);
      assert.equal(end.code, 1);
      assert.match(end.stdout, /^refused: remove node n1 of service demo: 2 users are bound to node 'n1'/m);
      assert.match(end.stdout, /^done: remove service other$/m);
      assert.match(end.stderr, /applied 5 of 6 changes, 1 not/);
      assert.deepEqual(await shape(), { demo: 'n1 n2 n3', fresh: 'f1' });
      const again = await apply(CHANGED, ['--yes', '--json']);
      assert.equal(again.code, 1);
      const [change, ...more] = again.json()['changes'] as Json[];
      assert.equal(more.length, 0);
      assert.deepEqual(
        [change?.['status'], change?.['users'], (change!['error'] as Json)['code']],
        ['refused', 2, 'users_bound'],
      );
      assert.equal(again.error()['error'], 'incomplete');
    });

    it('takes nothing away when something that was to come is refused', async () => {
      // n1 is to go and its address to come back under another name: the users hold the old one in place.
      await admin.put('/api/services/demo/bindings/u1', { nodeId: 'n1' });
      const end = await apply(`
  - id: demo
    pathPrefix: /js/a
    loginPath: /auth/login
    nodes:
      - { id: renamed, baseUrl: "http://127.0.0.1:9001" }
      - { id: n2, baseUrl: "http://127.0.0.1:9002" }
`);
      assert.equal(end.code, 1);
      assert.match(end.stdout, /^refused: remove node n1 of service demo: 1 user is bound/m);
      assert.match(end.stdout, /^not applied: add node renamed of service demo: it needs this first: remove node n1/m);
      assert.match(end.stdout, /^not applied: remove service other: nothing is taken away while/m);
      assert.deepEqual(await shape(), { demo: 'n1 n2', other: 'o1' });
    });

    it('says so when two things swap what only one can have', async () => {
      const end = await apply(START.replace('/js/a', '/x').replace('/other', '/js/a').replace('/x', '/other'));
      assert.equal(end.code, 1);
      assert.match(end.stdout, /^not applied: change service demo: it swaps a name, prefix or address/m);
      assert.deepEqual((await definitions()).map(({ pathPrefix }) => pathPrefix).sort(), ['/js/a', '/other']);
    });

    it('stops when somebody else changes something between the question and the answer', async () => {
      const answer = async function* () {
        await admin.patch('/api/services/demo/nodes/n1', { weight: 7 });
        yield Buffer.from('yes\n');
      };
      const end = await apply(CHANGED, [], { terminal: true, stdin: Readable.from(answer()) });
      assert.equal(end.code, 1);
      assert.match(end.stderr, /somebody else has changed/);
      assert.deepEqual(await shape(), { demo: 'n1 n2', other: 'o1' });
    });

    it('does nothing with a file that has mistakes, a role that is too low, or a gateway that is away', async () => {
      const faulty = await apply(START.replace('loginPath', 'loginPth'));
      assert.equal(faulty.code, 1);
      assert.match(faulty.stderr, /gateway\.yaml:\d+:\d+: services\[0\]\.loginPth: .*did you mean loginPath/);
      const json = await apply(START.replace('loginPath', 'loginPth'), ['--json']);
      assert.equal((json.error()['problems'] as Json[]).length, 1);
      const weak = await apply(CHANGED, ['--yes', '--token', TOKENS.operator]);
      assert.equal(weak.code, 1);
      assert.equal(weak.stdout.match(/^refused: .*needs the role admin/gm)?.length, 1, weak.stdout);
      assert.equal(weak.stdout.match(/^not applied: .*not tried/gm)?.length, 5);
      assert.deepEqual(await shape(), { demo: 'n1 n2', other: 'o1' });
      const away = await runCli(['apply', '--config', await fileOf(START, 1), '--yes']);
      assert.equal(away.code, 1);
      assert.match(away.stderr, /no gateway answers at http:\/\/127\.0\.0\.1:1/);
    });
  });
}
