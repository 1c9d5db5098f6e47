/** The commands of an operator against a real gateway with PostgreSQL and Redis: what they do, print and exit with. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { after, before, describe, it } from 'node:test';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode, userIdOf } from '../support/backend-node.ts';
import { type CliEnd, type CliSetup, runCli, spawnCli } from '../support/cli.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { runGateway } from '../support/gateway-process.ts';
import { waitUntil } from '../support/wait-until.ts';

type Json = Record<string, unknown>;

describe('the commands of an operator', () => {
  const n1 = new BackendNode('n1');
  const n2 = new BackendNode('n2');
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  let admin: AdminClient;
  let folder: string;

  before(async () => {
    await n1.start();
    await n2.start();
    folder = await mkdtemp(join(tmpdir(), 'sticky-cli-'));
    stores = await openStores('postgres+redis');
    fixture = await startGateway({
      stores,
      nodes: [n1, n2],
      admin: ADMIN_TOKENS,
      nodeOptions: { n2: 'weight: 2' },
      config: 'health: { interval: 50ms, failures: 1, onDemand: 50ms }',
    });
    admin = new AdminClient(fixture.adminPort);
  });
  after(async () => {
    await fixture?.stop();
    await stores?.close();
    await n1.stop();
    await n2.stop();
    await rm(folder, { recursive: true, force: true });
  });

  const url = () => `http://127.0.0.1:${fixture.adminPort}`;
  const env = (token: string = TOKENS.admin) => ({ STICKY_GATEWAY_ADMIN: url(), STICKY_GATEWAY_TOKEN: token });
  const cli = (args: readonly string[], setup: CliSetup = {}) =>
    runCli(args, { ...setup, env: { ...env(), ...setup.env } });
  /** Words of a line that has no blanks in its values. */
  const run = (line: string, setup: CliSetup = {}) => cli(line.split(' '), setup);

  async function ok(line: string, setup: CliSetup = {}): Promise<CliEnd> {
    const end = await run(line, setup);
    assert.equal(end.code, 0, `${line}: ${end.stdout}${end.stderr}`);
    return end;
  }

  const bindingOf = async (userId: string) =>
    ((await admin.read(`/api/services/demo/bindings?userId=${encodeURIComponent(userId)}`))['bindings'] as Json[])[0];

  describe('on one user', () => {
    it('bind, move, freeze, and take back by the very line they print', async () => {
      const bound = await ok('bindings set 42 --node n1 --reason new');
      assert.match(bound.stdout, /^42: bound to n1 \(service demo\)\n$/);
      const dry = await ok('bindings move 42 --node n2 --dry-run');
      assert.match(dry.stdout, /^42: would be moved from n1 to n2/);
      assert.doesNotMatch(dry.stdout, /undo/);
      assert.equal((await bindingOf('42'))?.['nodeId'], 'n1');

      const moved = await cli(['bindings', 'move', '42', '--node', 'n2', '--reason', 'disk full']);
      assert.match(
        moved.stdout,
        /^42: moved from n1 to n2 \(service demo, epoch 2\)\n {2}data on n1 is not copied by this\n/,
      );
      const undo = /undo: sticky-gateway (.*)$/m.exec(moved.stdout)?.[1] ?? '';
      assert.equal(undo, 'bindings move --user-id 42 --node n1 --service demo');
      await ok(undo);
      assert.deepEqual(await bindingOf('42'), { userId: '42', username: null, nodeId: 'n1', epoch: 3, frozen: false });
      assert.match((await ok('bindings set 42 --node n1')).stdout, /on n1 already: nothing changed/);

      const frozen = await ok('bindings freeze 42');
      assert.equal((await bindingOf('42'))?.['frozen'], true);
      await ok(/undo: sticky-gateway (.*)$/m.exec(frozen.stdout)?.[1] ?? '');
      assert.equal((await bindingOf('42'))?.['frozen'], false);
      assert.match((await ok('bindings unfreeze 42')).stdout, /already/);

      const removed = await ok('bindings remove 42 --yes --reason gone');
      assert.equal(await bindingOf('42'), undefined);
      await ok(/undo: sticky-gateway (.*)$/m.exec(removed.stdout)?.[1] ?? '');
      assert.equal((await bindingOf('42'))?.['nodeId'], 'n1');
      await ok('bindings remove 42 --yes');

      const audit = await ok('audit --user-id 42 --limit 9');
      const lines = audit.stdout.trimEnd().split('\n');
      assert.equal(lines.length, 8 + 1, audit.stdout);
      assert.ok(
        lines.some((line) =>
          /admin \(127\.0\.0\.1\) +binding\.move +services\/demo\/bindings\/42 +n1 -> n2 "disk full"$/.test(line),
        ),
        audit.stdout,
      );
      const entries = (await ok('audit --user-id 42 --limit 2 --json')).ndjson();
      assert.deepEqual(
        entries.map((entry) => entry['action']),
        ['binding.unbind', 'binding.move'],
      );
    });

    it('find users by name, and do not take a name for an id', async () => {
      await fixture.tokenOf('alice');
      const id = userIdOf('alice');
      const { nodeId } = (await bindingOf(id)) as { nodeId: string };
      const other = nodeId === 'n1' ? 'n2' : 'n1';
      for (const line of [
        `bindings set alice --node ${other}`,
        'bindings freeze alice',
        'bindings remove alice --yes',
      ]) {
        const mistaken = await run(line);
        assert.equal(mistaken.code, 1, line);
        assert.match(mistaken.stderr, /one with that name is\n {2}did you mean --username alice\?/);
      }
      assert.equal(await bindingOf('alice'), undefined);
      const moved = await ok(`bindings move --username ALICE --node ${other} --json`);
      assert.equal((moved.json()['binding'] as Json)['nodeId'], other);
      assert.equal((moved.json()['before'] as Json)['nodeId'], nodeId);
      const nobody = await run(`bindings move --username nobody --node ${other} --json`);
      assert.deepEqual([nobody.code, nobody.stdout, nobody.error()['error']], [1, '', 'not_found']);
      assert.equal((await run(`bindings move 4711 --node ${other}`)).code, 1, 'move does not bind');
      const typo = await run('bindings set 4711 --node n22');
      assert.match(typo.stderr, /no node 'n22' \(did you mean n2\?\)/);
      assert.match((await run('bindings list --service dmo')).stderr, /no service 'dmo' \(did you mean demo\?\)/);
    });

    it('take ids of every kind', async () => {
      for (const id of ['..', 'a/b', 'import', '用户 1', "it's", '-7', '%2e']) {
        const bound = await cli(['bindings', 'set', `--user-id=${id}`, '--node', 'n1']);
        assert.equal(bound.code, 0, bound.stderr);
        assert.equal((await bindingOf(id))?.['nodeId'], 'n1', id);
        assert.equal((await cli(['bindings', 'remove', `--user-id=${id}`, '--yes'])).code, 0);
        assert.equal(await bindingOf(id), undefined, id);
      }
    });

    it('say why a user who is known by name only cannot be moved yet', async () => {
      await ok('bindings import -', { stdin: ',Only Name,n1\n' });
      const end = await cli(['bindings', 'move', '--username', 'only name', '--node', 'n2']);
      assert.equal(end.code, 1);
      assert.match(end.stderr, /'only name' was imported by name only, and is on 'n1' from their first login on/);
    });

    it('ask before they unbind, and refuse to guess where nobody can be asked', async () => {
      await ok('bindings set 43 --node n1');
      const unasked = await run('bindings remove 43');
      assert.equal(unasked.code, 2);
      assert.match(unasked.stderr, /add --yes/);
      for (const [answer, code] of [
        ['n\n', 1],
        ['', 1],
        ['y\n', 0],
      ] as const) {
        const asked = await run('bindings remove 43', { terminal: true, stdin: answer });
        assert.equal(asked.code, code, asked.stderr);
        assert.match(asked.stderr, /Unbind 43 from n1\?.*\[y\/N\]/);
        assert.equal((await bindingOf('43')) === undefined, code === 0);
      }
    });
  });

  describe('on files', () => {
    const rows = (count: number, prefix: string) =>
      `user_id,username,node_id\n${Array.from({ length: count }, (_, index) => `${prefix}${index},${prefix}name${index},n${1 + (index % 2)}\n`).join('')}`;

    it('import, dry and for real, again, and list page by page', async () => {
      const file = join(folder, 'users.csv');
      await writeFile(file, rows(2_500, 'f'));
      const dry = await ok(`bindings import ${file} --dry-run`);
      assert.equal(
        dry.stdout,
        '2,500 rows: 2,500 would be bound in service demo, 0 bound already and left alone (dry run)\n',
      );
      assert.equal(await bindingOf('f0'), undefined);
      const done = await ok(`bindings import ${file} --reason take-over --json --progress`);
      assert.deepEqual(done.json(), { rows: 2_500, inserted: 2_500, unchanged: 0 });
      assert.match(done.stderr, /^sent: 2,501 rows, [\d,]+ rows\/s, [\d.]+ s\n$/);
      const again = await ok('bindings import -', { stdin: rows(2_500, 'f') });
      assert.deepEqual(
        [again.stdout, again.stderr],
        ['2,500 rows: 0 bound in service demo, 2,500 bound already and left alone\n', ''],
      );

      const listed = await ok('bindings list --node n2 --json');
      const users = listed.ndjson().map((one) => one['userId'] as string);
      assert.equal(users.filter((user) => user.startsWith('f')).length, 1_250);
      assert.equal(new Set(users).size, users.length);
      assert.equal((await ok('bindings list --limit 1200 --json')).ndjson().length, 1_200);
      const table = (await ok('bindings list f7')).stdout;
      assert.match(table, /^USER ID {2}USERNAME {2}NODE {2}EPOCH {2}FROZEN\nf7 {7}fname7 {4}n2 {4}\d+\n$/);
      const none = await ok('bindings list --username nobody');
      assert.deepEqual([none.stdout, none.stderr], ['', "no such binding in service 'demo'\n"]);
    });

    it('tell faults by file and line, and import nothing then', async () => {
      const file = join(folder, 'faulty.csv');
      await writeFile(file, 'g1,g1,n1\ng2,g2,n9\n,,n1\ng1,other,n2\n');
      const end = await run(`bindings import ${file}`);
      assert.deepEqual([end.code, end.stdout], [1, '']);
      const lines = end.stderr.trimEnd().split('\n');
      assert.match(lines[0] ?? '', new RegExp(`^${file}:2: node 'n9'`));
      assert.match(lines[1] ?? '', new RegExp(`^${file}:3: names no user`));
      assert.match(lines[2] ?? '', new RegExp(`^${file}:4: `));
      assert.match(lines.at(-1) ?? '', /faults in .*, nothing was imported$/);
      assert.equal(await bindingOf('g1'), undefined);
      const json = await run(`bindings import ${file} --json`);
      assert.equal(json.error()['error'], 'import_refused');
      assert.deepEqual(
        (json.error()['errors'] as Json[]).slice(0, 2).map(({ line }) => line),
        [2, 3],
      );
      const ndjson = await run('bindings import - --format ndjson', { stdin: '{"userId":"g9","nodeId":"n1"}\nno\n' });
      assert.match(ndjson.stderr, /^stdin:2: is not sound JSON/);
    });

    it('say what is wrong with the file itself, before and in the middle of it', async () => {
      assert.match((await run(`bindings import ${folder}/nowhere.csv`)).stderr, /nowhere\.csv: there is no such file/);
      assert.match((await run(`bindings import ${folder}`)).stderr, /it is a folder/);
      const broken = new PassThrough();
      broken.write('h1,,n1\n');
      setImmediate(() => broken.destroy(new Error('the disk broke')));
      const end = await run('bindings import -', { stdin: broken });
      assert.equal(end.code, 1);
      assert.match(end.stderr, /the disk broke/);
      assert.equal(await bindingOf('h1'), undefined, 'a part never passes for the whole');
    });

    it('export what import reads, to stdout and to a file that is whole or not there', async () => {
      const csv = (await ok('bindings export')).stdout;
      const lines = csv.trimEnd().split('\n');
      assert.equal(lines[0], 'user_id,username,node_id');
      assert.ok(lines.length > 2_500);
      const again = await ok('bindings import - --json', { stdin: csv });
      assert.deepEqual(again.json(), { rows: lines.length - 1, inserted: 0, unchanged: lines.length - 1 });
      const file = join(folder, 'out.ndjson');
      const told = await ok(`bindings export --output ${file}`);
      assert.match(told.stderr, new RegExp(`${lines.length - 1}|${(lines.length - 1).toLocaleString('en-US')}`));
      const written = (await readFile(file, 'utf8')).trimEnd().split('\n');
      assert.equal(written.length, lines.length - 1);
      assert.equal(typeof (JSON.parse(written[0] ?? '') as Json)['nodeId'], 'string');
      assert.ok(!(await readdir(folder)).includes('out.ndjson.partial'));
      const nowhere = await run(`bindings export --output ${folder}/no/such/folder.csv`);
      assert.equal(nowhere.code, 1);
      assert.doesNotMatch(nowhere.stderr, /^\s+at /m);
    });

    it('import nothing when the command is killed in the middle', async () => {
      const start = () => {
        const child = spawnCli(['bindings', 'import', '-'], env());
        child.stdin.on('error', () => undefined);
        child.stdin.write(rows(5_000, 'killed'));
        return { child, ended: once(child, 'close') };
      };
      let { child, ended } = start();
      // A second file is refused while one is under way.
      await waitUntil(
        'the file to be under way',
        async () => {
          // A look may have been in its way.
          if (child.exitCode !== null) ({ child, ended } = start());
          const look = await run('bindings import - --dry-run --json', { stdin: 'x,,n1\n' });
          return look.code === 1 && look.error()['error'] === 'conflict';
        },
        30_000,
      );
      child.kill('SIGKILL');
      await ended;
      await waitUntil(
        'the file to be given up',
        async () => (await run('bindings import - --dry-run', { stdin: 'x,,n1\n' })).code === 0,
      );
      assert.equal(await bindingOf('killed0'), undefined);
    });

    it('end quietly with 0 when the reader has seen enough', async () => {
      for (const args of [
        ['bindings', 'export'],
        ['bindings', 'list'],
      ]) {
        const child = spawnCli(args, env());
        let stderr = '';
        child.stderr.setEncoding('utf8').on('data', (text: string) => {
          stderr += text;
        });
        const closed = once(child, 'close');
        await once(child.stdout, 'data');
        child.stdout.destroy();
        const [code] = (await closed) as [number];
        assert.deepEqual([code, stderr], [0, ''], args.join(' '));
      }
    });
  });

  describe('that look', () => {
    it('explain a bound user, a node that is down, and what helps', async () => {
      await fixture.tokenOf('carol');
      const id = userIdOf('carol');
      await ok(`bindings set ${id} --node n2`);
      const up = await ok('explain --username carol');
      const [answer, ...trail] = up.stdout.trimEnd().split('\n');
      assert.match(answer ?? '', /^user carol goes to n2: bound there, epoch \d+$/);
      assert.ok(
        trail.some((line) => /^ {2}node +n2: (UP|UNKNOWN)/.test(line)),
        up.stdout,
      );
      assert.ok(
        trail.some((line) => /^ {2}decided +by stage sticky-route: bound/.test(line)),
        up.stdout,
      );
      await n2.stop();
      try {
        await waitUntil('n2 to be down', async () =>
          (await run('explain --username carol')).stdout.includes('node_down'),
        );
        const down = await ok(`explain --user-id ${id} --path /js/a/notes?x=1`);
        assert.match(down.stdout, /^user u-carol gets 503 node_down: bound to n2, which is DOWN for \d+ s: ./);
        assert.match(
          down.stdout,
          /what helps: bring n2 back.*bindings move --user-id u-carol --node NODE --service demo/,
        );
        assert.match(down.stdout, /request +GET \/js\/a\/notes\?x=1/);
        const status = await ok('status');
        assert.match(status.stdout, /n2 +DOWN +[\d,]+ users +http/);
        assert.match(status.stdout, /[\d,]+ users get 503/);
        const moved = await ok(`bindings set ${id} --node n1`);
        assert.doesNotMatch(moved.stdout, /DOWN/);
        assert.match((await ok(`bindings set ${id} --node n2`)).stdout, /n2 is DOWN: until that changes they get 503/);
      } finally {
        await n2.start();
      }
      await ok(`bindings freeze ${id}`);
      assert.match(
        (await ok('explain --username carol')).stdout,
        /gets 503 user_frozen: frozen on n2.*\n.*bindings unfreeze --username carol/,
      );
      await ok(`bindings unfreeze ${id}`);
      const json = (await ok('explain --username carol --json')).json();
      assert.equal(json['serviceId'], 'demo');
    });

    it('explain a token that never shows, a login, nobody and nowhere', async () => {
      const token = await fixture.tokenOf('dave');
      for (const setup of [
        { args: ['--token', '-'], stdin: `${token}\n` },
        { args: ['--token', token], stdin: '' },
      ]) {
        const end = await cli(['explain', ...setup.args, '--path', '/js/a/x'], { stdin: setup.stdin });
        assert.match(end.stdout, /^user u-dave goes to n\d: bound there/);
        assert.match(end.stdout, /user +u-dave, whose token it is/);
        assert.doesNotMatch(end.stdout + end.stderr, new RegExp(token));
      }
      assert.match(
        (await ok('explain --token not-a-token')).stdout,
        /^a request with this token goes to any usable node.*\n(.*\n)* {2}user +the token belongs to nobody/,
      );
      assert.match(
        (await ok('explain --login --username newcomer')).stdout,
        /^a login of newcomer goes to n\d, picked for a new user/,
      );
      assert.match(
        (await ok('explain --user-id stranger')).stdout,
        /^user stranger gets 503 user_not_bound.*\n.*bindings set --user-id stranger/,
      );
      assert.match((await ok('explain --path /nowhere')).stdout, /^a request without a token gets 404 no_route/);
      assert.equal((await run('explain --token -')).code, 2);
      assert.equal((await run('explain --login --path /x')).code, 2);
      assert.equal((await cli(['explain', '--header', 'nonsense'])).code, 2);
      assert.ok(!fixture.lines.some((line) => line.includes(token)));
    });

    it('show the state of it all, and exit 1 when a service has no usable node', async () => {
      await waitUntil('both nodes to be up', async () => !(await run('status')).stdout.includes('DOWN'));
      const status = await ok('status');
      assert.match(status.stdout, /^ready +yes$/m);
      assert.match(status.stdout, /^stores +postgres \(postgres.*\) \+ redis \(redis:/m);
      assert.match(status.stdout, /^demo {2}\/js\/a, [\d,]+ users$/m);
      assert.match(status.stdout, /^ {2}n1 +UP +[\d,]+ users +http:\/\/127\.0\.0\.1:\d+ +for \d+ s$/m);
      assert.doesNotMatch(status.stdout, /\u001b/);
      assert.match((await ok('status', { terminal: true })).stdout, /\u001b\[32mUP/);
      assert.doesNotMatch((await ok('status', { terminal: true, env: { NO_COLOR: '1' } })).stdout, /\u001b/);
      const json = (await ok('status --json')).json();
      assert.deepEqual([json['ok'], json['ready'], json['cliVersion']], [true, true, '1.2.3']);
      assert.deepEqual(
        (json['services'] as Json[]).map(({ id, usable }) => [id, usable]),
        [['demo', true]],
      );
      assert.doesNotMatch(JSON.stringify(json), new RegExp(TOKENS.admin));
      for (const node of ['n1', 'n2']) await admin.patch(`/api/services/demo/nodes/${node}`, { enabled: false });
      const off = await run('status');
      assert.equal(off.code, 1);
      assert.match(off.stdout, /PROBLEM: service demo has no usable node/);
      assert.equal((await run('status --json')).json()['ok'], false);
      for (const node of ['n1', 'n2']) await admin.patch(`/api/services/demo/nodes/${node}`, { enabled: true });
    });
  });

  describe('as processes', () => {
    it('check a file, bring a schema up to date twice, and exit with codes that scripts can use', async () => {
      const sound = join(folder, 'sound.yaml');
      const services = 'services: [{ id: demo, pathPrefix: /js/a, nodes: [] }]\n';
      await writeFile(sound, `store: { postgres: { url: ${JSON.stringify(stores.postgresUrl)} } }\n${services}`);
      const faulty = join(folder, 'faulty.yaml');
      await writeFile(faulty, `cashe: {}\nlog: { level: loud }\n${services}`);
      const embedded = join(folder, 'embedded.yaml');
      await writeFile(embedded, services);
      const [checked, refused, migrated, nothing, usage] = await Promise.all([
        runGateway('check', '--config', sound, '--json'),
        runGateway('check', '--config', faulty, '--json'),
        runGateway('migrate', '--config', sound, '--json'),
        runGateway('migrate', '--config', embedded),
        runGateway('migrate'),
      ]);
      assert.deepEqual([checked.code, JSON.parse(checked.stdout)], [0, { file: sound, problems: [] }]);
      assert.deepEqual([refused.code, refused.stdout], [1, '']);
      const { error, problems } = JSON.parse(refused.stderr) as { error: string; problems: Json[] };
      assert.equal(error, 'config_invalid');
      assert.deepEqual(
        problems.map(({ line, path }) => [line, path]),
        [
          [1, 'cashe'],
          [2, 'log.level'],
        ],
      );
      assert.deepEqual([migrated.code, migrated.stdout], [0, '{"migrated":true}\n'], migrated.stderr);
      assert.deepEqual([nothing.code, usage.code], [1, 2]);
      assert.match(nothing.stderr, /nothing to migrate/);
    });
  });

  describe('and who they are', () => {
    it('take the token from the environment, a file, or the configuration', async () => {
      const file = join(folder, 'token');
      await writeFile(file, `${TOKENS.viewer}\n`);
      const bare = { env: { STICKY_GATEWAY_TOKEN: '' } };
      assert.equal((await run(`bindings list --limit 1 --token-file ${file}`, bare)).code, 0);
      assert.equal((await run(`bindings list --limit 1 --token ${TOKENS.viewer}`, bare)).code, 0);
      const config = join(folder, 'own.yaml');
      await writeFile(
        config,
        `admin: { listen: "127.0.0.1:${fixture.adminPort}", ${ADMIN_TOKENS} }\nservices: [{ id: demo, pathPrefix: /js/a, nodes: [] }]\n`,
      );
      const own = await runCli(['bindings', 'set', '77', '--node', 'n1', '--config', config], { env: {} });
      assert.equal(own.code, 0, own.stderr);
      // Tokens of a file are for the gateway of that file.
      const other = await runCli(['status', '--config', config, '--admin', url()], { env: {} });
      assert.match(other.stderr, /Authorization/);
    });

    it('say in words what a missing, wrong or weak token comes to', async () => {
      const missing = await runCli(['status'], { env: { STICKY_GATEWAY_ADMIN: url() } });
      assert.equal(missing.code, 1);
      assert.match(missing.stderr, /needs Authorization.*\n {2}give a token of admin\.tokens: in STICKY_GATEWAY_TOKEN/);
      const wrong = await run('bindings list', { env: env('wrong-token-0123456789') });
      assert.equal(wrong.code, 1);
      assert.match(wrong.stderr, /this token is not known/);
      assert.doesNotMatch(wrong.stderr, /wrong-token/);
      const weak = await run('bindings set 42 --node n1', { env: env(TOKENS.viewer) });
      assert.equal(weak.code, 1);
      assert.match(weak.stderr, /needs the role operator; 'viewer' is viewer/);
      const json = await run('bindings set 42 --node n1 --json', { env: env(TOKENS.viewer) });
      assert.deepEqual([json.error()['error'], json.error()['status']], ['forbidden', 403]);
      const upload = await run('bindings import -', { env: env(TOKENS.viewer), stdin: 'a,,n1\n'.repeat(200_000) });
      assert.match(upload.stderr, /needs the role operator/);
      assert.equal((await run('status', { env: { STICKY_GATEWAY_TOKEN: 'two words' } })).code, 2);
    });

    it('say where no gateway is, or something that is none', async () => {
      const away = await runCli(['bindings', 'list', '--admin', 'http://127.0.0.1:1']);
      assert.equal(away.code, 1);
      assert.match(
        away.stderr,
        /no gateway answers at http:\/\/127\.0\.0\.1:1: connection refused\n {2}start one with sticky-gateway/,
      );
      assert.equal((await runCli(['status', '--admin', '127.0.0.1:1', '--json'])).error()['error'], 'no_gateway');
      const other = await run('bindings list', { env: { STICKY_GATEWAY_ADMIN: `http://127.0.0.1:${fixture.port}` } });
      assert.equal(other.code, 1);
      assert.doesNotMatch(other.stderr, /^\s+at /m);
      const tls = await run('status', { env: { STICKY_GATEWAY_ADMIN: `https://127.0.0.1:${fixture.adminPort}` } });
      assert.match(tls.stderr, /plain HTTP: try http:/);
      const web = http.createServer((_request, response) => response.end('<html>')).listen(0, '127.0.0.1');
      await once(web, 'listening');
      const { port } = web.address() as AddressInfo;
      assert.match(
        (await runCli(['bindings', 'list', '--admin', `127.0.0.1:${port}`])).stderr,
        /not as the admin listener/,
      );
      web.close();
    });
  });
});
