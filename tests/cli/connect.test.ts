/** Where commands look for the gateway, and with which certificate and token. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import * as https from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { FIRST, SECOND } from '../support/certificates.ts';
import { runCli } from '../support/cli.ts';

const TOKEN = 'token-0123456789abcdef';

describe('the way to the gateway', () => {
  const seen: { path: string | undefined; authorization: string | undefined }[] = [];
  let services: object[] = [];
  const answer: http.RequestListener = (request, response) => {
    seen.push({ path: request.url, authorization: request.headers.authorization });
    response.end(JSON.stringify({ services, bindings: [], next: null }));
  };
  const plain = http.createServer(answer);
  const secure = https.createServer(FIRST, answer);
  let folder: string;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sticky-cli-'));
    for (const server of [plain, secure]) {
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
    }
    await write('first.pem', FIRST.cert);
    await write('first.key', FIRST.key);
    await write('second.pem', SECOND.cert);
  });
  after(async () => {
    for (const server of [plain, secure]) {
      server.closeAllConnections();
      server.close();
    }
    await rm(folder, { recursive: true, force: true });
  });

  const portOf = (server: http.Server | https.Server) => (server.address() as AddressInfo).port;
  async function write(name: string, text: string): Promise<string> {
    await writeFile(join(folder, name), text);
    return join(folder, name);
  }
  const config = (admin: string) =>
    write('gateway.yaml', `admin: ${admin}\nservices: [{ id: demo, pathPrefix: /x, nodes: [] }]\n`);
  /** A call that gets as far as the list of services, which is empty. */
  async function look(args: readonly string[], env: Record<string, string> = {}) {
    seen.length = 0;
    const end = await runCli(['bindings', 'list', ...args], { env });
    return { ...end, arrived: seen[0] };
  }

  it('is the address of the file, of the option, or of the environment, in that order of nearness', async () => {
    const url = `http://127.0.0.1:${portOf(plain)}`;
    const away = 'http://127.0.0.1:1';
    assert.ok((await look([], { STICKY_GATEWAY_ADMIN: url })).arrived);
    const file = await config(`{ listen: "0.0.0.0:${portOf(plain)}" }`);
    assert.ok((await look(['--config', file], { STICKY_GATEWAY_ADMIN: away })).arrived);
    assert.ok((await look(['--admin', `127.0.0.1:${portOf(plain)}`, '--config', join(folder, 'none.yaml')])).arrived);
    const behind = await look(['--admin', `${url}/ops/`]);
    assert.equal(behind.arrived?.path, '/ops/api/services');
  });

  it('says what to do when the file does not tell the address', async () => {
    for (const [admin, pattern] of [
      ['{ listen: null }', /admin\.listen is null/],
      ['{ listen: "127.0.0.1:0" }', /port 0.*--admin URL/],
    ] as const) {
      const end = await look(['--config', await config(admin)]);
      assert.equal(end.code, 1);
      assert.match(end.stderr, pattern);
    }
  });

  it('takes the nearest token, and sends none of the file to another address', async () => {
    const url = `http://127.0.0.1:${portOf(plain)}`;
    const file = await config(
      `{ listen: "127.0.0.1:${portOf(plain)}", tokens: [{ name: a, role: viewer, token: viewer-${TOKEN} }, { name: b, role: admin, token: admin-${TOKEN} }] }`,
    );
    const kept = await write('token', `\n file-${TOKEN}\n`);
    const env = { STICKY_GATEWAY_TOKEN: `env-${TOKEN}` };
    const token = async (args: readonly string[], more: Record<string, string> = {}) =>
      (await look(args, more)).arrived?.authorization;
    assert.equal(await token(['--config', file]), `Bearer admin-${TOKEN}`);
    assert.equal(await token(['--config', file], env), `Bearer env-${TOKEN}`);
    assert.equal(await token(['--config', file, '--token-file', kept], env), `Bearer file-${TOKEN}`);
    assert.equal(await token(['--admin', url, '--token', `own-${TOKEN}`], env), `Bearer own-${TOKEN}`);
    assert.equal(await token(['--admin', url, '--config', file]), undefined);
    assert.equal((await look(['--token', 'x', '--token-file', kept])).code, 2);
    assert.match(
      (await look(['--token-file', join(folder, 'none')])).stderr,
      /--token-file .*none: there is no such file/,
    );
    assert.match((await look(['--token-file', await write('empty', '\n')])).stderr, /there is no token in it/);
  });

  it('leads to the only service that binds users, and asks for a name where there are several', async () => {
    const url = `http://127.0.0.1:${portOf(plain)}`;
    const named = (id: string, affinity: string) => ({ id, affinity, pathPrefix: `/${id}`, nodes: [] });
    try {
      assert.match((await look(['--admin', url])).stderr, /no service that binds users/);
      services = [named('plain', 'none'), named('demo', 'user')];
      await look(['--admin', url]);
      assert.equal(seen[1]?.path, '/api/services/demo/bindings?limit=1000');
      services = [named('a', 'user'), named('b', 'user')];
      const unclear = await look(['--admin', url]);
      assert.equal(unclear.code, 2);
      assert.match(unclear.stderr, /2 services: name one with --service \(a, b\)/);
      await look(['--admin', url, '--service', 'b', '--node', 'n&1']);
      assert.equal(seen[1]?.path, '/api/services/b/bindings?nodeId=n%261&limit=1000');
    } finally {
      services = [];
    }
  });

  it('trusts the certificate it is given, and no other', async () => {
    const url = `https://127.0.0.1:${portOf(secure)}`;
    const unknown = await look(['--admin', url, '--token', TOKEN]);
    assert.equal(unknown.code, 1);
    assert.equal(unknown.arrived, undefined, 'no token goes to a stranger');
    assert.match(unknown.stderr, /--ca FILE/);
    assert.equal((await look(['--admin', url, '--ca', join(folder, 'second.pem')])).arrived, undefined);
    assert.ok((await look(['--admin', url, '--ca', join(folder, 'first.pem')])).arrived);
    const file = await config(
      `{ listen: { host: 127.0.0.1, port: ${portOf(secure)}, tls: { cert: first.pem, key: first.key } } }`,
    );
    assert.ok((await look(['--config', file])).arrived);
  });
});
