/** Files of bindings under slow readers, and imports into the table of an older gateway. */
import assert from 'node:assert/strict';
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, it } from 'node:test';
import { AdminCall } from '../../lib/admin/call.ts';
import { transferCalls } from '../../lib/admin/transfer.ts';
import type { ImportRow } from '../../lib/bindings/binding-import.ts';
import { PostgresImport } from '../../lib/bindings/postgres-import.ts';
import type { Binding, Service, Snapshot } from '../../lib/model.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { OLDER_TABLES, openDatabase } from '../support/postgres-store.ts';
import { connectRaw } from '../support/raw-http.ts';
import { waitUntil } from '../support/wait-until.ts';

const service = { id: 'demo', affinity: 'user', nodesById: new Map(), defaultNodeId: null } as unknown as Service;
const snapshot = { services: new Map([['demo', service]]) } as unknown as Snapshot;

describe('an export', () => {
  /** A server whose store never ends, and a client that reads nothing. */
  async function endless(clock: FakeClock) {
    let pages = 0;
    let over = false;
    const row: Binding = {
      serviceId: 'demo',
      userId: 'u',
      username: 'x'.repeat(200),
      nodeId: 'n1',
      epoch: 1,
      frozen: false,
    };
    const { exportFile } = transferCalls({
      registry: { snapshot },
      importer: { run: () => Promise.reject(new Error('not asked')) },
      store: {
        list: async () => {
          pages += 1;
          return { bindings: Array.from({ length: 1_000 }, () => row), next: String(pages) };
        },
      },
    });
    const server = http.createServer((request, response) => {
      const call = new AdminCall({
        request,
        response,
        params: { service: 'demo' },
        query: new URLSearchParams(),
        action: '',
        target: '',
        address: '127.0.0.1',
        requestId: 'r',
        clock,
      });
      void Promise.resolve(exportFile(call)).then(() => {
        over = true;
      });
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const raw = await connectRaw((server.address() as AddressInfo).port);
    raw.socket.pause();
    raw.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    await waitUntil('the export to wait for its reader', () => clock.pending === 1);
    return { raw, server, pages: () => pages, over: () => over };
  }

  it('asks for no more than its reader takes, and ends when the reader leaves', async () => {
    const clock = new FakeClock();
    const { raw, server, pages, over } = await endless(clock);
    const waiting = pages();
    for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
    assert.equal(pages(), waiting);
    raw.discards = true;
    raw.socket.resume();
    await waitUntil('more pages', () => pages() > waiting + 5);
    raw.reset();
    await waitUntil('the end', over);
    assert.equal(clock.pending, 0);
    server.close();
  });

  it('sends a reader away that stands still', async () => {
    const clock = new FakeClock();
    const { raw, server, over } = await endless(clock);
    clock.advance(60_000);
    await waitUntil('the end', over);
    assert.equal(clock.pending, 0);
    raw.reset();
    server.close();
  });
});

describe('an import into the table of an older gateway', () => {
  it('refuses ids that are no numbers, by line, and takes the others with all their digits', async () => {
    const { postgres, close } = await openDatabase({ prepare: OLDER_TABLES });
    try {
      const importer = new PostgresImport(postgres);
      const row = (line: number, userId: string): ImportRow => ({ line, userId, username: null, nodeId: 'old-1' });
      const run = (rows: readonly ImportRow[], write = true) =>
        importer.run(
          'old',
          (async function* () {
            yield rows;
          })(),
          () => write,
        );
      const refused = await run([
        row(1, '7'),
        row(2, 'abc'),
        row(3, '007'),
        row(4, '9223372036854775808'),
        row(5, '-1'),
      ]);
      assert.deepEqual(
        refused.faults.map(({ line }) => line),
        [2, 3, 4],
      );
      assert.equal(refused.faultCount, 3);
      const rows = [row(1, '1790000000000000001'), row(2, '1790000000000000002'), row(3, '1790000000000000002')];
      assert.equal((await run(rows, false)).inserted, 1);
      assert.equal((await run(rows)).inserted, 1, 'the first was there');
      assert.equal((await run(rows)).inserted, 0);
    } finally {
      await close();
    }
  });
});
