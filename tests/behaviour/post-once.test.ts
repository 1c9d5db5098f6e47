/** A request with a body never reaches a node twice, whenever the node breaks off and whatever connection it came on. */
import assert from 'node:assert/strict';
import type * as net from 'node:net';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { chunked, fieldOf, ok, type RawConnection } from '../support/raw-http.ts';
import { Seeded } from '../support/seeded.ts';

const PHASES = [
  'connect',
  'first byte',
  'head',
  'part of the body',
  'body',
  'part of a head',
  'head only',
  'part of the answer',
  'none',
] as const;
type Phase = (typeof PHASES)[number];
const ROUNDS = 500;
const BODY = 'x'.repeat(40_000);

describe('a POST', () => {
  const forwarding = new Forwarding();
  /** Ids of the requests of which at least a head came, one entry for each time. */
  const journal: string[] = [];
  let phase: Phase = 'none';
  let byReset = false;

  const leave = (connection: RawConnection): void => {
    if (byReset) connection.reset();
    else connection.socket.destroy();
  };

  async function play(connection: RawConnection): Promise<void> {
    for (;;) {
      await connection.until('a byte', () => connection.unread !== '', 60_000);
      if (phase === 'first byte') {
        const id = /X-Id: (\S+)/.exec(connection.unread)?.[1];
        if (id !== undefined) journal.push(id);
        return leave(connection);
      }
      const head = await connection.readHead();
      const id = fieldOf(head.fields, 'x-id');
      if (id !== undefined) journal.push(id);
      // Anything but the request under test, which fills the pool, is answered.
      const now = id === undefined ? 'none' : phase;
      if (now === 'head') return leave(connection);
      if (now === 'part of the body') {
        await connection.until('a part', () => connection.unread !== '');
        return leave(connection);
      }
      await connection.readBody(head);
      if (now === 'body') return leave(connection);
      if (now === 'part of a head') connection.write('HTTP/1.1 200 OK\r\nContent-Le');
      if (now === 'head only') connection.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n');
      if (now === 'part of the answer') connection.write('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345');
      if (now !== 'none') {
        // Half of the time what was written is out before the connection breaks.
        if (!byReset) await new Promise((resolve) => setImmediate(resolve));
        return leave(connection);
      }
      connection.write(ok());
    }
  }

  before(async () => {
    await forwarding.start();
    const { node } = forwarding;
    const accept = node.onConnect.bind(node);
    node.onConnect = (socket: net.Socket) => {
      if (phase === 'connect') socket.resetAndDestroy();
      else accept(socket);
    };
  });
  after(() => forwarding.stop());

  it(`reaches the node at most once in ${ROUNDS} rounds of every kind of failure`, async () => {
    const { node } = forwarding;
    const random = new Seeded(20_261_019);
    const statuses = new Map<Phase, Set<number | string>>();
    for (let round = 0; round < ROUNDS; round += 1) {
      phase = 'none';
      node.restart(play);
      const client = await forwarding.client();
      const kept = random.oneIn(2);
      if (kept) {
        client.write('GET /app/warm HTTP/1.1\r\nHost: h\r\n\r\n');
        await client.readAnswer();
      }
      phase = random.pick(PHASES);
      byReset = random.oneIn(2);
      const id = `id-${round}`;
      const method = random.pick(['POST', 'PATCH', 'PUT']);
      const body = BODY.slice(0, 1 + random.below(3) * 19_999);
      const framed = random.oneIn(2)
        ? `Content-Length: ${body.length}\r\n\r\n${body}`
        : `Transfer-Encoding: chunked\r\n\r\n${chunked(body)}`;
      const request = `${method} /app/x HTTP/1.1\r\nHost: h\r\nX-Id: ${id}\r\n${framed}`;
      const cut = random.oneIn(2) ? request.length : random.below(request.length);
      client.write(request.slice(0, cut));
      if (cut < request.length) await new Promise((resolve) => setImmediate(resolve));
      client.write(request.slice(cut));
      let status: number | string;
      try {
        status = (await client.readAnswer(method)).status;
      } catch {
        status = await client.done();
      }
      const seen = statuses.get(phase) ?? new Set();
      statuses.set(phase, seen.add(status));
      const times = journal.filter((each) => each === id).length;
      assert.ok(times <= 1, `round ${round}: ${times} times, ${phase}, ${kept ? 'kept' : 'fresh'}, answered ${status}`);
      if (phase === 'none') assert.equal(status, 200);
      else assert.notEqual(status, 200, `round ${round}: ${phase}`);
      client.socket.destroy();
    }
    phase = 'none';
    assert.deepEqual([...statuses.keys()].sort(), [...PHASES].sort(), 'every phase was played');
    assert.deepEqual(node.faults, []);
    await forwarding.serves();
    // A repeat that comes late would be here by now.
    assert.equal(new Set(journal).size, journal.length);
  });
});
