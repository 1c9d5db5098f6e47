/**
 * Upgrade requests (WebSocket and others): the decision has been made; this opens the tunnel or passes the refusal on.
 * Bytes in a tunnel are never looked at.
 */
import * as http from 'node:http';
import type { Duplex } from 'node:stream';
import type { RequestContext } from '../context.ts';
import { GatewayError } from '../errors.ts';
import type { Node, Service } from '../model.ts';
import { abort } from './abort.ts';
import { type Connections, isConnectFailure } from './connections.ts';
import { cut, nodeFailure, type PassiveHealth } from './forward.ts';
import { clientResponseHeaders, nodeRequestHeaders } from './forward-headers.ts';
import { reasonPhrase } from './headers.ts';
import { type NodeFailure, nothingLeft, Retries } from './retries.ts';
import { type Tunnel, type Tunnels, tunnelOf } from './tunnels.ts';

export interface UpgraderOptions {
  readonly connections: Connections;
  readonly health: PassiveHealth;
  readonly tunnels: Tunnels;
  readonly via: string | null;
  readonly responseMs: number;
  readonly idleMs: number;
  readonly connectionsPerNode: number | null;
}

export class Upgrader {
  readonly #options: UpgraderOptions;

  constructor(options: UpgraderOptions) {
    this.#options = options;
  }

  /** The last stage of the pipeline for an upgrade request. */
  forward(context: RequestContext): void {
    const { node, service, upgrade, request } = context;
    if (!node || !service || !upgrade) throw new Error('no node was chosen');
    if (upgrade.socket.destroyed) {
      context.settled?.();
      return;
    }
    const length = Number(request.headers['content-length'] ?? 0);
    if (request.headers['transfer-encoding'] !== undefined || length > 0) {
      // The parser hands everything behind the head over as the tunnel's, so a body could not be told from it.
      throw new GatewayError('bad_request', 'a request that asks for an upgrade must not have a body');
    }
    const responseMs = service.timeouts.responseMs ?? this.#options.responseMs;
    const retries = Retries.of(context, 0, performance.now(), responseMs);
    const open = this.#isFull(node, service) ? retries && this.#next(retries, service) : node;
    if (!open) {
      throw new GatewayError('overloaded', 'the node has as many requests as it may have', { nodeId: node.id });
    }
    this.#ask(context, open, service, retries);
  }

