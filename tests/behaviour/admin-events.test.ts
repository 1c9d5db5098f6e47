/** Server-sent events of the admin API: what changes is told as it changes, and clients that do not read cost nothing. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { AdminCall } from '../../lib/admin/call.ts';
import { AdminEvents } from '../../lib/admin/events.ts';
import { ADMIN_TOKENS, AdminClient, TOKENS } from '../support/admin-client.ts';
import { BackendNode } from '../support/backend-node.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { connectRaw, type RawConnection } from '../support/raw-http.ts';

describe('events of the admin API', () => {
  let stores: StoreSetup;
  let fixture: GatewayFixture;
  const n1 = new BackendNode('n1');

  before(async () => {
    await n1.start();
    stores = await openStores('embedded');
    fixture = await startGateway({
      stores,
      nodes: [n1],
      config: 'health: { failures: 1, interval: 50ms }',
      admin: ADMIN_TOKENS,
    });
  });
  after(async () => {
    await fixture?.stop();
    await stores?.close();
    await n1.stop();
  });

  const listen = async (): Promise<RawConnection> => {
    const raw = await connectRaw(fixture.adminPort);
    raw.write(`GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ${TOKENS.viewer}\r\n\r\n`);
    return raw;
  };

  it('tell of the registry and of health, to everybody who listens', async () => {
    const clients = [await listen(), await listen()];
    for (const client of clients) {
      assert.match(await client.takeUntil('\r\n\r\n'), /200 OK[\s\S]*text\/event-stream/);
      await client.takeUntil('event: hello');
    }
    await new AdminClient(fixture.adminPort).patch('/api/services/demo/nodes/n1', { weight: 3 });
    for (const client of clients) await client.takeUntil('event: registry');
    await n1.stop();
    for (const client of clients) {
      await client.takeUntil('event: health');
      await client.takeUntil('"to":"DOWN"}');
      client.end();
    }
  });
});

describe('AdminEvents', () => {
  const call = (write: (text: string) => void, behind = 0) => {
    const listeners: (() => void)[] = [];
    const response = {
      writableLength: behind,
      destroyed: false,
      writeHead: () => response,
      write: (text: string) => {
        write(text);
        return true;
      },
      end: () => response,
      once: (_event: string, listener: () => void) => listeners.push(listener),
      destroy: () => {
        response.destroyed = true;
        for (const listener of listeners) listener();
      },
    };
    return { call: { response, requestId: 'r' } as unknown as AdminCall, response };
  };
  const quiet = { subscribe: () => () => undefined };

  it('beats, drops who does not read, and takes no more than it can serve', () => {
    const clock = new FakeClock();
    const events = new AdminEvents({
      health: quiet,
      registry: { ...quiet, snapshot: undefined },
      clock,
      mostClients: 2,
    });
    events.start();
    const texts: string[] = [];
    const reader = call((text) => texts.push(text));
    const sleeper = call(() => undefined);
    events.open(reader.call);
    events.open(sleeper.call);
    assert.throws(() => events.open(call(() => undefined).call), { code: 'overloaded' });
    sleeper.response.writableLength = 70_000;
    clock.advance(15_000);
    assert.equal(texts.at(-1), ': beat\n\n');
    assert.equal(sleeper.response.destroyed, true);
    assert.equal(events.clients, 1);
    clock.advance(15_000);
    assert.equal(texts.filter((text) => text === ': beat\n\n').length, 2);
    events.stop();
    assert.equal(events.clients, 0);
    assert.equal(clock.pending, 0);
  });
});
