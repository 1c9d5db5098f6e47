/** A push that is cut off in the middle: what is known to be applied, what is not known, and what was not tried. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { runCli } from '../support/cli.ts';

type Json = Record<string, unknown>;

describe('apply, cut off in the middle', () => {
  let server: http.Server;
  let folder: string;
  let posts = 0;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'sticky-cli-'));
    server = http.createServer((request, response) => {
      if (request.method === 'GET') {
        response.end(JSON.stringify(request.url === '/api/routes' ? { routes: [] } : { services: [] }));
        return;
      }
      posts += 1;
      request.resume();
      if (posts % 2 === 0) request.socket.resetAndDestroy();
      else response.writeHead(201).end('{}');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  after(async () => {
    server.closeAllConnections();
    server.close();
    await rm(folder, { recursive: true, force: true });
  });

  it('tells each change apart, and exits 1', async () => {
    const file = join(folder, 'gateway.yaml');
    const services = ['a', 'b', 'c'].map((id) => `  - { id: ${id}, pathPrefix: /${id}, nodes: [] }`).join('\n');
    const { port } = server.address() as AddressInfo;
    await writeFile(file, `admin: { listen: "127.0.0.1:${port}" }\nservices:\n${services}\n`);
    const end = await runCli(['apply', '--config', file, '--yes']);
    assert.equal(end.code, 1);
    const lines = end.stdout.split('\n').filter((line) => /: add service/.test(line));
    assert.equal(lines[0], 'done: add service a');
    assert.match(lines[1] ?? '', /^not known whether applied: add service b: .*broke the connection off/);
    assert.equal(lines[2], 'not applied: add service c: not tried, see above');
    assert.match(end.stderr, /applied 1 of 3 changes, 2 not/);
    const json = (await runCli(['apply', '--config', file, '--yes', '--json'])).json();
    assert.deepEqual(
      (json['changes'] as Json[]).map(({ status }) => status),
      ['applied', 'unknown', 'skipped'],
    );
  });
});