  #isFull(node: Node, service: Service): boolean {
    const limit = this.#options.connectionsPerNode;
    return limit !== null && this.#options.connections.of(node, service).inFlight >= limit;
  }

  /** The next node with room; undefined = every one had its turn. */
  #next(retries: Retries, service: Service): Node | undefined {
    let node = retries.next();
    while (node && this.#isFull(node, service)) node = retries.next();
    return node;
  }

  #ask(context: RequestContext, node: Node, service: Service, retries: Retries | null): void {
    const { upgrade, request, response } = context;
    if (!upgrade) return;
    context.node = node;
    const connections = this.#options.connections.of(node, service);
    const nodeRequest = http.request({
      agent: connections.freshAgent,
      method: request.method,
      path: context.target,
      headers: nodeRequestHeaders(context, node, service, this.#options.via, 0),
      setHost: false,
    });
    nodeRequest.maxHeadersCount = 0;
    context.attempts += 1;
    connections.inFlight += 1;
    const { health } = this.#options;
    let opened = false;
    let failed = false;
    const fail = (error: GatewayError) => {
      if (failed) return;
      failed = true;
      lookNoMore();
      context.fail(error);
      nodeRequest.destroy();
    };
    let moved = false;
    /** The node gave no head: another one is asked where that is allowed, or the client gets the error. */
    const failOver = (failure: NodeFailure, error: GatewayError) => {
      if (!retries?.mayRepeat(failure, performance.now())) {
        fail(error);
        return;
      }
      const other = this.#next(retries, service);
      if (!other) {
        fail(nothingLeft(error));
        return;
      }
      failed = true;
      moved = true;
      lookNoMore();
      upgrade.socket.off('close', clientGone);
      nodeRequest.destroy();
      try {
        this.#ask(context, other, service, retries);
      } catch (fault) {
        context.fail(fault);
      }
    };
    const responseMs = service.timeouts.responseMs ?? this.#options.responseMs;
    const timer = setTimeout(() => {
      const error = new GatewayError('node_timeout', 'no answer from the node in time', { nodeId: node.id });
      health.passive(node, false, error.message);
      failOver('silent', error);
    }, responseMs);
    const clientGone = () => nodeRequest.destroy();
    upgrade.socket.once('close', clientGone);
    // Nobody reads this socket until the node has answered, and an end that is not read is never heard of. What is read
    // stays in the socket's own buffer, which bounds it.
    const look = () => {
      if (upgrade.socket.readableLength === 0) upgrade.socket.read();
    };
    const leave = () => upgrade.socket.destroy();
    upgrade.socket.on('readable', look).once('end', leave);
    const lookNoMore = () => upgrade.socket.off('readable', look).off('end', leave);
    nodeRequest.once('close', () => {
      clearTimeout(timer);
      if (opened) return;
      connections.inFlight -= 1;
      if (!moved) context.settled?.();
    });
    nodeRequest.on('upgrade', (nodeResponse, nodeSocket, nodeHead) => {
      clearTimeout(timer);
      if (failed || upgrade.socket.destroyed) {
        nodeSocket.destroy();
        return;
      }
      opened = true;
      lookNoMore();
      upgrade.socket.off('close', clientGone);
      health.passive(node, true);
      context.nodeStatus = nodeResponse.statusCode ?? 101;
      this.#open(context, nodeResponse, { nodeSocket, nodeHead }, service, () => {
        connections.inFlight -= 1;
        context.settled?.();
      });
    });
    nodeRequest.on('response', (nodeResponse) => {
      clearTimeout(timer);
      lookNoMore();
      health.passive(node, true);
      context.nodeStatus = nodeResponse.statusCode ?? 0;
      this.#refuse(context, nodeResponse, fail);
    });
    nodeRequest.on('error', (error) => {
      if (failed || opened || response.headersSent || upgrade.socket.destroyed) return;
      health.passive(node, false, error.message);
      failOver(isConnectFailure(error) ? 'unreached' : 'closed', nodeFailure(error, node.id));
    });
    nodeRequest.end();
  }

  /** The node did not upgrade: its answer goes to the client, and the connection ends with it. */
  #refuse(context: RequestContext, nodeResponse: http.IncomingMessage, fail: (error: GatewayError) => void): void {
    const { response } = context;
    const headers = clientResponseHeaders(context, nodeResponse.rawHeaders, this.#options.via, true);
    try {
      response.writeHead(context.nodeStatus, reasonPhrase(nodeResponse.statusMessage), headers);
    } catch (error) {
      fail(
        new GatewayError('node_bad_response', 'the node answered with a head that cannot be passed on', {
          cause: error,
        }),
      );
      return;
    }
    nodeResponse.on('data', (chunk: Buffer) => {
      context.bytesSent += chunk.length;
    });
    nodeResponse.on('error', () => {
      context.errorCode = 'node_broke_off';
      cut(context);
    });
    nodeResponse.pipe(response);
  }

  #open(
    context: RequestContext,
    nodeResponse: http.IncomingMessage,
    node: { nodeSocket: Duplex; nodeHead: Buffer },
    service: Service,
    over: () => void,
  ): void {
    const { upgrade, response } = context;
    if (!upgrade) return;
    const client = upgrade.socket;
    const { nodeSocket, nodeHead } = node;
    // From here on the socket is the tunnel's alone.
    response.detachSocket(client as never);
    const fields = clientResponseHeaders(context, nodeResponse.rawHeaders, this.#options.via, false);
    let head = `HTTP/1.1 101 ${reasonPhrase(nodeResponse.statusMessage) || 'Switching Protocols'}\r\n`;
    for (let index = 0; index < fields.length; index += 2) head += `${fields[index]}: ${fields[index + 1]}\r\n`;
    client.write(Buffer.concat([Buffer.from(`${head}\r\n`, 'latin1'), nodeHead]));
    if (upgrade.head.length > 0) nodeSocket.write(upgrade.head);
    this.#join(context, client, nodeSocket, service, over);
  }

  #join(context: RequestContext, client: Duplex, nodeSocket: Duplex, service: Service, over: () => void): void {
    const { tunnels } = this.#options;
    const idleMs = service.timeouts.idleMs ?? this.#options.idleMs;
    const tunnel: Tunnel = {
      ...tunnelOf(context),
      client,
      webSocket: context.request.headers.upgrade?.toLowerCase() === 'websocket',
      close(code) {
        nodeSocket.destroy();
        if (this.webSocket && !client.writableEnded) {
          // An unmasked Close frame, as a server sends it (RFC 6455 section 5.5.1).
          client.end(Buffer.from([0x88, 0x02, code >> 8, code & 0xff]));
        } else client.end();
        client.unpipe(nodeSocket);
        client.resume();
        const timer = setTimeout(() => client.destroy(), CLOSE_WAIT_MS);
        timer.unref();
        client.once('close', () => clearTimeout(timer));
      },
    };
    tunnels.add(tunnel);
    context.bytesSent = 0;
    nodeSocket.on('data', (chunk: Buffer) => {
      context.bytesSent += chunk.length;
    });
    carry(client, nodeSocket);
    carry(nodeSocket, client);
    // Bytes of either direction pass the client's socket, so one timer watches both.
    (client as Duplex & { setTimeout(ms: number, callback: () => void): void }).setTimeout(idleMs, () => {
      client.destroy();
      nodeSocket.destroy();
    });
    let open = 2;
    const closed = () => {
      open -= 1;
      if (open > 0) return;
      tunnels.remove(tunnel);
      over();
    };
    client.once('close', closed);
    nodeSocket.once('close', closed);
  }
}

/** How long a client may take to close its side after the gateway closed the tunnel. */
const CLOSE_WAIT_MS = 2_000;

/** One direction of a tunnel: an end is passed on as an end, an error as a reset. */
function carry(from: Duplex, to: Duplex): void {
  from.pipe(to);
  from.on('error', () => abort(to));
  from.on('close', () => {
    // After a proper end `pipe` has ended the other side, which may still have something to say.
    if (!from.readableEnded) abort(to);
  });
}
