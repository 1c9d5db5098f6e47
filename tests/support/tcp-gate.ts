/** A TCP relay in front of a server that a test can silence (bytes stop, connections stay) or cut. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

export class TcpGate {
  readonly #targetPort: number;
  readonly #server: Server;
  readonly #pairs = new Set<{ client: Socket; upstream: Socket }>();
  #silent = false;
  /** Connections taken so far. */
  accepted = 0;

  private constructor(targetPort: number) {
    this.#targetPort = targetPort;
    this.#server = createServer((client) => this.#relay(client));
  }

  static async open(targetPort: number): Promise<TcpGate> {
    const gate = new TcpGate(targetPort);
    gate.#server.listen(0, '127.0.0.1');
    await once(gate.#server, 'listening');
    return gate;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** From now on no byte passes, as with a cable pulled. */
  silence(): void {
    this.#silent = true;
    for (const { client, upstream } of this.#pairs) {
      client.pause();
      upstream.pause();
    }
  }

  /** What was held back passes now. */
  unsilence(): void {
    this.#silent = false;
    for (const { client, upstream } of this.#pairs) {
      client.resume();
      upstream.resume();
    }
  }

  /** Ends every connection at once; new ones are taken. */
  cut(): void {
    for (const { client, upstream } of this.#pairs) {
      client.destroy();
      upstream.destroy();
    }
  }

  async close(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #relay(client: Socket): void {
    this.accepted += 1;
    const upstream = connect(this.#targetPort, '127.0.0.1');
    const pair = { client, upstream };
    this.#pairs.add(pair);
    const end = (): void => {
      this.#pairs.delete(pair);
      client.destroy();
      upstream.destroy();
    };
    for (const socket of [client, upstream]) {
      // The end follows in 'close'; the tests look at what the program under test makes of it.
      socket.on('error', end);
      socket.on('close', end);
    }
    client.on('data', (chunk) => upstream.write(chunk));
    upstream.on('data', (chunk) => client.write(chunk));
    if (this.#silent) {
      client.pause();
      upstream.pause();
    }
  }
}
