/** The small parts of the admin API by themselves: files of bindings, masking, the audit file, origins, tokens. */
import assert from 'node:assert/strict';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import type { AuditEntry } from '../../lib/admin/audit-log.ts';
import { Authenticator } from '../../lib/admin/auth.ts';
import { csvLine, type FileRecord, readCsv, readNdjson } from '../../lib/admin/binding-file.ts';
import { viewConfig } from '../../lib/admin/config-view.ts';
import { FileAudit } from '../../lib/admin/file-audit.ts';
import { refuseForeignOrigin } from '../../lib/admin/origins.ts';
import { loadConfig } from '../../lib/config/load.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { Seeded } from '../support/seeded.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';

async function collect(records: AsyncIterable<FileRecord>): Promise<FileRecord[]> {
  const found: FileRecord[] = [];
  for await (const record of records) found.push(record);
  return found;
}

async function* cutAt(text: string, sizes: () => number): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(text);
  for (let from = 0; from < bytes.length; ) {
    const size = sizes();
    yield bytes.subarray(from, from + size);
    from += size;
  }
}

describe('files of bindings', () => {
  it('come out as they went in, wherever the chunks end', async () => {
    const random = new Seeded(7);
    const texts = ['a', 'ä', '张三', '😀', ',', '"', '\n', '\r\n', ' ', '=1', "'", 'x'.repeat(50)];
    const word = () => Array.from({ length: 1 + random.below(4) }, () => random.pick(texts)).join('');
    for (let round = 0; round < 300; round += 1) {
      const rows = Array.from({ length: 1 + random.below(8) }, () => ({
        userId: random.oneIn(5) ? null : word(),
        username: random.oneIn(5) ? 'fallback' : word(),
        nodeId: random.pick(['n1', 'n2']),
      }));
      const text = `user_id,username,node_id\n${rows.map((row) => csvLine({ ...row, serviceId: 's', epoch: 1, frozen: false })).join('')}`;
      const found = await collect(readCsv(cutAt(text, () => 1 + random.below(5))));
      const bare = found.map((record) =>
        'fault' in record ? record : { userId: record.userId, username: record.username, nodeId: record.nodeId },
      );
      assert.deepEqual(bare, rows, JSON.stringify(text));
    }
  });

  it('count lines as an editor does', async () => {
    const text = '\ufeffuser_id,username,node_id\r\na,"two\r\nlines",n1\r\n\r\nb,"x",n1\rc,,n1\nd,"",n1';
    const lines = (await collect(readCsv(cutAt(text, () => 3)))).map(({ line }) => line);
    assert.deepEqual(lines, [2, 5, 6, 7]);
    const ndjson = await collect(readNdjson(cutAt('\ufeff{"userId":"a"}\r\n\n{"user_id":7}', () => 2)));
    assert.deepEqual(
      ndjson.map((record) => ('fault' in record ? record : [record.line, record.userId])),
      [
        [1, 'a'],
        [3, '7'],
      ],
    );
  });

  it('may name their columns in any order, or not at all', async () => {
    const [named] = await collect(readCsv(cutAt('node_id,user_id\nn1,u1\n', () => 99)));
    assert.deepEqual(named, { line: 2, userId: 'u1', username: null, nodeId: 'n1' });
    const [bare] = await collect(readCsv(cutAt('u1,alice', () => 99)));
    assert.deepEqual(bare, { line: 1, userId: 'u1', username: 'alice', nodeId: null });
    assert.deepEqual(await collect(readCsv(cutAt('user_id,username', () => 99))), []);
    assert.deepEqual(await collect(readCsv(cutAt('', () => 99))), []);
  });
});

describe('the configuration as it is shown', () => {
  it('holds none of its secrets', () => {
    const secrets = [
      'pg-pass-word',
      'redis-pass-word',
      'jwt-secret-of-32-characters-xxxxxxx',
      'admin-token-0123456789',
      'other-redis-word',
      'param-word',
    ];
    const [postgres, redis, jwt, token, other, parameter] = secrets;
    const loaded = loadConfig(
      `store: { postgres: { url: "postgres://gw:${postgres}@db:5432/gw?password=${parameter}" }, redis: { url: "redis://:${redis}@cache:6379/1" } }
identity:
  resolvers:
    - jwt: { secret: "${jwt}", algorithms: [HS256] }
    - saToken: { redis: { url: "redis://:${other}@sa:6379" } }
admin: { tokens: [{ name: ops, role: admin, token: ${token} }] }
services: [{ id: s, pathPrefix: /s, nodes: [] }]
`,
      'x.yaml',
      {},
    );
    assert.ok('options' in loaded, JSON.stringify(loaded));
    const shown = JSON.stringify(viewConfig(loaded.options));
    for (const secret of secrets) assert.ok(!shown.includes(secret), secret);
    assert.ok(shown.includes('postgres://***@db:5432/gw?***'), shown);
    assert.ok(shown.includes('"name":"ops","role":"admin","token":"***"'));
    assert.ok(shown.includes('redis://***@cache:6379/1'));
  });
});

