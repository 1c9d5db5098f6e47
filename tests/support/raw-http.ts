/**
 * HTTP as exact bytes over plain sockets: a connection that sends what it is told and takes messages apart strictly,
 * and a node whose every connection is played by a script. It mends nothing and knows no gateway.
 */
import * as net from 'node:net';
import { abort } from '../../lib/proxy/abort.ts';

/** Longest wait for anything the other side should do. */
export const DEADLINE_MS = 8_000;
/** The longest that setTimeout takes. */
const FOR_EVER_MS = 2_147_483_647;

export type Fields = readonly (readonly [name: string, value: string])[];

export interface Head {
  readonly startLine: string;
  readonly fields: Fields;
}

export interface Message extends Head {
  readonly body: Buffer;
  /** Data of each chunk; null = the message was not chunked. */
  readonly chunks: readonly Buffer[] | null;
  readonly trailers: Fields;
}

export interface RawAnswer extends Message {
  readonly status: number;
  /** 1xx answers before this one, in order. */
  readonly interim: readonly Head[];
}

/** The peer closed or reset while more was expected. */
export class Closed extends Error {
  readonly how: 'end' | 'reset';

  constructor(how: 'end' | 'reset', waitingFor: string, received: string) {
    super(`${how} while waiting for ${waitingFor}; unread: ${JSON.stringify(received.slice(0, 300))}`);
    this.how = how;
  }
}

export function fieldsOf(fields: Fields, name: string): string[] {
  return fields.filter(([each]) => each.toLowerCase() === name.toLowerCase()).map(([, value]) => value);
}

export function fieldOf(fields: Fields, name: string): string | undefined {
  return fieldsOf(fields, name)[0];
}

export class RawConnection {
  readonly socket: net.Socket;
  /** Everything ever received. */
  readonly chunks: Buffer[] = [];
  receivedBytes = 0;
  /** null = still open on the peer's side. */
  over: 'end' | 'reset' | null = null;
  /** True = bytes are counted and not kept, for transfers too large to hold. */
  discards = false;
  #unread: Buffer = Buffer.alloc(0);
  #waiting: (() => void)[] = [];

  constructor(socket: net.Socket) {
    this.socket = socket;
    socket.on('data', (chunk: Buffer) => {
      this.receivedBytes += chunk.length;
      if (!this.discards) {
        this.chunks.push(chunk);
        this.#unread = this.#unread.length === 0 ? chunk : Buffer.concat([this.#unread, chunk]);
      }
      this.#wake();
    });
    socket.on('end', () => {
      this.over ??= 'end';
      this.#wake();
    });
    socket.on('error', () => {
      this.over ??= 'reset';
      this.#wake();
    });
    socket.on('close', () => {
      this.over ??= 'reset';
      this.#wake();
    });
  }

  /** What was received and not yet taken. */
  get unread(): string {
    return this.#unread.toString('latin1');
  }

