/** PostgresListener on a connection that is cut, silenced, refused and stopped. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { type Logger, silentLogger } from '../../lib/observe/log.ts';
import { PostgresListener } from '../../lib/stores/postgres-listener.ts';
import type { Clock, Timer } from '../../lib/support/clock.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { type PostgresServer, runSql, startPostgres } from '../support/postgres-server.ts';
import { postgresOptions } from '../support/postgres-store.ts';
import { TcpGate } from '../support/tcp-gate.ts';

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

/** Also remembers the delays it was asked for: a heartbeat's next one tells that this one was answered. */
class RecordingClock extends FakeClock {
  readonly delays: number[] = [];

  override after(delayMs: number, callback: () => void): Timer {
    this.delays.push(delayMs);
    return super.after(delayMs, callback);
  }

  get heartbeats(): number {
    return this.delays.filter((delayMs) => delayMs === 10_000).length;
  }
}

describe('PostgresListener', () => {
  let server: PostgresServer;
  let gate: TcpGate;
  const notify = (payload: string) => runSql(server.url, `SELECT pg_notify('odd "name"', '${payload}')`);
  const listen = (clock?: Clock, logger: Logger = silentLogger, port = gate.port) => {
    const heard: string[] = [];
    const state = { reconnects: 0, losses: 0 };
    const listener = new PostgresListener({
      postgres: postgresOptions(`postgres://postgres@127.0.0.1:${port}/postgres`, { queryTimeoutMs: 3_000 }),
      channels: ['odd "name"', 'second'],
      onMessage: (channel, payload) => heard.push(`${channel}: ${payload}`),
      onReconnect: () => {
        state.reconnects += 1;
      },
      onLost: () => {
        state.losses += 1;
      },
      logger,
      ...(clock ? { clock } : {}),
    });
    listener.start();
    return { listener, heard, state };
  };
  before(async () => {
    server = await startPostgres();
    gate = await TcpGate.open(server.port);
  });
  after(async () => {
    await gate.close();
    await server.dispose();
  });

  test('hears every channel once it says that it listens', async () => {
    const { listener, heard, state } = listen();
    assert.equal(listener.connected, false);
    await until(() => state.reconnects === 1);
    assert.equal(listener.connected, true);
    await notify('one');
    await runSql(server.url, 'NOTIFY second');
    await until(() => heard.length === 2);
    assert.deepEqual(heard, ['odd "name": one', 'second: ']);
    listener.stop();
  });

  test('comes back by itself after the connection was cut and says so', async () => {
    const { listener, heard, state } = listen();
    await until(() => state.reconnects === 1);
    assert.equal(state.losses, 0);
    gate.cut();
    await until(() => state.reconnects === 2);
    assert.ok(state.losses >= 1);
    await notify('after the cut');
    await until(() => heard.length === 1);
    listener.stop();
  });

  test('notices by its heartbeat that the other side fell silent', async () => {
    const clock = new RecordingClock();
    const { listener, state } = listen(clock);
    await until(() => state.reconnects === 1);
    const accepted = gate.accepted;
    clock.advance(10_000);
    await until(() => clock.heartbeats === 2);
    gate.silence();
    clock.advance(10_000);
    assert.equal(listener.connected, true);
    await clock.advanceAsync(3_000);
    assert.equal(listener.connected, false);
    gate.unsilence();
    clock.advance(5_000);
    await until(() => state.reconnects === 2);
    assert.equal(gate.accepted, accepted + 1);
    listener.stop();
    assert.equal(clock.pending, 0);
  });

  test('keeps its heartbeat going while the other side answers', async () => {
    const clock = new RecordingClock();
    const { listener, state } = listen(clock);
    await until(() => state.reconnects === 1);
    for (let beat = 1; beat <= 3; beat += 1) {
      assert.equal(clock.heartbeats, beat);
      clock.advance(10_000);
      await until(() => clock.heartbeats === beat + 1);
    }
    clock.advance(9_999);
    assert.equal(state.reconnects, 1);
    assert.equal(listener.connected, true);
    listener.stop();
  });

  test('waits longer between attempts, up to five seconds, while it is refused', async () => {
    const clock = new FakeClock();
    const waits: number[] = [];
    const logger: Logger = {
      ...silentLogger,
      warn: (event, fields) => {
        if (event === 'postgres_listener_lost') waits.push(Number(fields?.retryInMs));
      },
    };
    const { listener } = listen(clock, logger, 1);
    for (let attempt = 1; attempt <= 9; attempt += 1) {
      await until(() => waits.length === attempt && clock.pending === 1);
      clock.advance(5_000);
    }
    waits.forEach((waitMs, index) => {
      const wholeMs = Math.min(5_000, 100 * 2 ** index);
      assert.ok(waitMs >= wholeMs / 2 && waitMs <= wholeMs, `wait ${index}: ${waitMs}`);
    });
    listener.stop();
  });

  test('starts once, stops at any moment, and hears nothing afterwards', async () => {
    const early = listen();
    early.listener.start();
    early.listener.stop();
    early.listener.stop();
    const { listener, heard, state } = listen();
    await until(() => state.reconnects === 1);
    listener.stop();
    assert.equal(listener.connected, false);
    await notify('too late');
    const accepted = gate.accepted;
    await new Promise((resolve) => setTimeout(resolve, 300));
    assert.deepEqual(heard, []);
    assert.equal(early.state.reconnects, 0);
    assert.equal(gate.accepted, accepted);
    listener.start();
    await until(() => state.reconnects === 2);
    listener.stop();
  });
});
