/**
 * The keep-alive connections to each node: one agent per node, last used first, closed when the node goes. What is
 * sent over them is not its business.
 */
import * as fs from 'node:fs';
import * as http from 'node:http';
import * as net from 'node:net';
import type { Duplex } from 'node:stream';
import * as tls from 'node:tls';
import type { Node, Service, Snapshot } from '../model.ts';
import type { Clock, Timer } from '../support/clock.ts';

/** Idle connections kept to one node; more are closed when their exchange ends. */
const MAX_IDLE_PER_NODE = 256;
/** How long an idle connection is kept at most; a node's own `Keep-Alive: timeout` shortens it. */
const IDLE_CONNECTION_MS = 60_000;
const IDLE_SWEEP_MS = 250;

export class ConnectTimeout extends Error {
  readonly code = 'ETIMEDOUT';

  constructor(timeoutMs: number) {
    super(`no connection within ${timeoutMs} ms`);
    this.name = 'ConnectTimeout';
  }
}

/** One node's connections. */
export interface NodeConnections {
  readonly agent: http.Agent;
  /** Never reuses a connection: for the one retry after a kept-alive one proved dead. */
  readonly freshAgent: http.Agent;
  /** Exchanges and tunnels under way. */
  inFlight: number;
}

interface Entry extends NodeConnections {
  readonly agent: NodeAgent;
  readonly fingerprint: string;
  /** As it was last asked for. */
  node: Node;
}

export interface ConnectionsOptions {
  readonly connectMs: number;
  readonly clock: Clock;
}

export class Connections {
  readonly #options: ConnectionsOptions;
  readonly #entries = new Map<string, Entry>();
  #snapshot: Snapshot | undefined;
  #timer: Timer | undefined;

  constructor(options: ConnectionsOptions) {
    this.#options = options;
  }

  /** The connections of `node`, made at its first use. */
  of(node: Node, service: Service): NodeConnections {
    const entry = this.#entries.get(node.id);
    return entry?.node === node ? entry : this.#ofChanged(entry, node, service);
  }

  /** What a request still holds of an older snapshot must not open a node's old address for all that follow. */
  #ofChanged(entry: Entry | undefined, node: Node, service: Service): Entry {
    const nodeNow = this.#snapshot?.nodes.get(node.id) ?? node;
    const serviceNow = this.#snapshot?.services.get(nodeNow.serviceId) ?? service;
    if (entry?.fingerprint !== this.#fingerprint(nodeNow, serviceNow)) return this.#open(nodeNow, serviceNow);
    entry.node = nodeNow;
    return entry;
  }

  get inFlight(): ReadonlyMap<string, number> {
    return new Map([...this.#entries].map(([id, entry]) => [id, entry.inFlight]));
  }

  /** Closes the idle connections of nodes that are gone, disabled or have another address or TLS set-up now. */
  retain(snapshot: Snapshot): void {
    this.#snapshot = snapshot;
    for (const [id, entry] of this.#entries) {
      const node = snapshot.nodes.get(id);
      const service = node && snapshot.services.get(node.serviceId);
      if (node?.enabled && service && this.#fingerprint(node, service) === entry.fingerprint) continue;
      this.#entries.delete(id);
      entry.agent.closeIdle();
    }
  }

  /** Begins to close connections that have been idle for too long. */
  start(): void {
    this.#timer ??= this.#arm();
  }

  /** Ends every connection, also those in use. */
  stop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    for (const entry of this.#entries.values()) {
      entry.agent.destroy();
      entry.freshAgent.destroy();
    }
    this.#entries.clear();
  }

  #arm(): Timer {
    return this.#options.clock.after(IDLE_SWEEP_MS, () => {
      const nowMs = performance.now();
      for (const entry of this.#entries.values()) entry.agent.closeIdleSince(nowMs);
      if (this.#timer) this.#timer = this.#arm();
    });
  }

  #open(node: Node, service: Service): Entry {
    const connectMs = service.timeouts.connectMs ?? this.#options.connectMs;
    const connect = connector(node, service, connectMs);
    const entry: Entry = {
      agent: new NodeAgent(connect, true),
      freshAgent: new NodeAgent(connect, false),
      inFlight: 0,
      node,
      fingerprint: this.#fingerprint(node, service),
    };
    this.#entries.set(node.id, entry);
    return entry;
  }

  #fingerprint(node: Node, service: Service): string {
    return JSON.stringify([node.baseUrl, service.id, service.upstream, service.timeouts.connectMs]);
  }
}

type Connect = (options: { allowHalfOpen: boolean }) => net.Socket;

/** When an idle connection is to be closed, Clock.monotonic of this process; set while it is idle. */
const IDLE_UNTIL = Symbol('idle until');
/** How long the node keeps the connection when it is idle, as it said with its last answer; milliseconds. */
const NODE_KEEPS = Symbol('node keeps');
/** bytesRead when the connection became idle. */
const READ_BEFORE = Symbol('read before');
interface PooledSocket extends Duplex {
  [IDLE_UNTIL]?: number;
  [NODE_KEEPS]?: number;
  [READ_BEFORE]?: number;
  readonly bytesRead?: number;
}

/** True = something came on this kept-alive connection since it was last idle, be it only a part of a head. */
export function hasBegunAnswer(socket: Duplex | null): boolean {
  const pooled = socket as PooledSocket | null;
  return pooled !== null && pooled[READ_BEFORE] !== pooled.bytesRead;
}

/** A node closes before its own time-out is quite over on the gateway's clock; so much earlier it is not used any more. */
const KEEP_ALIVE_MARGIN_MS = 1_000;

