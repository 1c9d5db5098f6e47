/** Two gateways as two processes, under load: the registry changes, files are read again, one is told to stop; nobody notices. */
import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import * as net from 'node:net';
import { after, afterEach, before, beforeEach, describe, it } from 'node:test';
import { BackendNode, sendJson } from '../support/backend-node.ts';
import { Seeded } from '../support/seeded.ts';
import { type Member, outcome, TwoGateways, tokenIn } from '../support/two-gateways.ts';
import { waitUntil } from '../support/wait-until.ts';

const PATH = '/js/a/notes';
const USERS = 40;
const CHANGES = 30;
const TUNNELS = 20;
const GRACE_MS = 2_000;

interface User {
  readonly token: string;
  readonly home: string;
}

describe('two gateways under load', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
  const users: User[] = [];
  const sockets: net.Socket[] = [];
  let pair: TwoGateways;
  let first: Member;
  let second: Member;

  before(async () => {
    for (const node of nodes) {
      await node.start();
      node.server.on('upgrade', (_request, socket) => {
        socket.on('error', () => undefined);
        socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n');
        socket.pipe(socket);
      });
      node.handler = (request, response) => {
        const wait = /wait=(\d+)/.exec(request.url ?? '')?.[1];
        setTimeout(() => sendJson(response, { node: node.id }), Number(wait ?? 0)).unref();
      };
    }
  });
  beforeEach(async () => {
    pair = await TwoGateways.open(nodes, `shutdown: { grace: ${GRACE_MS}ms }`);
    ({ first, second } = pair);
    users.length = 0;
    for (let index = 0; index < USERS; index += 1) {
      const token = tokenIn(await first.login(`user-${index}`));
      users.push({ token, home: outcome(await second.get(PATH, token)) });
    }
    for (const node of nodes) node.journal.length = 0;
  });
  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    await pair.close();
  });
  after(async () => {
    for (const node of nodes) await node.stop();
  });

  /** A tunnel that echoes; `closed` turns true when it ends. */
  async function openTunnel(member: Member, { token }: User) {
    const socket = net.connect(member.process.port, '127.0.0.1');
    sockets.push(socket);
    const tunnel = { received: '', closed: false, socket };
    socket.on('error', () => undefined);
    socket.on('close', () => {
      tunnel.closed = true;
    });
    socket.setEncoding('latin1').on('data', (text: string) => {
      tunnel.received += text;
    });
    socket.write(
      `GET ${PATH} HTTP/1.1\r\nHost: demo\r\nConnection: Upgrade\r\nUpgrade: echo\r\nx-token: ${token}\r\n\r\n`,
    );
    await waitUntil(
      'the tunnel',
      () => tunnel.received.startsWith('HTTP/1.1 101') && tunnel.received.endsWith('\r\n\r\n'),
    );
    return tunnel;
  }

  const bindings = () => pair.stores.sql('SELECT user_id, node_id, epoch FROM gateway_user_route ORDER BY user_id');

  it(`take over ${CHANGES} changes of the registry and as many reloads without a failed request or a closed tunnel`, async () => {
    const random = new Seeded(7);
    const rowsBefore = await bindings();
    const tunnels = [];
    for (let index = 0; index < TUNNELS; index += 1) {
      tunnels.push(await openTunnel(pair.members[index % 2]!, random.pick(users)));
    }
    const wrong: string[] = [];
    let requests = 0;
    let over = false;
    const lanes = Array.from({ length: 8 }, async () => {
      while (!over) {
        const user = random.pick(users);
        const got = await random.pick(pair.members).get(PATH, user.token).then(outcome, String);
        requests += 1;
        if (got !== user.home) wrong.push(`${got} instead of ${user.home}`);
        await new Promise((resolve) => setTimeout(resolve, random.below(40)));
      }
    });
    const extra = await new BackendNode('n4').start();
    const changes: (() => Promise<unknown>)[] = [
      () => pair.stores.sql('UPDATE gateway_node SET weight = 1 + random() * 5'),
      () =>
        pair.stores.sql(
          `INSERT INTO gateway_service (id, name, path_prefix) VALUES ('other', 'Other', '/other')
           ON CONFLICT (id) DO UPDATE SET name = gateway_service.name || '.'`,
        ),
      () => pair.stores.sql(`DELETE FROM gateway_service WHERE id = 'other'`),
      () =>
        pair.stores.sql(
          `INSERT INTO gateway_node (id, service_id, base_url) VALUES ('n4', 'demo', $1) ON CONFLICT DO NOTHING`,
          [extra.baseUrl],
        ),
      () => pair.stores.sql(`DELETE FROM gateway_node WHERE id = 'n4'`),
      () => pair.stores.sql(`UPDATE gateway_service SET name = 'Demo ' || clock_timestamp() WHERE id = 'demo'`),
    ];
    try {
      for (let index = 0; index < CHANGES; index += 1) {
        await changes[index % changes.length]!();
        for (const member of pair.members) member.process.signal('SIGHUP');
        await new Promise((resolve) => setTimeout(resolve, 60));
      }
      over = true;
      await Promise.all(lanes);
    } finally {
      over = true;
      await extra.stop();
    }
    assert.deepEqual(wrong, []);
    assert.ok(requests > CHANGES, `${requests} requests`);
    for (const [index, tunnel] of tunnels.entries()) {
      assert.equal(tunnel.closed, false, `tunnel ${index}`);
      tunnel.socket.write(`still ${index}`);
      await waitUntil('the echo', () => tunnel.received.endsWith(`still ${index}`));
    }
    assert.deepEqual(await bindings(), rowsBefore);
    for (const node of nodes) {
      for (const { token } of node.journal) {
        const user = users.find((each) => each.token === token);
        assert.equal(user?.home, node.id);
      }
    }
  });

  it('refuse a bad file whole and go on with what they have', async () => {
    const good = await readFile(first.config, 'utf8');
    const bad: [string, RegExp][] = [
      [good.replace('listen:', 'lisen:'), /lisen/],
      [good.replace('id: n2', 'id: n1'), /n1/],
      [good.replace(/(id: n3, baseUrl: "[^"]*")/, '$1, weight: -1'), /weight/],
      [good.replace(/127\.0\.0\.1:0/, '127.0.0.1:99999'), /listen/],
      [`${good}\tlog: {}\n`, /:\d+:\d+/],
    ];
    for (const [index, [text, complaint]] of bad.entries()) {
      assert.notEqual(text, good);
      await writeFile(first.config, text);
      first.process.signal('SIGHUP');
      await waitUntil(`complaint ${index}`, () => first.process.events('reload_refused').length > index);
      const line = first.process.events('reload_refused').at(-1);
      assert.match(JSON.stringify(line), complaint);
      for (const { token, home } of users) assert.equal(outcome(await first.get(PATH, token)), home);
    }
    await writeFile(first.config, good);
    first.process.signal('SIGHUP');
    await waitUntil('the good one', () => first.process.events('reloaded').length > 0);
  });

  it('stop one: not ready at once, what is short is finished, what is long is cut and logged, the other carries on', async () => {
    const idle = net.connect(first.process.port, '127.0.0.1');
    sockets.push(idle);
    idle.on('error', () => undefined);
    let idleClosed = false;
    idle.on('close', () => {
      idleClosed = true;
    });
    idle.resume();
    idle.write(`GET ${PATH} HTTP/1.1\r\nHost: demo\r\nx-token: ${users[0]!.token}\r\n\r\n`);
    const seen = () => nodes.reduce((sum, node) => sum + node.journal.length, 0);
    await waitUntil('the first request', () => seen() === 1);
    const short = users.slice(0, 20).map(({ token }) => first.get('/js/a/slow?wait=700', token));
    const long = first.get('/js/a/slow?wait=60000', users[0]!.token).then(outcome, () => 'cut');
    await waitUntil('all at their nodes', () => seen() === 22);
    const { process } = first;
    process.signal('SIGTERM');
    await waitUntil('it not to be ready', () =>
      first.ready().then(
        (is) => !is,
        () => true,
      ),
    );
    const answers = await Promise.all(short);
    assert.deepEqual(
      answers.map(outcome),
      users.slice(0, 20).map(({ home }) => home),
    );
    assert.equal(await long, 'cut');
    const { code, signal, stdout } = await process.ended;
    assert.deepEqual([code, signal], [1, null], 'something was cut');
    assert.ok(idleClosed);
    assert.ok(stdout.endsWith('\n'), 'the log is written to its end');
    const lines = stdout.trimEnd().split('\n');
    const access = lines.map((line) => JSON.parse(line)).filter((line) => line.event === 'request');
    assert.equal(access.filter((line) => String(line.path).includes('wait=700')).length, 20);
    const cutLines = access.filter((line) => String(line.path).includes('wait=60000'));
    assert.deepEqual(
      cutLines.map((line) => [line.user, line.error]),
      [['u-user-0', undefined]],
      'the cut one has its line, too',
    );
    assert.ok(lines.some((line) => /"level":"(warn|error)"/.test(line) && /cut|grace/.test(line)));
    for (const { token, home } of users) assert.equal(outcome(await second.get(PATH, token)), home);
    assert.equal((await bindings()).length, USERS);
  });
});
