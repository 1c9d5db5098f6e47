/**
 * Requests and answers with mistakes in them, by the thousand and repeatable: the gateway never falls, every exchange
 * ends, and nobody is given an answer that was meant for somebody else. `FUZZ_SEED` and `FUZZ_MS` try others, longer.
 */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Forwarding } from '../support/forwarding.ts';
import { answering, chunked, ok, type RawConnection } from '../support/raw-http.ts';
import { Seeded } from '../support/seeded.ts';

const SEED = Number(process.env['FUZZ_SEED'] ?? 1);
const BUDGET_MS = Number(process.env['FUZZ_MS'] ?? 5_000);
/** The gateway's own time-outs are shorter; an exchange that takes longer hangs. */
const EXCHANGE_MS = 6_000;
const PARALLEL = 16;

const PIECES = [
  '\r\n',
  '\n',
  '\r',
  '\0',
  ' ',
  '\t',
  ':',
  ';',
  ',',
  '%',
  '%00',
  '/..',
  '\\',
  '"',
  '\xff',
  '\x7f',
  '0',
  '-1',
  '+1',
  'Content-Length: 5\r\n',
  'Content-Length: 0\r\n',
  'Transfer-Encoding: chunked\r\n',
  'Transfer-Encoding: gzip\r\n',
  'Connection: close\r\n',
  'Connection: Upgrade\r\nUpgrade: x\r\n',
  'Connection: keep-alive, host\r\n',
  'Host: other\r\n',
  'Expect: 100-continue\r\n',
  'Trailer: X\r\n',
  'TE: trailers\r\n',
  'X: y\r\n z\r\n',
  '0\r\n\r\n',
  '5\r\nhello\r\n',
  'ffffffff\r\n',
  'HTTP/1.0',
  'HTTP/1.1',
  'HTTP/2.0',
  '*',
  'CONNECT ',
  'HEAD ',
  'OPTIONS ',
  'http://other/app/',
  'HTTP/1.1 100 Continue\r\n\r\n',
  'HTTP/1.1 101 Switching Protocols\r\n\r\n',
  'HTTP/1.1 204 No Content\r\n\r\n',
  ' 304 ',
  ' 999 ',
  ' 000 ',
];

/** Changes a message in a few places: bytes flipped, taken out, put in twice, pieces of HTTP put in. */
function damaged(random: Seeded, text: string): string {
  let out = text;
  for (let count = random.below(4); count > 0; count -= 1) {
    const at = random.below(out.length + 1);
    const length = random.below(8);
    switch (random.below(6)) {
      case 0:
        out = out.slice(0, at) + String.fromCharCode(random.below(256)) + out.slice(at + 1);
        break;
      case 1:
        out = out.slice(0, at) + out.slice(at + length);
        break;
      case 2:
        out = out.slice(0, at) + out.slice(at, at + length) + out.slice(at);
        break;
      case 3:
        out = out.slice(0, at);
        break;
      default:
        out = out.slice(0, at) + random.pick(PIECES) + out.slice(at);
    }
  }
  return out;
}

function soundRequest(random: Seeded, nonce: string, version = random.oneIn(5) ? '1.0' : '1.1'): string {
  const method = random.pick(['GET', 'GET', 'POST', 'PUT', 'HEAD', 'DELETE', 'OPTIONS']);
  const body = 'b'.repeat(random.below(3) * random.below(2_000));
  const framed =
    body === ''
      ? '\r\n'
      : version === '1.1' && random.oneIn(2)
        ? `Transfer-Encoding: chunked\r\n\r\n${chunked(body)}`
        : `Content-Length: ${body.length}\r\n\r\n${body}`;
  const more = random.oneIn(4)
    ? random.pick(PIECES.filter((piece) => /^(TE|Trailer|Connection: close|Expect)/.test(piece)))
    : '';
  return `${method} /app/${nonce} HTTP/${version}\r\nHost: h\r\n${more}${framed}`;
}

function soundAnswer(random: Seeded, nonce: string): string {
  const body = `${nonce}${'.'.repeat(random.below(3) * random.below(3_000))}`;
  return random.pick([
    ok(body),
    ok(body, 'Connection: close\r\n'),
    `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${chunked(body)}`,
    `HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n${ok(body)}`,
    `HTTP/1.1 404 Not Found\r\nX-Nonce: ${nonce}\r\nContent-Length: 0\r\n\r\n`,
    `HTTP/1.1 204 No Content\r\nX-Nonce: ${nonce}\r\n\r\n`,
    `HTTP/1.0 200 OK\r\nX-Nonce: ${nonce}\r\n\r\n${body}`,
  ]);
}

/** Sends in one to four pieces. */
async function send(random: Seeded, connection: RawConnection, text: string): Promise<void> {
  let rest = text;
  for (let pieces = random.below(4); pieces > 0 && rest.length > 1; pieces -= 1) {
    const at = 1 + random.below(rest.length - 1);
    connection.write(rest.slice(0, at));
    rest = rest.slice(at);
    await new Promise((resolve) => setImmediate(resolve));
  }
  connection.write(rest);
}

const NONCE = /n[0-9a-f]{24}z/;

