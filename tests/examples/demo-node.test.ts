/** The demo node as a real process: what it keeps, what it refuses, and that all pages show the same lines to try. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs/promises';
import * as http from 'node:http';
import * as path from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { type Answer, call, postJson } from '../support/http-client.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';
import { waitUntil } from '../support/wait-until.ts';

const SCRIPT = findPackageFile('examples/demo-node.mjs');
const MAX_BODY_BYTES = 65_536;
/** How long the node waits at its end for requests under way. */
const GRACE_MS = 2_000;

interface Ended {
  readonly code: number | null;
  readonly stderr: string;
}

/** Ends with its test at the latest. */
class DemoNode {
  port = 0;
  readonly #ended: Promise<Ended>;
  readonly #child: ChildProcess;
  #stdout = '';
  #stderr = '';
  #over = false;

  constructor(context: TestContext, args: readonly string[]) {
    const child = spawn(process.execPath, [SCRIPT, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    this.#child = child;
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      this.#stdout += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr += text;
    });
    this.#ended = new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code) => {
        this.#over = true;
        resolve({ code, stderr: this.#stderr });
      });
    });
    context.after(async () => {
      child.kill('SIGKILL');
      await this.#ended;
    });
  }

  /** On a free port, which it is asked to print. */
  static async start(context: TestContext, data: string, id = 'node-1'): Promise<DemoNode> {
    const node = new DemoNode(context, ['--id', id, '--port', '0', '--data', data]);
    node.port = await waitUntil('the demo node to listen', () => {
      if (node.#over) throw new Error(`the demo node ended: ${node.#stderr}`);
      const port = /listens on http:\/\/127\.0\.0\.1:(\d+) \(pid \d+\)/.exec(node.#stdout)?.[1];
      return port === undefined ? undefined : Number(port);
    });
    return node;
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  /** Throws if it goes on running. */
  async end(): Promise<Ended> {
    await waitUntil('the demo node to end', () => this.#over);
    return this.#ended;
  }

  signal(signal: NodeJS.Signals): Promise<Ended> {
    this.#child.kill(signal);
    return this.end();
  }

  logIn(username: string, password = 'secret'): Promise<Answer> {
    return postJson(this.port, '/js/a/auth/login', { username, password });
  }

  async tokenOf(username: string): Promise<string> {
    const answer = await this.logIn(username);
    const token = (answer.json()['data'] as Record<string, unknown> | undefined)?.['token'];
    assert.equal(typeof token, 'string', answer.text);
    return token as string;
  }

  get(page: string, token: string): Promise<Answer> {
    return call(this.port, `/js/a${page}`, { headers: { 'x-token': token } });
  }

  addNote(token: string, text: unknown): Promise<Answer> {
    return postJson(this.port, '/js/a/notes', { text }, { 'x-token': token });
  }
}

/** The digits as they stand in the answer: a JavaScript number would not hold them. */
function userIdIn(answer: Answer): string {
  const digits = /"userId":(\d+),/.exec(answer.text)?.[1];
  assert.ok(digits, answer.text);
  return digits;
}

describe('the demo node', () => {
  it('lets a user in with a token and with the user id that every node gives', async (context) => {
    const data = await temporaryFolder(context);
    const one = await DemoNode.start(context, data, 'node-1');
    const two = await DemoNode.start(context, data, 'node-2');
    const first = await one.logIn('alice');
    const second = await two.logIn('Alice');
    assert.equal(first.status, 200);
    assert.equal(first.json()['code'], 200);
    assert.equal((first.json()['data'] as Record<string, unknown>)['username'], 'alice');
    assert.match(userIdIn(first), /^[1-9]\d{18}$/);
    assert.ok(BigInt(userIdIn(first)) < 2n ** 63n, 'it fits a Java long');
    assert.equal(userIdIn(second), userIdIn(first));
    assert.notEqual(userIdIn(await one.logIn('bob')), userIdIn(first));
  });

  it('says in a 200 that a password is wrong, and then gives no token', async (context) => {
    const node = await DemoNode.start(context, await temporaryFolder(context));
    const answer = await node.logIn('alice', 'wrong');
    assert.equal(answer.status, 200);
    assert.equal(answer.json()['code'], 40001);
    assert.equal('data' in answer.json(), false);
    assert.equal((await postJson(node.port, '/js/a/auth/login', {})).json()['code'], 40001, 'no username');
  });

  it('knows neither the tokens nor the notes of another node, and says who it is', async (context) => {
    const data = await temporaryFolder(context);
    const home = await DemoNode.start(context, data, 'node-1');
    const other = await DemoNode.start(context, data, 'node-2');
    const token = await home.tokenOf('alice');
    await home.addNote(token, 'buy milk');
    const wrong = await other.get('/notes', token);
    assert.equal(wrong.status, 401);
    assert.equal(wrong.json()['node'], 'node-2');
    const otherToken = await other.tokenOf('alice');
    assert.deepEqual((await other.get('/notes', otherToken)).json(), { node: 'node-2', user: 'alice', notes: [] });
    assert.equal((await call(home.port, '/js/a/notes')).status, 401, 'without a token');
    assert.equal((await home.get('/notes', '__proto__')).status, 401);
  });

  it('keeps tokens and notes when it is killed and started again', async (context) => {
    const data = await temporaryFolder(context);
    const before = await DemoNode.start(context, data);
    const token = await before.tokenOf('alice');
    const proto = await before.tokenOf('__proto__');
    await before.addNote(token, 'buy milk');
    await before.signal('SIGKILL');
    const node = await DemoNode.start(context, data);
    assert.deepEqual((await node.get('/notes', token)).json(), { node: 'node-1', user: 'alice', notes: ['buy milk'] });
    assert.deepEqual((await node.get('/whoami', token)).json(), { node: 'node-1', user: 'alice', pid: node.pid });
    assert.equal((await node.get('/whoami', proto)).json()['user'], '__proto__');
  });

  it('keeps every one of the logins and notes that arrive together', async (context) => {
    const data = await temporaryFolder(context);
    const before = await DemoNode.start(context, data);
    const tokens = await Promise.all(Array.from({ length: 20 }, () => before.tokenOf('alice')));
    const texts = tokens.map((_, index) => `note ${index}`);
    await Promise.all(tokens.map((token, index) => before.addNote(token, texts[index])));
    await before.signal('SIGKILL');
    const node = await DemoNode.start(context, data);
    for (const token of tokens) {
      const { notes } = (await node.get('/notes', token)).json() as { notes: string[] };
      assert.deepEqual([...notes].sort(), [...texts].sort());
    }
  });

  it('keeps no user outside its folder, whatever they are called', async (context) => {
    const parent = await temporaryFolder(context);
    const node = await DemoNode.start(context, path.join(parent, 'data'));
    for (const name of ['../../outside', '/etc/passwd', '..', 'a\u0000b', 'x'.repeat(5_000), '用户']) {
      const token = await node.tokenOf(name);
      assert.equal((await node.addNote(token, 'here')).status, 200, name.slice(0, 20));
    }
    assert.deepEqual(await fs.readdir(parent), ['data']);
    assert.deepEqual(await fs.readdir(path.join(parent, 'data')), ['node-1']);
    const files = await fs.readdir(path.join(parent, 'data', 'node-1'));
    assert.equal(files.filter((file) => /^notes-\d{19}\.json$/.test(file)).length, 6);
    assert.deepEqual(
      files.filter((file) => !file.startsWith('notes-')),
      ['tokens.json'],
    );
  });

  it('refuses bodies that are too large or no JSON object, and the connection stays usable', async (context) => {
    const node = await DemoNode.start(context, await temporaryFolder(context));
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    context.after(() => agent.destroy());
    const post = (body: string) => call(node.port, '/js/a/auth/login', { method: 'POST', body, agent });
    const login = JSON.stringify({ username: 'alice', filler: '' });
    const bodyOf = (bytes: number) => login.replace('""', `"${'x'.repeat(bytes - login.length)}"`);
    assert.equal((await post(bodyOf(MAX_BODY_BYTES + 1))).status, 413);
    assert.equal((await post('x'.repeat(40 * MAX_BODY_BYTES))).status, 413);
    for (const body of ['{', '', 'null', '7']) assert.equal((await post(body)).status, 400, body);
    const largest = await post(bodyOf(MAX_BODY_BYTES));
    assert.equal(largest.json()['code'], 200);
    const token = await node.tokenOf('alice');
    assert.equal((await node.addNote(token, 7)).status, 400);
    assert.deepEqual((await node.get('/notes', token)).json()['notes'], []);
  });

  it('answers probes, and targets that it does not know', async (context) => {
    const node = await DemoNode.start(context, await temporaryFolder(context));
    const health = await call(node.port, '/health');
    assert.equal(health.status, 200);
    assert.equal(health.json()['node'], 'node-1');
    const token = await node.tokenOf('alice');
    assert.equal((await node.get('/elsewhere', token)).status, 404);
    assert.equal((await call(node.port, '//', { headers: { 'x-token': token } })).status, 404);
    assert.equal(
      (await call(node.port, '/js/a/notes', { method: 'DELETE', headers: { 'x-token': token } })).status,
      404,
    );
    assert.equal((await node.get('/whoami?a=b', token)).status, 200);
  });

  it('goes on after a write that failed, and gives out no token that it could not keep', async (context) => {
    const data = await temporaryFolder(context);
    const node = await DemoNode.start(context, data);
    // A folder in the place of the temporary file: not even root can write it.
    const obstacle = path.join(data, 'node-1', 'tokens.json.tmp');
    await fs.mkdir(obstacle);
    const failed = await node.logIn('alice');
    assert.equal(failed.status, 500);
    assert.equal(failed.text.includes(data), false, 'paths stay inside');
    await fs.rmdir(obstacle);
    await node.tokenOf('alice');
    const kept = JSON.parse(await fs.readFile(path.join(data, 'node-1', 'tokens.json'), 'utf8'));
    assert.deepEqual(Object.values(kept), ['alice']);
  });

  it('ticks at once, and ends its streams and itself in order on SIGTERM', async (context) => {
    const node = await DemoNode.start(context, await temporaryFolder(context));
    const token = await node.tokenOf('alice');
    let seen = '';
    const stream = new Promise<void>((resolve, reject) => {
      const options = { host: '127.0.0.1', port: node.port, path: '/js/a/events', headers: { 'x-token': token } };
      http
        .get(options, (response) => {
          assert.equal(response.headers['content-type'], 'text/event-stream');
          response.setEncoding('utf8').on('data', (text: string) => {
            seen += text;
          });
          response.once('end', resolve).once('error', reject);
        })
        .once('error', reject);
    });
    await waitUntil('the first tick', () => seen.startsWith('data: {"node":"node-1","tick":1}\n\n'));
    const signalledAtMs = performance.now();
    assert.equal((await node.signal('SIGTERM')).code, 0);
    await stream;
    const tookMs = performance.now() - signalledAtMs;
    assert.ok(tookMs < GRACE_MS, `waited ${tookMs} ms for connections that nobody uses`);
  });

  it('names the port that is taken', async (context) => {
    const data = await temporaryFolder(context);
    const first = await DemoNode.start(context, data);
    const { code, stderr } = await new DemoNode(context, ['--port', String(first.port), '--data', data]).end();
    assert.equal(code, 1);
    assert.equal(stderr, `demo-node: node-1 cannot listen on port ${first.port}: it is taken\n`);
  });

  for (const [args, complaint] of [
    [['--id', '../outside'], /--id must be a plain name, not '\.\.\/outside'/],
    [['--id', '..'], /--id must be a plain name, not '\.\.'/],
    [['--port', '65536'], /--port must be 0 to 65535, not '65536'/],
    [['--port', 'http'], /--port must be 0 to 65535, not 'http'/],
    [['--colour', 'red'], /Unknown option '--colour'/],
  ] as const) {
    it(`does not start with ${args.join(' ')}`, async (context) => {
      const data = await temporaryFolder(context);
      const { code, stderr } = await new DemoNode(context, ['--data', data, ...args]).end();
      assert.equal(code, 2);
      assert.match(stderr, complaint);
      assert.equal(stderr.includes('\n    at '), false, 'no stack');
      assert.deepEqual(await fs.readdir(data), []);
    });
  }
});

describe('the lines to try', () => {
  it('are the same in the demo and in both READMEs', async () => {
    const demo = await fs.readFile(findPackageFile('examples/demo.mjs'), 'utf8');
    const printed = /const LINES = `([\s\S]*?)(?<!\\)`;/.exec(demo)?.[1]?.replace(/\\([\\`$])/g, '$1') ?? '';
    const expected = commandsIn(printed);
    assert.equal(expected.filter((line) => line.includes('curl')).length, 7, printed);
    for (const name of ['README.md', 'README.zh-CN.md']) {
      const text = await fs.readFile(findPackageFile(name), 'utf8');
      const block = /```sh\n(# 1\. [\s\S]*?)```/.exec(text)?.[1] ?? '';
      assert.deepEqual(commandsIn(block), expected, name);
    }
  });
});

/** Without the comments, which are in two languages, and without what stands around the steps. */
function commandsIn(text: string): string[] {
  const steps = text.slice(text.indexOf('# 1. ')).split(/\nThe node of step/)[0] ?? '';
  return steps
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '' && !line.startsWith('#'));
}
