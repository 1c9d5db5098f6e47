/**
 * A TCP relay in front of a server, with the ways in which a network fails, switchable while connections are open. It
 * knows no protocol.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/**
 * - `pass`: what was held back passes now; what was swallowed is gone, and its connection stays silent for ever
 * - `hold`: no byte passes, as with a cable pulled
 * - `black-hole`: every connection is swallowed, new ones are accepted and swallowed
 * - `half-open`: the connections there are swallowed, new ones are fine
 * - `half-open-new`: the connections there are fine, new ones are accepted and swallowed
 * - `reset`: the connections there are reset, and so are new ones as soon as they are accepted
 * - `refuse`: the connections there are reset, new ones are refused
 */
export type Fault = 'pass' | 'hold' | 'black-hole' | 'half-open' | 'half-open-new' | 'reset' | 'refuse';

const LISTEN_ATTEMPTS = 50;

export class FaultProxy {
  /** Connections accepted so far, those reset at once among them. */
  accepted = 0;
  /** Chunks that came from clients so far, the swallowed ones among them: about the number of commands. */
  received = 0;
  /** Added to every chunk and direction, milliseconds. */
  delayMs = 0;
  readonly #targetPort: number;
  readonly #links = new Set<Link>();
  #server: Server | undefined;
  #port = 0;
  #fault: Fault = 'pass';

  private constructor(targetPort: number) {
    this.#targetPort = targetPort;
  }

  static async open(targetPort: number): Promise<FaultProxy> {
    const proxy = new FaultProxy(targetPort);
    await proxy.#listen();
    return proxy;
  }

  get port(): number {
    return this.#port;
  }

  get fault(): Fault {
    return this.#fault;
  }

  /** Connections of clients that are open at the moment. */
  get open(): number {
    return this.#links.size;
  }

  /** `url` with this proxy's address in it. */
  urlFor(url: string): string {
    const through = new URL(url);
    through.hostname = '127.0.0.1';
    through.port = String(this.#port);
    return through.href;
  }

  /** In force when it resolves; for connections that are open, at once. */
  async set(fault: Fault): Promise<void> {
    this.#fault = fault;
    for (const link of this.#links) {
      if (fault === 'black-hole' || fault === 'half-open') link.swallow();
      if (fault === 'reset' || fault === 'refuse') link.reset();
      link.hold(fault === 'hold');
    }
    if (fault === 'refuse') this.#stopListening();
    else await this.#listen();
  }

  async close(): Promise<void> {
    this.#stopListening();
    for (const link of this.#links) link.reset();
  }

  async #listen(): Promise<void> {
    for (let attempt = 1; !this.#server; attempt += 1) {
      const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => this.#take(client));
      server.listen(this.#port, '127.0.0.1');
      try {
        await once(server, 'listening');
      } catch (error) {
        // Somebody else may have had the port for a moment while it was free.
        if (attempt === LISTEN_ATTEMPTS) throw error;
        await new Promise((resolve) => setTimeout(resolve, 50));
        continue;
      }
      this.#port = (server.address() as AddressInfo).port;
      this.#server = server;
    }
  }

  #stopListening(): void {
    this.#server?.close();
    this.#server = undefined;
  }

  #take(client: Socket): void {
    this.accepted += 1;
    client.on('error', () => undefined);
    if (this.#fault === 'reset') {
      reset(client);
      return;
    }
    const link = new Link(client, this);
    this.#links.add(link);
    client.on('close', () => this.#links.delete(link));
    client.on('data', () => {
      this.received += 1;
    });
    if (this.#fault === 'black-hole' || this.#fault === 'half-open-new') link.swallow();
    else link.connect(this.#targetPort);
    link.hold(this.#fault === 'hold');
  }
}

/** One client's connection and the one behind it. */
class Link {
  readonly #client: Socket;
  readonly #settings: { readonly delayMs: number };
  readonly #directions: Direction[] = [];
  #upstream: Socket | undefined;
  #swallowed = false;
  #held = false;

  constructor(client: Socket, settings: { readonly delayMs: number }) {
    this.#client = client;
    this.#settings = settings;
    client.on('close', () => this.#upstream?.destroy());
  }

  connect(port: number): void {
    const upstream = connect({ host: '127.0.0.1', port, noDelay: true, allowHalfOpen: true });
    this.#upstream = upstream;
    let wasReset = false;
    upstream.on('error', () => {
      wasReset = true;
    });
    upstream.on('close', () => {
      // A black hole says nothing of the other side's end either.
      if (this.#swallowed) return;
      if (wasReset) reset(this.#client);
      else this.#directions[1]?.whenSent(() => this.#client.destroy());
    });
    this.#directions.push(new Direction(this.#client, upstream, this.#settings));
    this.#directions.push(new Direction(upstream, this.#client, this.#settings));
    for (const direction of this.#directions) direction.hold(this.#held);
  }

  swallow(): void {
    this.#swallowed = true;
    for (const direction of this.#directions) direction.swallow();
    // Without a reader the client's bytes would wait in this process, and its end would not be noticed.
    this.#client.resume();
  }

  hold(held: boolean): void {
    this.#held = held;
    for (const direction of this.#directions) direction.hold(held);
  }

  reset(): void {
    reset(this.#client);
    this.#upstream?.destroy();
  }
}

/** A socket whose end is under way cannot be reset: Node would keep its handle for ever. */
function reset(socket: Socket): void {
  if (socket.writableEnded) socket.destroy();
  else socket.resetAndDestroy();
}

/** Bytes and the end of a stream, one way. */
class Direction {
  readonly #to: Socket;
  readonly #settings: { readonly delayMs: number };
  readonly #queue: { readonly dueMs: number; readonly pass: () => void }[] = [];
  #timer: NodeJS.Timeout | undefined;
  #held = false;
  #swallowed = false;

  constructor(from: Socket, to: Socket, settings: { readonly delayMs: number }) {
    this.#to = to;
    this.#settings = settings;
    from.on('data', (chunk) => this.#add(() => this.#to.write(chunk)));
    from.on('end', () => this.#add(() => this.#to.end()));
  }

  swallow(): void {
    this.#swallowed = true;
    this.#queue.length = 0;
    clearTimeout(this.#timer);
  }

  hold(held: boolean): void {
    this.#held = held;
    this.#pump();
  }

  whenSent(callback: () => void): void {
    this.#add(callback);
  }

  #add(pass: () => void): void {
    if (this.#swallowed) return;
    this.#queue.push({ dueMs: performance.now() + this.#settings.delayMs, pass });
    this.#pump();
  }

  #pump(): void {
    clearTimeout(this.#timer);
    while (!this.#held && !this.#swallowed) {
      const next = this.#queue[0];
      if (!next) return;
      const leftMs = next.dueMs - performance.now();
      if (leftMs > 0) {
        this.#timer = setTimeout(() => this.#pump(), leftMs);
        return;
      }
      this.#queue.shift();
      next.pass();
    }
  }
}
