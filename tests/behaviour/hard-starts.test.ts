/** Starts and lives on broken ground: what an operator can mend is named, and what comes back by itself is waited for. */
import assert from 'node:assert/strict';
import { mkdir, readdir, rm, writeFile } from 'node:fs/promises';
import * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { Gateway } from '../../bin/compose.ts';
import { loadConfig } from '../../lib/config/load.ts';
import type { GatewayOptions } from '../../lib/config/options.ts';
import { OperatorError } from '../../lib/errors.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { BackendNode, newToken } from '../support/backend-node.ts';
import {
  configText,
  type GatewayFixture,
  openStores,
  type StoreSetup,
  startGateway,
} from '../support/gateway-fixture.ts';
import { type Answer, call } from '../support/http-client.ts';
import { createDatabase, runSql, startPostgres } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { waitUntil } from '../support/wait-until.ts';

describe('a gateway', () => {
  const nodes = [new BackendNode('n1'), new BackendNode('n2')];
  const cleanUps: (() => Promise<unknown>)[] = [];

  before(async () => {
    for (const node of nodes) await node.start();
  });
  after(async () => {
    for (const cleanUp of cleanUps.reverse()) await cleanUp();
    for (const node of nodes) await node.stop();
  });

  async function stores(changes: Partial<StoreSetup> = {}): Promise<StoreSetup> {
    const opened = await openStores('embedded');
    cleanUps.push(() => opened.close());
    return { ...opened, ...changes };
  }

  async function start(setup: StoreSetup, config = ''): Promise<GatewayFixture> {
    const gateway = await startGateway({ stores: setup, nodes, config });
    cleanUps.push(() => gateway.stop());
    return gateway;
  }

  const ready = (gateway: GatewayFixture) => call(gateway.adminPort, '/readyz');
  const errorOf = (answer: Answer) => `${answer.status} ${answer.json()['error']}`;

  async function failure(starting: Promise<unknown>): Promise<string> {
    const error = await starting.then(
      () => assert.fail('it started'),
      (thrown: unknown) => thrown,
    );
    assert.ok(error instanceof OperatorError, `${error}`);
    return error.message;
  }

  it('starts without PostgreSQL, says 503 to everybody, and is ready by itself when it comes', async () => {
    const postgres = await startPostgres();
    cleanUps.push(() => postgres.dispose());
    const { url } = await createDatabase(postgres.url);
    await postgres.stop();
    const gateway = await start(await stores({ kind: 'postgres', postgresUrl: url }));
    const notReady = await ready(gateway);
    assert.equal(notReady.status, 503);
    assert.match(notReady.text, /not been loaded/);
    for (const answer of [await gateway.get('/js/a/notes'), await gateway.get('/'), await gateway.login('alice')]) {
      assert.equal(errorOf(answer), '503 directory_unavailable');
      assert.ok(answer.headers['retry-after']);
    }
    assert.equal(
      nodes.reduce((sum, node) => sum + node.journal.length, 0),
      0,
    );
    assert.equal((await call(gateway.adminPort, '/healthz')).status, 200, 'it is alive all the same');
    assert.ok(gateway.events('registry_load_failed').length > 0);
    await postgres.start();
    await waitUntil('it to be ready', async () => (await ready(gateway)).status === 200, 20_000);
    const token = await gateway.tokenOf('alice');
    const home = (await gateway.get('/js/a/notes', token)).headers['x-gateway-node'];
    assert.ok(nodes.some((node) => node.id === home && node.withToken(token).length === 1));
  });

  it('starts on the services it knew last when PostgreSQL is away, and says that they are old', async () => {
    const postgres = await startPostgres();
    cleanUps.push(() => postgres.dispose());
    const { url } = await createDatabase(postgres.url);
    const setup = await stores({ kind: 'postgres', postgresUrl: url });
    const first = await start(setup);
    const token = await first.tokenOf('bob');
    const home = (await first.get('/js/a/notes', token)).headers['x-gateway-node'];
    await first.stop();
    await postgres.stop();
    const second = await start(setup);
    assert.equal((await second.get('/js/a/notes')).status, 200, 'nobody in particular is served');
    assert.equal(errorOf(await second.get('/js/a/notes', token)), '503 identity_unavailable');
    assert.equal(second.events('registry_stale').length, 1);
    assert.match(second.gateway.metrics.render(), /^gateway_snapshot_stale 1$/m);
    await postgres.start();
    const answer = await waitUntil(
      'bob to be served',
      async () => {
        const got = await second.get('/js/a/notes', token);
        return got.status === 200 && got;
      },
      20_000,
    );
    assert.equal(answer.headers['x-gateway-node'], home);
    await waitUntil(
      'fresh services',
      () => /^gateway_snapshot_stale 0$/m.test(second.gateway.metrics.render()),
      20_000,
    );
  });

  it('waits for a database that is not there yet, and names it in the log', async () => {
    const postgres = await startPostgres();
    cleanUps.push(() => postgres.dispose());
    const url = new URL(postgres.url);
    url.pathname = '/made_later';
    const gateway = await start(await stores({ kind: 'postgres', postgresUrl: url.href }));
    assert.equal((await ready(gateway)).status, 503);
    assert.match(JSON.stringify(gateway.events('registry_load_failed')[0]), /made_later/);
    await runSql(postgres.url, 'CREATE DATABASE made_later');
    await waitUntil('it to be ready', async () => (await ready(gateway)).status === 200, 20_000);
    assert.equal((await gateway.login('alice')).status, 200);
  });

  it('does not start on a database without its tables when it may not make them, and says what to do', async () => {
    const { url, drop } = await createDatabase();
    cleanUps.push(drop);
    const setup = await stores({ kind: 'postgres', postgresUrl: `${url}` });
    const text = configText({ stores: setup, nodes }).replace(/(postgres: \{ url: "[^"]*")/, '$1, migrate: false');
    assert.match(text, /migrate: false/);
    const message = await failure(startText(text));
    assert.match(message, /gateway_service/);
    assert.match(message, /migrate/);
  });

  it('does not start when a file stands where its data folder should be', async () => {
    const setup = await stores();
    await writeFile(setup.dataDir, 'a file');
    const message = await failure(start(setup));
    assert.ok(message.includes(setup.dataDir), message);
    assert.match(message, /must be a folder/);
  });

  it('does not start when its data folder would lie below a file', async () => {
    const setup = await stores();
    await writeFile(setup.dataDir, 'a file');
    const message = await failure(start({ ...setup, dataDir: `${setup.dataDir}/below/it` }));
    assert.ok(message.includes(setup.dataDir), message);
  });

  it('does not start when the journal in its data folder is a folder', async () => {
    const setup = await stores();
    const first = await start(setup);
    await first.stop();
    const [journal] = (await readdir(setup.dataDir)).filter((name) => name.includes('journal'));
    assert.ok(journal, 'there is a journal');
    await rm(`${setup.dataDir}/${journal}`);
    await mkdir(`${setup.dataDir}/${journal}`);
    const message = await failure(start(setup));
    assert.ok(message.includes(setup.dataDir), message);
  });

  it('does not start on a data folder that another gateway has, and names the process', async () => {
    const setup = await stores();
    const first = await start(setup);
    const message = await failure(start(setup));
    assert.match(message, new RegExp(`in use by process ${process.pid}\\b`));
    assert.ok(message.includes(setup.dataDir), message);
    assert.equal((await first.get('/js/a/notes')).status, 200, 'the first one does not mind');
    await first.stop();
    assert.equal((await (await start(setup)).get('/js/a/notes')).status, 200, 'the folder is free after it');
  });

  for (const [title, field] of [
    ['public', 'listen'],
    ['admin', 'admin'],
  ] as const) {
    it(`does not start when its ${title} port is taken, names it, and leaves nothing behind`, async () => {
      const taken = net.createServer().listen(0, '127.0.0.1');
      await new Promise((resolve) => taken.once('listening', resolve));
      const { port } = taken.address() as net.AddressInfo;
      const setup = await stores();
      const message = await failure(startOn(setup, field, port));
      assert.match(message, new RegExp(`127\\.0\\.0\\.1:${port}\\b`));
      assert.match(message, /another program/);
      await new Promise((resolve) => taken.close(resolve));
      assert.equal((await (await start(setup)).get('/js/a/notes')).status, 200, 'the folder is free again');
    });
  }

  async function startText(text: string, change: (options: GatewayOptions) => GatewayOptions = (options) => options) {
    const loaded = loadConfig(text, 'test.yaml', {});
    assert.ok('options' in loaded);
    const logger = new LineLogger({ level: 'error', format: 'json' }, { write: () => undefined });
    const gateway = new Gateway(change(loaded.options), { logger, clock: systemClock });
    await gateway.start();
    await gateway.stop();
  }

  const startOn = (setup: StoreSetup, field: 'listen' | 'admin', port: number) =>
    startText(configText({ stores: setup, nodes }), (options) =>
      field === 'listen'
        ? { ...options, listen: options.listen.map((each) => ({ ...each, port })) }
        : { ...options, admin: { ...options.admin, listen: { host: '127.0.0.1', port, tls: null } } },
    );

  /** How a Redis that is there can be of no use, and how that ends. */
  const refusals: [
    string,
    RegExp,
    string,
    (redis: RedisServer) => Promise<unknown>,
    (redis: RedisServer) => Promise<unknown>,
  ][] = [
    [
      'wants a password that the gateway does not have',
      /NOAUTH/,
      '',
      (redis) => redis.command('CONFIG', 'SET', 'requirepass', 'secret'),
      (redis) => redis.kill().then(() => redis.start()),
    ],
    [
      'allows the gateway nothing on its keys',
      /NOPERM/,
      'limited:word@',
      (redis) => redis.command('ACL', 'SETUSER', 'limited', 'on', '>word', '+@all', '~elsewhere:*', '&*'),
      (redis) => redis.command('ACL', 'SETUSER', 'limited', '~*'),
    ],
    [
      'knows another password',
      /WRONGPASS/,
      'limited:guess@',
      (redis) => redis.command('ACL', 'SETUSER', 'limited', 'on', '>word', '+@all', '~*', '&*'),
      (redis) => redis.command('ACL', 'SETUSER', 'limited', '>guess'),
    ],
  ];
  for (const [title, logged, login, spoil, mend] of refusals) {
    it(`starts on a Redis that ${title}: the log says so, nobody is mistaken, and it recovers`, async () => {
      const redis = await startRedis();
      cleanUps.push(() => redis.stop());
      await spoil(redis);
      const { url, drop } = await createDatabase();
      cleanUps.push(drop);
      const redisUrl = redis.url.replace('redis://', `redis://${login}`);
      const gateway = await start(await stores({ kind: 'postgres+redis', postgresUrl: url, redisUrl }));
      const token = await gateway.tokenOf('alice');
      const home = (await gateway.get('/js/a/notes', token)).headers['x-gateway-node'];
      assert.equal(nodes.filter((node) => node.withToken(token).length > 0)[0]?.id, home);
      const before = nodes.reduce((sum, node) => sum + node.journal.length, 0);
      for (let turn = 0; turn < 5; turn += 1)
        assert.equal(errorOf(await gateway.get('/js/a/notes', newToken())), '503 identity_unavailable');
      assert.equal(
        nodes.reduce((sum, node) => sum + node.journal.length, 0),
        before,
      );
      assert.equal((await gateway.get('/js/a/notes')).status, 200);
      const lines = gateway.events('redis_failed');
      assert.ok(
        lines.some((line) => logged.test(String(line['error']))),
        JSON.stringify(lines),
      );
      assert.ok(lines.length <= 6, `${lines.length} lines, not one for each request`);
      assert.ok(!gateway.lines.some((line) => /guess|:word/.test(line)), 'no password in the log');
      await mend(redis);
      await waitUntil(
        'unknown tokens to be nobody again',
        async () => (await gateway.get('/js/a/notes', newToken())).status === 200,
      );
      assert.equal((await gateway.get('/js/a/notes', token)).headers['x-gateway-node'], home);
    });
  }
});
