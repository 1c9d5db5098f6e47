/** One user, many tokens: every one leads to the same node, and many first uses of one cost one look-up. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { BackendNode } from '../support/backend-node.ts';
import { counterOf } from '../support/counter-of.ts';
import {
  type GatewayFixture,
  openStores,
  STORE_KINDS,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { waitUntil } from '../support/wait-until.ts';

/** Lists every command that a Redis server executes. */
class RedisMonitor {
  #text = '';
  readonly #socket: net.Socket;
  readonly #port: number;

  private constructor(port: number, socket: net.Socket) {
    this.#port = port;
    this.#socket = socket;
    socket.setEncoding('utf8').on('data', (text: string) => {
      this.#text += text;
    });
  }

  static async open(url: string): Promise<RedisMonitor> {
    const port = Number(new URL(url).port);
    const socket = net.connect(port, '127.0.0.1');
    await once(socket, 'connect');
    const monitor = new RedisMonitor(port, socket);
    socket.write('MONITOR\r\n');
    await waitUntil('MONITOR to begin', () => monitor.#text.startsWith('+OK'));
    return monitor;
  }

  /** All commands until now: a marker of our own shows that the list is complete. */
  async commands(): Promise<string[]> {
    const marker = `marker-${Math.random()}`;
    const socket = net.connect(this.#port, '127.0.0.1');
    socket.write(`ECHO ${marker}\r\n`);
    await waitUntil('the marker', () => this.#text.includes(marker));
    socket.destroy();
    return this.#text.split('\n').filter((line) => !line.includes(marker));
  }

  close(): void {
    this.#socket.destroy();
  }
}

const TOKEN_STORE = { embedded: 'journal', postgres: 'postgres', 'postgres+redis': 'redis' } as const;

for (const kind of STORE_KINDS) {
  describe(`tokens on the ${kind} store`, () => {
    const nodes = [new BackendNode('n1'), new BackendNode('n2'), new BackendNode('n3')];
    let stores: StoreSetup;
    let gateway: GatewayFixture;

    before(async () => {
      for (const node of nodes) await node.start();
      stores = await openStores(kind);
      gateway = await startGateway({ stores, nodes });
    });
    after(async () => {
      await gateway?.stop();
      await stores?.close();
      for (const node of nodes) await node.stop();
    });

    const servedBy = async (token: string) => (await gateway.get('/js/a/notes', token)).headers['x-gateway-node'];

    it('lead to the same node from the browser and from the phone', async () => {
      const browser = await gateway.tokenOf('alice');
      const home = await servedBy(browser);
      const phone = await gateway.tokenOf('ALICE');
      assert.notEqual(phone, browser);
      assert.equal(await servedBy(phone), home);
      assert.equal(await servedBy(browser), home);
      for (const node of nodes) {
        const expected = node.id === home ? 3 : 0;
        assert.equal(node.withToken(phone).length + node.withToken(browser).length, expected, node.id);
        const logins = node.journal.filter((entry) => entry.method === 'POST').length;
        assert.equal(logins, node.id === home ? 2 : 0, `logins on ${node.id}`);
      }
    });

    it('are no new placement at the second login', async () => {
      assert.equal(counterOf(gateway, 'gateway_binds_total{result="won"}'), 1);
      assert.equal(counterOf(gateway, 'gateway_decisions_total{kind="candidate"}'), 1);
      // Round robin goes on where the first login left it: bob and carol get the two other nodes.
      const homes = [await servedBy(await gateway.tokenOf('alice'))];
      for (const username of ['bob', 'carol']) homes.push(await servedBy(await gateway.tokenOf(username)));
      assert.equal(new Set(homes).size, 3, homes.join(', '));
    });

    it('cost one look-up when a hundred requests use one for the first time', async () => {
      const token = await gateway.tokenOf('alice');
      const home = await servedBy(token);
      const seen = nodes.map((node) => node.withToken(token).length);
      // A gateway that has just started knows nothing.
      await gateway.stop();
      gateway = await startGateway({ stores, nodes });
      const monitor = stores.redisUrl === null ? null : await RedisMonitor.open(stores.redisUrl);
      const answers = await Promise.all(Array.from({ length: 100 }, () => gateway.get('/js/a/notes', token)));
      assert.deepEqual([...new Set(answers.map((answer) => answer.headers['x-gateway-node']))], [home]);
      nodes.forEach((node, index) => {
        assert.equal(node.withToken(token).length - seen[index]!, node.id === home ? 100 : 0, node.id);
      });
      assert.equal(counterOf(gateway, `gateway_token_lookups_total{by="${TOKEN_STORE[kind]}"}`), 1);
      // Redis may hold what was before a change that nobody heard of while this gateway was down.
      assert.equal(counterOf(gateway, 'gateway_binding_lookups_total{layer="store"}'), 1);
      if (monitor) {
        const commands = await monitor.commands();
        monitor.close();
        const tokenReads = commands.filter((line) => line.includes(token));
        assert.equal(tokenReads.length, 1, tokenReads.join('\n'));
        const bindingReads = commands.filter((line) => /"get" "gateway:route:user:demo:u-alice"/.test(line));
        assert.equal(bindingReads.length, 1, commands.join('\n'));
      }
    });
  });
}
