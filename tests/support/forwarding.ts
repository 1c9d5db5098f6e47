/** A gateway in front of one node made of bytes, for everything about how requests and answers are passed on. */
import assert from 'node:assert/strict';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from './gateway-fixture.ts';
import {
  answering,
  connectRaw,
  fieldOf,
  ok,
  type RawAnswer,
  type RawConnection,
  RawNode,
  type Script,
} from './raw-http.ts';

export interface ForwardingSetup {
  /** Top-level YAML: limits, timeouts and the like. */
  readonly config?: string;
  /** YAML lines of the service, indented by four. */
  readonly service?: string;
}

export class Forwarding {
  readonly node = new RawNode();
  readonly #setup: ForwardingSetup;
  readonly #clients: RawConnection[] = [];
  #stores: StoreSetup | undefined;
  #gateway: GatewayFixture | undefined;

  constructor(setup: ForwardingSetup = {}) {
    this.#setup = setup;
  }

  get gateway(): GatewayFixture {
    if (!this.#gateway) throw new Error('not started');
    return this.#gateway;
  }

  async start(): Promise<void> {
    await this.node.start();
    this.node.script = answering(ok());
    this.#stores = await openStores('embedded');
    this.#gateway = await startGateway({
      stores: this.#stores,
      nodes: [],
      // Whatever the node does, it is never taken for down: what is looked at here is the traffic.
      config: `health: { interval: 1h, failures: 1000000 }\n${this.#setup.config ?? ''}`,
      services: [
        'services:',
        '  - id: app',
        '    pathPrefix: /app',
        '    healthPath: null',
        ...(this.#setup.service ? [this.#setup.service] : []),
        '    nodes:',
        `      - { id: n1, baseUrl: "${this.node.baseUrl}" }`,
      ].join('\n'),
    });
  }

  async stop(): Promise<void> {
    for (const client of this.#clients) client.socket.destroy();
    await this.#gateway?.stop();
    await this.#stores?.close();
    await this.node.stop();
  }

  /** A client's connection to the gateway; closed at the end of the tests. */
  async client(): Promise<RawConnection> {
    const client = await connectRaw(this.gateway.port);
    this.#clients.push(client);
    client.socket.once('close', () => this.#clients.splice(this.#clients.indexOf(client), 1));
    return client;
  }

  /** Sends exactly this on a new connection, with the node playing `script`, and reads one answer. */
  async exchange(bytes: string | Buffer, script?: Script): Promise<{ client: RawConnection; answer: RawAnswer }> {
    if (script) this.node.restart(script);
    const client = await this.client();
    client.write(bytes);
    const answer = await client.readAnswer(methodOf(bytes));
    return { client, answer };
  }

  /** The gateway refuses these bytes with this status and closes, and nothing of them reaches the node. */
  async refuses(bytes: string | Buffer, status: number, what = ''): Promise<RawAnswer> {
    const { client, answer } = await this.#refusal(bytes, status, what);
    await client.done();
    return this.#nothingHappened(client, answer, what);
  }

  /** The same, where the framing is sound: the connection may live on, and must be in order if it does. */
  async declines(bytes: string, status: number, what = ''): Promise<RawAnswer> {
    const { client, answer } = await this.#refusal(bytes, status, what);
    if (fieldOf(answer.fields, 'connection') === 'close') await client.done();
    else {
      client.write('GET /elsewhere HTTP/1.1\r\nHost: h\r\n\r\n');
      assert.equal((await client.readAnswer()).status, 404, `${what}: the next request on the connection`);
    }
    return this.#nothingHappened(client, answer, what);
  }

  async #refusal(
    bytes: string | Buffer,
    status: number,
    what: string,
  ): Promise<{ client: RawConnection; answer: RawAnswer }> {
    this.node.restart(answering(ok()));
    const client = await this.client();
    client.write(bytes);
    const answer = await client.readAnswer(methodOf(bytes));
    assert.equal(answer.status, status, `${what}: ${answer.startLine} ${answer.body}`);
    return { client, answer };
  }

  async #nothingHappened(client: RawConnection, answer: RawAnswer, what: string): Promise<RawAnswer> {
    client.socket.destroy();
    assert.equal(client.unread, '', `${what}: nothing follows the refusal`);
    assert.equal(this.node.connections.length, 0, `${what}: nothing reached the node`);
    await this.serves();
    return answer;
  }

  /** A plain request works, on a connection of its own. */
  async serves(): Promise<void> {
    this.node.restart(answering(ok('still here')));
    const client = await this.client();
    client.write('GET /app/again HTTP/1.1\r\nHost: h\r\n\r\n');
    assert.equal((await client.readAnswer()).body.toString(), 'still here');
    client.socket.destroy();
  }
}

function methodOf(bytes: string | Buffer): string {
  return /^[A-Z]+/.exec(bytes.toString('latin1'))?.[0] ?? 'GET';
}