/** Takes note of `Keep-Alive: timeout=5`, so that a request is not sent on a connection about to be closed. */
export function noteKeepAlive(socket: Duplex, rawHeaders: readonly string[]): void {
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index];
    if (name?.length !== 10 || name.toLowerCase() !== 'keep-alive') continue;
    const seconds = /(?:^|[ ,;])timeout=(\d+)/i.exec(rawHeaders[index + 1] ?? '')?.[1];
    if (seconds !== undefined) (socket as PooledSocket)[NODE_KEEPS] = Number(seconds) * 1_000;
    return;
  }
}

/**
 * An agent for one node. Node's own sets a timer and reads the answer's fields as an object each time a connection
 * becomes idle; here one sweep closes what has been idle for too long.
 */
class NodeAgent extends http.Agent {
  readonly #connect: Connect;
  readonly #keepsAlive: boolean;

  constructor(connect: Connect, keepAlive: boolean) {
    super({ keepAlive, scheduling: 'lifo', maxFreeSockets: keepAlive ? MAX_IDLE_PER_NODE : 0 });
    this.#connect = connect;
    this.#keepsAlive = keepAlive;
  }

  // All its connections lead to one place.
  override getName(): string {
    return '';
  }

  /** Tunnels need half-open sockets; a pooled socket must not be one, or a node's FIN would not end it. */
  override createConnection(): net.Socket {
    return this.#connect({ allowHalfOpen: !this.#keepsAlive });
  }

  /**
   * A kept connection is taken here, without the general case's merging of options for every request. Everything else
   * goes the usual way. (Node calls this for each request with its agent; other agents override it too.)
   */
  addRequest(request: http.ClientRequest, options: http.ClientRequestArgs): void {
    const idle = this.freeSockets[''];
    let socket = idle?.pop();
    while (socket?.destroyed) socket = idle?.pop();
    if (idle?.length === 0) delete (this.freeSockets as NodeJS.Dict<net.Socket[]>)[''];
    if (!socket) {
      (http.Agent.prototype as unknown as NodeAgent).addRequest.call(this, request, options);
      return;
    }
    const used = (this.sockets as NodeJS.Dict<net.Socket[]>)[''];
    if (used) used.push(socket as net.Socket);
    else (this.sockets as NodeJS.Dict<net.Socket[]>)[''] = [socket as net.Socket];
    this.reuseSocket(socket, request);
    request.onSocket(socket as net.Socket);
  }

  override keepSocketAlive(socket: Duplex): boolean {
    const pooled = socket as PooledSocket;
    const idleMs = Math.min(IDLE_CONNECTION_MS, (pooled[NODE_KEEPS] ?? IDLE_CONNECTION_MS) - KEEP_ALIVE_MARGIN_MS);
    pooled[IDLE_UNTIL] = performance.now() + idleMs;
    pooled[READ_BEFORE] = pooled.bytesRead ?? 0;
    // What comes now nobody has asked for: it must not be taken for the answer to the next request.
    socket.on('data', destroyBecauseUnasked);
    return idleMs > 0;
  }

  override reuseSocket(socket: Duplex, request: http.ClientRequest): void {
    socket.off('data', destroyBecauseUnasked);
    super.reuseSocket(socket, request);
  }

  closeIdleSince(nowMs: number): void {
    for (const socket of this.#idle()) {
      if ((socket[IDLE_UNTIL] ?? 0) <= nowMs) socket.destroy();
    }
  }

  closeIdle(): void {
    // A connection in use is closed at the end of its exchange, because no room is left for idle ones.
    this.maxFreeSockets = 0;
    for (const socket of this.#idle()) socket.destroy();
  }

  #idle(): PooledSocket[] {
    return Object.values(this.freeSockets).flatMap((sockets) => (sockets ?? []) as PooledSocket[]);
  }
}

function destroyBecauseUnasked(this: Duplex): void {
  this.destroy();
}

function connector(node: Node, service: Service, connectMs: number): Connect {
  const address = { host: node.hostname, port: node.port, noDelay: true, keepAlive: true };
  if (node.protocol === 'http:') {
    return (options) => watchConnect(net.connect({ ...address, ...options }), 'connect', connectMs);
  }
  const secure = {
    ...address,
    ...(net.isIP(node.hostname) ? {} : { servername: node.hostname }),
    rejectUnauthorized: !service.upstream.insecure,
    ...(service.upstream.ca === null ? {} : { ca: fs.readFileSync(service.upstream.ca) }),
    ALPNProtocols: ['http/1.1'],
  };
  return (options) => watchConnect(tls.connect({ ...secure, ...options }), 'secureConnect', connectMs);
}

const CONNECT_FAILED = Symbol('connect failed');

/** True = the error came before the connection (with TLS: its handshake) was made, so nothing reached the node. */
export function isConnectFailure(error: Error): boolean {
  return CONNECT_FAILED in error;
}

/** Calls back once the connection (with TLS: its handshake) is made, at once if it is; never if it fails. */
export function whenConnected(socket: net.Socket, callback: () => void): void {
  const secure = socket instanceof tls.TLSSocket;
  const waits = socket.connecting || (secure && (socket as { secureConnecting?: boolean }).secureConnecting === true);
  if (waits) socket.once(secure ? 'secureConnect' : 'connect', callback);
  else callback();
}

function watchConnect(socket: net.Socket, ready: string, timeoutMs: number): net.Socket {
  const timer = setTimeout(() => socket.destroy(new ConnectTimeout(timeoutMs)), timeoutMs);
  timer.unref();
  const mark = (error: Error) => Object.assign(error, { [CONNECT_FAILED]: true });
  socket.once('error', mark);
  socket.once(ready, () => {
    clearTimeout(timer);
    socket.off('error', mark);
  });
  socket.once('close', () => clearTimeout(timer));
  return socket;
}
