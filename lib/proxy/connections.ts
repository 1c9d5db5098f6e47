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

/** Idle connections kept to one node; more are closed when their exchange ends. */
const MAX_IDLE_PER_NODE = 256;
/** How long an idle connection is kept; a node's own `Keep-Alive: timeout` shortens it. */
const IDLE_CONNECTION_MS = 60_000;

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
  readonly fingerprint: string;
}

export interface ConnectionsOptions {
  readonly connectMs: number;
  readonly connectionsPerNode: number | null;
}

export class Connections {
  readonly #options: ConnectionsOptions;
  readonly #entries = new Map<string, Entry>();

  constructor(options: ConnectionsOptions) {
    this.#options = options;
  }

  /** The connections of `node`, made at its first use. */
  of(node: Node, service: Service): NodeConnections {
    const entry = this.#entries.get(node.id);
    if (entry) return entry;
    return this.#open(node, service);
  }

  get inFlight(): ReadonlyMap<string, number> {
    return new Map([...this.#entries].map(([id, entry]) => [id, entry.inFlight]));
  }

  /** Closes the idle connections of nodes that are gone, disabled or have another address or TLS set-up now. */
  retain(snapshot: Snapshot): void {
    for (const [id, entry] of this.#entries) {
      const node = snapshot.nodes.get(id);
      const service = node && snapshot.services.get(node.serviceId);
      if (node?.enabled && service && this.#fingerprint(node, service) === entry.fingerprint) continue;
      this.#entries.delete(id);
      closeIdle(entry);
    }
  }

  /** Ends every connection, also those in use. */
  stop(): void {
    for (const entry of this.#entries.values()) {
      entry.agent.destroy();
      entry.freshAgent.destroy();
    }
    this.#entries.clear();
  }

  #open(node: Node, service: Service): Entry {
    const connectMs = service.timeouts.connectMs ?? this.#options.connectMs;
    const connect = connector(node, service, connectMs);
    const entry: Entry = {
      agent: makeAgent(node, connect, true),
      freshAgent: makeAgent(node, connect, false),
      inFlight: 0,
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

function makeAgent(node: Node, connect: Connect, keepAlive: boolean): http.Agent {
  const agent = new http.Agent({
    keepAlive,
    scheduling: 'lifo',
    maxFreeSockets: keepAlive ? MAX_IDLE_PER_NODE : 0,
    timeout: IDLE_CONNECTION_MS,
  });
  // An agent that serves one node needs neither a name for it nor the general option merging. Tunnels need half-open
  // sockets; a pooled socket must not be one, or a node's FIN would not end it.
  return Object.assign(agent, {
    getName: () => node.id,
    createConnection: () => connect({ allowHalfOpen: !keepAlive }),
  });
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

function closeIdle(entry: Entry): void {
  // A connection in use is closed at the end of its exchange, because no room is left for idle ones.
  entry.agent.maxFreeSockets = 0;
  for (const sockets of Object.values(entry.agent.freeSockets)) {
    for (const socket of (sockets ?? []) as Duplex[]) socket.destroy();
  }
}