/** What is in a request for its answer to carry back: long enough that no damage makes one out of another. */
class Nonces {
  readonly #issued = new Set<string>();

  issue(random: Seeded): string {
    let nonce = 'n';
    while (nonce.length < 25) nonce += random.below(16).toString(16);
    this.#issued.add(`${nonce}z`);
    return `${nonce}z`;
  }

  /** Those in `text` that were given to others than the owner of `own`. */
  foreign(text: string, own: string): string[] {
    const found = text.match(new RegExp(NONCE, 'g')) ?? [];
    return found.filter((nonce) => nonce !== own && this.#issued.has(nonce));
  }
}

function nonceOf(startLine: string): string {
  return NONCE.exec(startLine)?.[0] ?? 'none';
}

describe(`a gateway fed with mistakes (seed ${SEED})`, () => {
  const forwarding = new Forwarding({
    config: 'timeouts: { requestHead: 1s, response: 1s, idle: 1s, keepAlive: 1s }\nlog: { access: false }',
  });
  const nonces = new Nonces();
  const uncaught: unknown[] = [];
  const onUncaught = (error: unknown) => void uncaught.push(error);

  before(async () => {
    process.on('uncaughtException', onUncaught);
    process.on('unhandledRejection', onUncaught);
    await forwarding.start();
  });
  after(async () => {
    process.off('uncaughtException', onUncaught);
    process.off('unhandledRejection', onUncaught);
    await forwarding.stop();
  });

  /** Runs exchanges side by side until the time is up; returns how many there were. */
  async function fuzz(exchange: (random: Seeded, name: string) => Promise<void>): Promise<number> {
    const until = performance.now() + BUDGET_MS;
    let count = 0;
    await Promise.all(
      Array.from({ length: PARALLEL }, async (_, lane) => {
        const random = new Seeded(SEED * 1_000 + lane);
        while (performance.now() < until) {
          await exchange(random, nonces.issue(random));
          count += 1;
        }
      }),
    );
    return count;
  }

  async function isInOrder(): Promise<void> {
    assert.deepEqual(uncaught, []);
    assert.deepEqual(forwarding.gateway.events('internal_error'), []);
    await forwarding.serves();
  }

  it('ends every exchange and mixes none up: requests with mistakes', async () => {
    forwarding.node.restart(
      answering((request, connection) =>
        connection.write(
          request.startLine.startsWith('HEAD')
            ? 'HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n'
            : ok(nonceOf(request.startLine)),
        ),
      ),
    );
    const count = await fuzz(async (random, name) => {
      const client = await forwarding.client();
      const first = damaged(random, soundRequest(random, name));
      await send(random, client, random.oneIn(3) ? first + damaged(random, soundRequest(random, name)) : first);
      // Silence from here on: what is not answered must run into a time-out.
      if (random.oneIn(4)) client.socket.end();
      await client.done(EXCHANGE_MS).catch((error: unknown) => {
        throw new Error(`no end of ${JSON.stringify(first)}: ${String(error)}`);
      });
      const received = Buffer.concat(client.chunks).toString('latin1');
      assert.deepEqual(nonces.foreign(received, name), [], `${JSON.stringify(first)} got ${JSON.stringify(received)}`);
      client.socket.destroy();
    });
    assert.ok(count > 100, `${count} exchanges`);
    await isInOrder();
  });

  it('ends every exchange and mixes none up: answers with mistakes', async () => {
    const answers = new Seeded(SEED);
    forwarding.node.restart(async (connection) => {
      for (;;) {
        const request = await connection.readRequest();
        const nonce = nonceOf(request.startLine);
        const bad = !request.startLine.includes('/sound/');
        const sound = bad ? soundAnswer(answers, nonce) : ok(nonce);
        // In one piece: what comes behind a kept connection's answer later than it can only be guessed to be nobody's.
        if (bad) connection.write(damaged(answers, sound));
        else await send(answers, connection, sound);
        if (bad && (answers.oneIn(3) || sound.startsWith('HTTP/1.0'))) {
          if (answers.oneIn(2)) connection.end();
          else connection.reset();
          return;
        }
      }
    });
    const count = await fuzz(async (random, name) => {
      const client = await forwarding.client();
      const method = random.pick(['GET', 'POST', 'HEAD']);
      client.write(`${method} /app/${name} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`);
      await client.done(EXCHANGE_MS).catch((error: unknown) => {
        throw new Error(`no end of ${name}: ${String(error)}: ${JSON.stringify(client.unread.slice(0, 300))}`);
      });
      assert.deepEqual(
        nonces.foreign(Buffer.concat(client.chunks).toString('latin1'), name),
        [],
        `the answer to ${name}`,
      );
      client.socket.destroy();
      // Between them: an exchange without a mistake has its answer or an error, and never anybody else's.
      const other = await forwarding.client();
      other.write(`GET /app/sound/${name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n`);
      const answer = await other.readAnswer();
      assert.deepEqual(nonces.foreign(answer.body.toString('latin1'), name), [], `the sound answer to ${name}`);
      assert.ok(answer.body.toString() === name || answer.status >= 500, `${answer.startLine} ${answer.body}`);
      other.socket.destroy();
    });
    assert.ok(count > 20, `${count} exchanges`);
    await isInOrder();
  });
});