  write(...parts: (string | Buffer)[]): void {
    if (this.socket.destroyed) return;
    this.socket.write(
      Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part, 'latin1') : part))),
    );
  }

  /** Sends the last bytes, if any, and a FIN. */
  end(...parts: (string | Buffer)[]): void {
    if (parts.length > 0) this.write(...parts);
    this.socket.end();
  }

  reset(): void {
    abort(this.socket);
  }

  /** Writes all of `total` bytes as fast as the peer takes them; resolves early when the connection is over. */
  async pour(total: number, chunk: Buffer = Buffer.alloc(65_536, 'x')): Promise<number> {
    let sent = 0;
    while (sent < total && !this.socket.destroyed) {
      const part = chunk.subarray(0, Math.min(chunk.length, total - sent));
      sent += part.length;
      if (!this.socket.write(part)) await this.#drained();
    }
    return sent;
  }

  #drained(): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        this.socket.off('drain', done);
        this.socket.off('close', done);
        resolve();
      };
      this.socket.on('drain', done);
      this.socket.on('close', done);
    });
  }

  /** Resolves when `ready` says so; rejects with Closed when the peer is done before, or after `deadlineMs`. */
  async until(what: string, ready: () => boolean, deadlineMs = DEADLINE_MS): Promise<void> {
    const end = performance.now() + deadlineMs;
    while (!ready()) {
      if (this.over !== null) throw new Closed(this.over, what, this.unread);
      await this.#change(what, end);
    }
  }

  /** Takes exactly so many bytes. */
  async take(bytes: number): Promise<Buffer> {
    await this.until(`${bytes} bytes`, () => this.#unread.length >= bytes);
    const taken = this.#unread.subarray(0, bytes);
    this.#unread = this.#unread.subarray(bytes);
    return taken;
  }

  /** Waits for `text` and takes everything up to and with it. */
  async takeUntil(text: string): Promise<string> {
    const mark = Buffer.from(text, 'latin1');
    await this.until(JSON.stringify(text), () => this.#unread.includes(mark));
    return (await this.take(this.#unread.indexOf(mark) + mark.length)).toString('latin1');
  }

  /** Waits for the peer's end: 'end' = a tidy FIN, 'reset' = anything else. */
  async done(deadlineMs = DEADLINE_MS): Promise<'end' | 'reset'> {
    const end = performance.now() + deadlineMs;
    while (this.over === null) await this.#change('the end of the connection', end);
    return this.over;
  }

  async readHead(): Promise<Head> {
    const text = await this.takeUntil('\r\n\r\n');
    const [startLine = '', ...lines] = text.slice(0, -4).split('\r\n');
    return { startLine, fields: lines.map(readField) };
  }

  /** The rest of a message whose head was read, by its own framing; a request without any has no body. */
  async readBody(head: Head, kind: 'request' | 'response' = 'request'): Promise<Message> {
    const coding = fieldOf(head.fields, 'transfer-encoding');
    const length = fieldOf(head.fields, 'content-length');
    if (coding !== undefined) {
      if (length !== undefined) throw new Error('both Transfer-Encoding and Content-Length');
      return { ...head, ...(await this.#readChunks()) };
    }
    if (length !== undefined) {
      if (!/^\d+$/.test(length)) throw new Error(`Content-Length: ${length}`);
      return { ...head, body: await this.take(Number(length)), chunks: null, trailers: [] };
    }
    if (kind === 'request') return { ...head, body: Buffer.alloc(0), chunks: null, trailers: [] };
    if ((await this.done()) === 'reset') throw new Closed('reset', 'the rest of the body', this.unread);
    return { ...head, body: await this.take(this.#unread.length), chunks: null, trailers: [] };
  }

  async readRequest(): Promise<Message> {
    return this.readBody(await this.readHead());
  }

  /** The next final answer. `method`: of the request it answers. */
  async readAnswer(method = 'GET'): Promise<RawAnswer> {
    const interim: Head[] = [];
    for (;;) {
      const head = await this.readHead();
      const status = statusOf(head);
      if (status >= 100 && status < 200 && status !== 101) {
        interim.push(head);
        continue;
      }
      const bodyless = method === 'HEAD' || status === 204 || status === 304 || status === 101;
      const message = bodyless
        ? { ...head, body: Buffer.alloc(0), chunks: null, trailers: [] }
        : await this.readBody(head, 'response');
      return { ...message, status, interim };
    }
  }

  async #readChunks(): Promise<Omit<Message, keyof Head>> {
    const chunks: Buffer[] = [];
    for (;;) {
      const line = (await this.takeUntil('\r\n')).slice(0, -2);
      if (!/^[0-9a-fA-F]+$/.test(line)) throw new Error(`chunk size: ${JSON.stringify(line)}`);
      const size = Number.parseInt(line, 16);
      if (size === 0) break;
      chunks.push(await this.take(size));
      if ((await this.take(2)).toString('latin1') !== '\r\n') throw new Error('no CRLF behind a chunk');
    }
    const trailers: [string, string][] = [];
    for (;;) {
      const line = (await this.takeUntil('\r\n')).slice(0, -2);
      if (line === '') return { body: Buffer.concat(chunks), chunks, trailers };
      trailers.push(readField(line));
    }
  }

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }

  #change(what: string, end: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const left = end - performance.now();
      const timer = setTimeout(
        () => reject(new Error(`waited too long for ${what}; unread: ${JSON.stringify(this.unread.slice(0, 300))}`)),
        Math.max(0, left),
      );
      this.#waiting.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}

function readField(line: string): [string, string] {
  const colon = line.indexOf(':');
  if (colon <= 0 || /[\r\n\0]/.test(line)) throw new Error(`field line: ${JSON.stringify(line)}`);
  return [line.slice(0, colon), line.slice(colon + 1).trim()];
}

function statusOf(head: Head): number {
  const found = /^HTTP\/1\.[01] (\d{3})(?: |$)/.exec(head.startLine);
  if (!found) throw new Error(`status line: ${JSON.stringify(head.startLine)}`);
  return Number(found[1]);
}

export async function connectRaw(port: number): Promise<RawConnection> {
  const socket = net.connect({ port, host: '127.0.0.1', noDelay: true, allowHalfOpen: true });
  await new Promise<void>((resolve, reject) => {
    socket.once('connect', resolve);
    socket.once('error', reject);
  });
  return new RawConnection(socket);
}

/** Plays one connection from its first byte on; what it throws is kept, unless the peer merely left. */
export type Script = (connection: RawConnection, index: number) => void | Promise<void>;

/** Answers a request that was read whole. */
export type Reply = (request: Message, connection: RawConnection) => void | Promise<void>;

/** A node made of bytes. */
export class RawNode {
  /** Connections on which at least one byte came. */
  readonly connections: RawConnection[] = [];
  /** What scripts threw. */
  readonly faults: Error[] = [];
  script: Script = () => undefined;
  readonly #server: net.Server;
  readonly #sockets = new Set<net.Socket>();
  #changed: (() => void)[] = [];
  #port = 0;

  constructor() {
    this.#server = net.createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
      this.#sockets.add(socket);
      socket.once('close', () => this.#sockets.delete(socket));
      socket.on('error', () => undefined);
      this.onConnect(socket);
    });
  }

  /** Called before a byte came; a connection that only looks whether somebody is there ends here. */
  onConnect(socket: net.Socket): void {
    const connection = new RawConnection(socket);
    connection
      .until('a first byte', () => connection.receivedBytes > 0, FOR_EVER_MS)
      .then(
        () => this.play(connection),
        () => socket.destroy(),
      );
  }

  play(connection: RawConnection): void {
    const index = this.connections.push(connection) - 1;
    for (const changed of this.#changed.splice(0)) changed();
    void (async () => {
      try {
        await this.script(connection, index);
      } catch (error) {
        if (!(error instanceof Closed)) this.faults.push(error as Error);
      }
    })();
  }

  get port(): number {
    return this.#port;
  }

  get baseUrl(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Sockets open at the moment, those without a byte among them. */
  get open(): number {
    return this.#sockets.size;
  }

  async start(port = 0): Promise<this> {
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(port, '127.0.0.1', resolve);
    });
    this.#port = (this.#server.address() as net.AddressInfo).port;
    return this;
  }

  async stop(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  /** Forgets what was, closes the gateway's idle connections, and plays `script` from now on. */
  restart(script: Script): void {
    for (const connection of this.connections.splice(0)) connection.socket.destroy();
    this.faults.length = 0;
    this.script = script;
  }

  /** The connection of this index, once there is one. */
  async connection(index = 0): Promise<RawConnection> {
    const end = performance.now() + DEADLINE_MS;
    for (;;) {
      const connection = this.connections[index];
      if (connection) return connection;
      await new Promise<void>((resolve, reject) => {
        const timer = setTimeout(
          () => reject(new Error(`no connection ${index} at the node`)),
          end - performance.now(),
        );
        this.#changed.push(() => {
          clearTimeout(timer);
          resolve();
        });
      });
    }
  }
}

/** A script that reads requests one after the other and answers each. */
export function answering(reply: Reply | string): Script {
  return async (connection) => {
    while (connection.over === null || connection.unread !== '') {
      const request = await connection.readRequest();
      if (typeof reply === 'string') connection.write(reply);
      else await reply(request, connection);
    }
  };
}

/** An answer with a length. */
export function ok(body = 'ok', fields = ''): string {
  return `HTTP/1.1 200 OK\r\n${fields}Content-Length: ${Buffer.byteLength(body, 'latin1')}\r\n\r\n${body}`;
}

/** A chunked body with its last chunk. */
export function chunked(...parts: string[]): string {
  return `${parts.map((part) => `${part.length.toString(16)}\r\n${part}\r\n`).join('')}0\r\n\r\n`;
}