describe('the audit file', () => {
  const entry = (target: string): AuditEntry => ({
    timeMs: 1_700_000_000_000,
    actor: 'ops',
    address: '127.0.0.1',
    action: 'node.change',
    target,
    outcome: 'done',
    before: null,
    after: { weight: 1 },
    reason: null,
    requestId: 'r',
  });

  it('keeps entries over restarts, past a torn line, newest first', async (t) => {
    const folder = await temporaryFolder(t);
    const first = new FileAudit(folder);
    await Promise.all(['a', 'b', 'c'].map((target) => first.record(entry(target))));
    await fs.appendFile(join(folder, 'audit.jsonl'), '{"id":"4","tor');
    const again = new FileAudit(folder);
    await again.record(entry('d'));
    const page = await again.page(2, undefined);
    assert.deepEqual(
      page.entries.map(({ id, target }) => [id, target]),
      [
        ['4', 'd'],
        ['3', 'c'],
      ],
    );
    assert.deepEqual(
      (await again.page(2, page.next ?? undefined)).entries.map(({ target }) => target),
      ['b', 'a'],
    );
    assert.equal((await again.page(4, undefined)).next, null);
    assert.equal((await fs.stat(join(folder, 'audit.jsonl'))).mode & 0o777, 0o600);
  });

  it('does not grow for ever', async (t) => {
    const folder = await temporaryFolder(t);
    const audit = new FileAudit(folder, 2_000);
    for (let index = 1; index <= 40; index += 1) await audit.record(entry(`t${index}`));
    const sizes = await Promise.all(
      (await fs.readdir(folder)).map(async (name) => (await fs.stat(join(folder, name))).size),
    );
    assert.ok(sizes.reduce((sum, size) => sum + size, 0) < 5_000);
    const { entries } = await audit.page(1_000, undefined);
    assert.deepEqual(
      entries.slice(0, 3).map(({ target }) => target),
      ['t40', 't39', 't38'],
    );
    assert.deepEqual(
      entries.map(({ id }) => Number(id)),
      entries.map((_, index) => 40 - index),
    );
    await new FileAudit(folder, 2_000).record(entry('next'));
    assert.equal((await audit.page(1, undefined)).entries[0]?.id, '41');
  });
});

describe('who may come in', () => {
  it('forgets the addresses heard of longest ago, and no address for long', () => {
    const clock = new FakeClock();
    const tokens = [{ name: 'ops', role: 'admin', token: 'a-token-of-16-characters' }] as const;
    const authenticator = new Authenticator(tokens, clock);
    const wrong = (address: string) => {
      try {
        authenticator.authenticate(address, 'Bearer wrong', false);
      } catch (error) {
        return (error as { code: string }).code;
      }
      return 'in';
    };
    for (let attempt = 0; attempt < 10; attempt += 1) assert.equal(wrong('10.0.0.1'), 'unauthorized');
    assert.equal(wrong('10.0.0.1'), 'too_many_requests');
    assert.equal(authenticator.authenticate('10.0.0.2', 'bearer  a-token-of-16-characters', true).name, 'ops');
    for (let other = 0; other < 10_001; other += 1) wrong(`10.1.${other >> 8}.${other & 255}`);
    assert.equal(wrong('10.0.0.1'), 'unauthorized');
    clock.advance(60_000);
    assert.equal(wrong('10.0.0.1'), 'unauthorized');
  });

  it('compares origins with the scheme and the port', () => {
    const refused = (fields: Parameters<typeof refuseForeignOrigin>[0], anyHost = true) => {
      try {
        refuseForeignOrigin(fields, 'https', anyHost);
      } catch {
        return true;
      }
      return false;
    };
    assert.equal(refused({ host: 'gw:9090', origin: 'https://GW:9090' }), false);
    assert.equal(refused({ host: 'gw:9090', origin: 'http://gw:9090' }), true);
    assert.equal(refused({ host: 'gw:9090', origin: 'https://gw' }), true);
    assert.equal(refused({ host: 'gw:9090' }), false);
    assert.equal(refused({ host: 'gw:9090' }, false), true);
    assert.equal(refused({ host: '[::1]:9090' }, false), false);
    assert.equal(refused({}, false), true);
  });
});
