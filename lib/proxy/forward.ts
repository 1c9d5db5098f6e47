/**
 * Sends a decided request to its node and the node's answer to the client, streaming both ways. It never chooses a
 * node. It retries on the same node, when nothing can have been done twice; on others only as retries.ts says.
 *
 * Handlers are module functions that find their exchange on the emitter: no closure is made per request.
 */
import * as http from 'node:http';
import type { Socket } from 'node:net';
import type { RequestContext } from '../context.ts';
import { GatewayError, toGatewayError } from '../errors.ts';
import type { Node, Service } from '../model.ts';
import type { Clock, Timer } from '../support/clock.ts';
import { abort } from './abort.ts';
import {
  type Connections,
  hasBegunAnswer,
  isConnectFailure,
  type NodeConnections,
  noteKeepAlive,
  whenConnected,
} from './connections.ts';
import { clientResponseHeaders, nodeRequestHeaders } from './forward-headers.ts';
import { contentLengthOf, interimHeaders, reasonPhrase, trailerHeaders } from './headers.ts';
import { isIdempotent, type NodeFailure, nothingLeft, Retries } from './retries.ts';

/** Longest wait between two looks at the deadlines, and so their precision. */
const SWEEP_MS = 100;
/** A node's answer may have a larger head than a client's request: nodes are trusted more. */
const NODE_HEADER_BYTES = 262_144;
/** Bodies up to this size are sent as one piece with their head. */
const ONE_PIECE_BYTES = 4_096;

/** Told about what traffic shows of a node's health. */
export interface PassiveHealth {
  passive(node: Node, ok: boolean, error?: string): void;
}

export interface ForwarderOptions {
  readonly connections: Connections;
  readonly health: PassiveHealth;
  /** Value of the Via line added both ways; null = none. */
  readonly via: string | null;
  /** True = the process is shutting down: connections are closed after their answer. */
  readonly closing: () => boolean;
  readonly responseMs: number;
  readonly idleMs: number;
  readonly bodyBytes: number | null;
  readonly connectionsPerNode: number | null;
  readonly clock: Clock;
}

type Phase = 'sending' | 'waiting' | 'receiving';

const EXCHANGE = Symbol('exchange');
interface Tagged {
  [EXCHANGE]?: Exchange;
}

export class Forwarder {
  readonly options: ForwarderOptions;
  /** Clock.monotonic at the last sweep: precise enough for deadlines, and free on the hot path. */
  nowMs: number;
  /**
   * A plain list. A Set that many pass through is copied often, and V8 links each old table to the next: once one is in
   * the old generation, all later ones keep the exchanges they held until the next full collection.
   */
  readonly #exchanges: Exchange[] = [];
  #timer: Timer | undefined;

  constructor(options: ForwarderOptions) {
    this.options = options;
    this.nowMs = options.clock.monotonic();
  }

  start(): void {
    this.#timer ??= this.#arm();
  }

  stop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  get inFlight(): number {
    return this.#exchanges.length;
  }

  /** The last stage of the pipeline. The outgoing request exists when it returns. */
  forward(context: RequestContext): void {
    const { node, service } = context;
    if (!node || !service) throw new Error('no node was chosen');
    if (context.response.destroyed) {
      // The client left while its node was being looked up: nobody waits for what the node would do.
      context.settled?.();
      return;
    }
    const length = declaredLength(context.request);
    if (this.options.bodyBytes !== null && length > this.options.bodyBytes) throw bodyTooLarge();
    const retries = Retries.of(context, length, this.nowMs, service.timeouts.responseMs ?? this.options.responseMs);
    let connections = this.options.connections.of(node, service);
    if (this.#isFull(connections)) {
      const place = retries && this.nextPlace(retries, service);
      if (!place) {
        throw new GatewayError('overloaded', 'the node has as many requests as it may have', { nodeId: node.id });
      }
      context.node = place.node;
      connections = place.connections;
    }
    const exchange = new Exchange(this, context, context.node ?? node, service, connections, length, retries);
    exchange.index = this.#exchanges.push(exchange) - 1;
    connections.inFlight += 1;
    try {
      exchange.open(connections.agent);
    } catch (error) {
      exchange.clientOver = true;
      this.settle(exchange);
      throw error;
    }
  }

  /** The next node with room; undefined = every one had its turn. */
  nextPlace(retries: Retries, service: Service): Place | undefined {
    for (let node = retries.next(); node; node = retries.next()) {
      const connections = this.options.connections.of(node, service);
      if (!this.#isFull(connections)) return { node, connections };
    }
    return undefined;
  }

  #isFull(connections: NodeConnections): boolean {
    const limit = this.options.connectionsPerNode;
    return limit !== null && connections.inFlight >= limit;
  }

  /** The node's side is over; the client may still be reading. */
  settle(exchange: Exchange): void {
    if (exchange.settled) return;
    exchange.settled = true;
    exchange.connections.inFlight -= 1;
    exchange.context.settled?.();
    this.forget(exchange);
  }

  /** Stops watching an exchange once both sides are over. */
  forget(exchange: Exchange): void {
    if (!exchange.settled || !exchange.clientOver || exchange.index < 0) return;
    const last = this.#exchanges.pop();
    // The last one takes its place.
    if (last && last !== exchange) {
      this.#exchanges[exchange.index] = last;
      last.index = exchange.index;
    }
    exchange.index = -1;
  }

  #arm(): Timer {
    return this.options.clock.after(SWEEP_MS, () => {
      this.nowMs = this.options.clock.monotonic();
      // A copy: an exchange that is cut may leave the list.
      for (const exchange of [...this.#exchanges]) exchange.checkDeadline();
      if (this.#timer) this.#timer = this.#arm();
    });
  }
}

interface Place {
  readonly node: Node;
  readonly connections: NodeConnections;
}

/** Content-Length of a request, 0 without a body, -1 when it is chunked. The parser has checked the syntax. */
function declaredLength(request: http.IncomingMessage): number {
  const { headers } = request;
  if (headers['transfer-encoding'] !== undefined) return -1;
  const length = headers['content-length'];
  return length === undefined ? 0 : Number(length);
}

function bodyTooLarge(): GatewayError {
  return new GatewayError('body_too_large', 'the request body is larger than this gateway lets through');
}

/** One request on its way to a node and back. */
class Exchange {
  readonly forwarder: Forwarder;
  readonly context: RequestContext;
  node: Node;
  readonly service: Service;
  connections: NodeConnections;
  /** null = the request stays with its node. */
  readonly retries: Retries | null;
  /** With retries: the body stays with the client until there is a connection to send it on. */
  bodyWaits = false;
  /** Place in the forwarder's list, -1 = not in it. */
  index = -1;
  nodeRequest: http.ClientRequest | undefined;
  nodeResponse: http.IncomingMessage | undefined;
  phase: Phase = 'waiting';
  activeMs: number;
  /** Declared body length, -1 = chunked. */
  readonly length: number;
  bodyBytes = 0;
  /** Body bytes left of the node's answer, -1 = not known. */
  answerLeft = -1;
  retried = false;
  failed = false;
  /** The client left before it had the whole answer. */
  clientGone = false;
  /** The client has the whole answer, or left. */
  clientOver = false;
  settled = false;
  answered = false;

  constructor(
    forwarder: Forwarder,
    context: RequestContext,
    node: Node,
    service: Service,
    connections: NodeConnections,
    length: number,
    retries: Retries | null,
  ) {
    this.forwarder = forwarder;
    this.context = context;
    this.node = node;
    this.service = service;
    this.connections = connections;
    this.length = length;
    this.retries = retries;
    this.activeMs = forwarder.nowMs;
    const { response } = context;
    (response as Tagged)[EXCHANGE] = this;
    response.on('close', onClientClose);
  }

  open(agent: http.Agent): void {
    const { context } = this;
    context.attempts += 1;
    const nodeRequest = http.request({
      agent,
      method: context.request.method,
      path: context.target,
      headers: nodeRequestHeaders(context, this.node, this.service, this.forwarder.options.via, this.length),
      setHost: false,
      maxHeaderSize: NODE_HEADER_BYTES,
    });
    this.nodeRequest = nodeRequest;
    // Beyond its count Node leaves fields out without a word; the head's size is limit enough.
    nodeRequest.maxHeadersCount = 0;
    (nodeRequest as Tagged)[EXCHANGE] = this;
    nodeRequest.on('response', onNodeResponse);
    nodeRequest.on('information', onInformation);
    nodeRequest.on('error', onNodeError);
    nodeRequest.on('close', onNodeClose);
    this.#sendBody(nodeRequest);
  }

  #sendBody(nodeRequest: http.ClientRequest): void {
    const { request, login } = this.context;
    if (login) {
      for (const chunk of login.bodyRead) this.#sendLoginPart(nodeRequest, chunk);
      if (login.bodyComplete) {
        this.#endBody(nodeRequest);
        return;
      }
    } else if (this.length === 0) {
      nodeRequest.end();
      this.#sent();
      return;
    }
    if (this.retries) {
      this.bodyWaits = true;
      nodeRequest.on('socket', onNodeSocket);
      return;
    }
    this.phase = 'sending';
    (request as Tagged)[EXCHANGE] = this;
    nodeRequest.on('drain', onNodeDrain);
    request.on('data', onClientData);
    request.on('end', onClientEnd);
    // A client that waits for 100 Continue, or sends its body later, must not keep the head back. The body's first
    // bytes are handed over in the tick that follows, so a head that goes out with them costs one write.
    process.nextTick(flushHead, nodeRequest);
    // The login request stage paused it with more to come.
    if (login) request.resume();
  }

  /** There is a connection: what was sent on an earlier one goes out again, and the rest as it comes. */
  connected(nodeRequest: http.ClientRequest): void {
    const { retries, context } = this;
    if (!retries || nodeRequest !== this.nodeRequest || nodeRequest.destroyed || this.failed) return;
    const { request } = context;
    this.bodyWaits = false;
    this.activeMs = this.forwarder.nowMs;
    this.phase = 'sending';
    (request as Tagged)[EXCHANGE] = this;
    nodeRequest.on('drain', onNodeDrain);
    // Listened to from the first connection on.
    if (request.listenerCount('data', onClientData) === 0) {
      request.on('data', onClientData);
      request.on('end', onClientEnd);
    }
    process.nextTick(flushHead, nodeRequest);
    const { bytes } = retries.body;
    this.bodyBytes = 0;
    if (bytes.length > 0) this.#sendPart(nodeRequest, bytes);
    if (request.readableEnded) this.clientEnd();
    else if (!nodeRequest.writableNeedDrain && !this.failed) request.resume();
  }

  #sendLoginPart(nodeRequest: http.ClientRequest, chunk: Buffer): void {
    this.bodyBytes += chunk.length;
    nodeRequest.write(chunk);
  }

  #endBody(nodeRequest: http.ClientRequest): void {
    const trailers = trailerHeaders(this.context.request.rawTrailers);
    if (trailers.length > 0) nodeRequest.addTrailers(trailers);
    nodeRequest.end();
    this.#sent();
  }

  #sent(): void {
    this.activeMs = this.forwarder.nowMs;
    if (this.phase !== 'receiving') this.phase = 'waiting';
  }

  clientData(chunk: Buffer): void {
    const { nodeRequest } = this;
    this.activeMs = this.forwarder.nowMs;
    this.retries?.body.keep(chunk);
    // The node may have answered and left without reading everything: the rest is read and dropped.
    if (!nodeRequest || nodeRequest.destroyed || this.failed) return;
    this.#sendPart(nodeRequest, chunk);
  }

  #sendPart(nodeRequest: http.ClientRequest, chunk: Buffer): void {
    this.bodyBytes += chunk.length;
    const limit = this.forwarder.options.bodyBytes;
    if (limit !== null && this.bodyBytes > limit) {
      this.fail(bodyTooLarge());
      return;
    }
    if (!nodeRequest.write(chunk)) this.context.request.pause();
  }

  clientEnd(): void {
    const { nodeRequest } = this;
    if (nodeRequest && !nodeRequest.destroyed && !this.failed && !this.bodyWaits) this.#endBody(nodeRequest);
  }

  answer(nodeResponse: http.IncomingMessage): void {
    const { context } = this;
    this.nodeResponse = nodeResponse;
    this.phase = 'receiving';
    this.activeMs = this.forwarder.nowMs;
    context.nodeStatus = nodeResponse.statusCode ?? 0;
    this.retries?.body.drop();
    noteKeepAlive(nodeResponse.socket, nodeResponse.rawHeaders);
    this.forwarder.options.health.passive(this.node, true);
    (nodeResponse as Tagged)[EXCHANGE] = this;
    nodeResponse.on('close', onAnswerClose);
    if (this.failed) nodeResponse.destroy();
    else if (context.interceptor) {
      context.interceptor(context, nodeResponse, (chunks) => this.relay(nodeResponse, chunks));
    } else this.relay(nodeResponse, NOTHING);
  }

  /** Sends the node's head, the chunks already read of its body, and the rest as it comes. */
  relay(nodeResponse: http.IncomingMessage, chunksRead: readonly Buffer[]): void {
    const { context } = this;
    const { response } = context;
    if (this.failed) return;
    if (this.clientGone) {
      nodeResponse.destroy();
      return;
    }
    const { via, closing } = this.forwarder.options;
    const headers = clientResponseHeaders(context, nodeResponse.rawHeaders, via, closing());
    try {
      response.writeHead(context.nodeStatus, reasonPhrase(nodeResponse.statusMessage), headers);
    } catch (error) {
      // A status or a field that may not be sent on as it is.
      this.fail(
        new GatewayError('node_bad_response', 'the node answered with a head that cannot be passed on', {
          cause: error,
          nodeId: this.node.id,
        }),
      );
      return;
    }
    this.answered = true;
    if (context.request.method !== 'HEAD') this.answerLeft = contentLengthOf(nodeResponse.rawHeaders) ?? -1;
    for (const chunk of chunksRead) this.answerData(chunk);
    if (nodeResponse.readableEnded) {
      this.answerEnd();
      return;
    }
    (response as Tagged)[EXCHANGE] = this;
    response.on('drain', onClientDrain);
    nodeResponse.on('data', onAnswerData);
    nodeResponse.on('end', onAnswerEnd);
    // An interceptor paused it with more to come.
    if (context.interceptor && !response.writableNeedDrain) nodeResponse.resume();
    process.nextTick(flushAnswerHead, this);
  }

  answerData(chunk: Buffer): void {
    const { response } = this.context;
    this.activeMs = this.forwarder.nowMs;
    this.context.bytesSent += chunk.length;
    const isLast = chunk.length === this.answerLeft;
    if (this.answerLeft > 0) this.answerLeft -= chunk.length;
    const room = isLast && chunk.length <= ONE_PIECE_BYTES ? writeInOnePiece(response, chunk) : response.write(chunk);
    // The node need not wait for the client to take the last piece.
    if (!room && !isLast) this.nodeResponse?.pause();
  }

  answerEnd(): void {
    const { response } = this.context;
    if (response.writableEnded) return;
    const trailers = trailerHeaders(this.nodeResponse?.rawTrailers ?? []);
    if (trailers.length > 0) response.addTrailers(trailers);
    response.end();
  }

  /** The node's answer stopped before its end. */
  answerBroke(error?: Error): void {
    const { response } = this.context;
    if (this.failed || this.clientGone || response.writableEnded) return;
    if (!this.answered) {
      this.fail(
        new GatewayError('node_broke_off', 'the node broke off in the middle of its answer', {
          cause: error,
          nodeId: this.node.id,
        }),
      );
      return;
    }
    this.failed = true;
    this.context.errorCode = 'node_broke_off';
    cut(this.context);
  }

  nodeError(error: Error): void {
    if (this.nodeResponse) {
      // A body that ends with its connection would seem complete to Node although a reset ended it.
      if (!this.nodeResponse.complete) this.answerBroke(error);
      return;
    }
    if (this.failed) return;
    if (this.retries) {
      this.#closed(error, this.retries);
      return;
    }
    if (this.#mayRetry()) {
      this.retried = true;
      this.open(this.connections.freshAgent);
      return;
    }
    if (this.clientGone) return;
    this.forwarder.options.health.passive(this.node, false, error.message);
    this.fail(nodeFailure(error, this.node.id));
  }

  #closed(error: Error, retries: Retries): void {
    if (this.clientGone) return;
    const unreached = isConnectFailure(error);
    // See #mayRetry: this tells of the connection and not of the node.
    if (!unreached && this.nodeRequest?.reusedSocket && !hasBegunAnswer(this.nodeRequest.socket)) {
      retries.allowAgain(this.node);
    } else this.forwarder.options.health.passive(this.node, false, error.message);
    this.#failOver(unreached ? 'unreached' : 'closed', nodeFailure(error, this.node.id));
  }

  /** The node gave no head: another one is asked where that is allowed, or the client gets the error. */
  #failOver(failure: NodeFailure, error: GatewayError): void {
    const { retries, forwarder } = this;
    if (this.failed) return;
    if (this.clientGone || !retries?.mayRepeat(failure, forwarder.nowMs)) {
      this.fail(error);
      return;
    }
    const place = forwarder.nextPlace(retries, this.service);
    if (place) this.#moveTo(place);
    else this.fail(nothingLeft(error));
  }

  #moveTo({ node, connections }: Place): void {
    const { nodeRequest } = this;
    this.connections.inFlight -= 1;
    connections.inFlight += 1;
    this.connections = connections;
    this.node = node;
    this.context.node = node;
    this.activeMs = this.forwarder.nowMs;
    this.phase = 'waiting';
    // What comes from now on is for the next connection.
    if (this.length !== 0) this.context.request.pause();
    try {
      this.open(connections.freshAgent);
    } catch (error) {
      this.fail(toGatewayError(error));
    }
    nodeRequest?.destroy();
  }

  /**
   * A kept-alive connection that closed before any byte of an answer most likely closed before it saw the request.
   * With a body that has been given away, or a method that may not be repeated, most likely is not enough.
   */
  #mayRetry(): boolean {
    return (
      this.nodeRequest?.reusedSocket === true &&
      !this.retried &&
      !this.clientGone &&
      this.length === 0 &&
      !hasBegunAnswer(this.nodeRequest.socket) &&
      isIdempotent(this.context.request.method)
    );
  }

  clientClosed(): void {
    this.clientOver = true;
    this.forwarder.forget(this);
    // An error of the gateway's may have been the answer, while the node still waits for the rest of the request.
    if (this.answered && this.context.response.writableFinished) return;
    this.clientGone = true;
    // A login whose request has gone out whole is seen through: the node may have let the user in already.
    const seesThrough = this.context.interceptor !== null && this.phase !== 'sending' && !this.answered;
    if (!seesThrough) this.nodeRequest?.destroy();
  }

  checkDeadline(): void {
    const { options, nowMs } = this.forwarder;
    const silentMs = nowMs - this.activeMs;
    if (this.settled) {
      // All has been said; the client does not take it.
      if (silentMs > (this.service.timeouts.idleMs ?? options.idleMs)) this.context.response.destroy();
      return;
    }
    if (this.phase === 'waiting') {
      if (silentMs > (this.service.timeouts.responseMs ?? options.responseMs))
        this.#nodeTimedOut('no answer from the node in time');
      return;
    }
    if (silentMs <= (this.service.timeouts.idleMs ?? options.idleMs)) return;
    if (this.phase === 'receiving') {
      this.answerBroke(new Error('silent for too long'));
      this.nodeRequest?.destroy();
    } else if (this.context.request.isPaused()) this.#nodeTimedOut('the node stopped reading the request');
    else this.fail(new GatewayError('request_timeout', 'the rest of the request did not come in time'));
  }

  #nodeTimedOut(message: string): void {
    this.forwarder.options.health.passive(this.node, false, message);
    this.#failOver('silent', new GatewayError('node_timeout', message, { nodeId: this.node.id }));
  }

  /** Ends the exchange with an error; the node's side is dropped. */
  fail(error: GatewayError): void {
    if (this.failed) return;
    this.failed = true;
    this.context.fail(error);
    this.nodeRequest?.destroy();
  }
}

const NOTHING: readonly Buffer[] = [];

/** Ends the client's connection so that it cannot take what it has for the whole. */
export function cut(context: RequestContext): void {
  const { response } = context;
  // Without a length or chunks (HTTP/1.0), a FIN would look like a proper end.
  if (context.request.httpVersionMinor === 0 && response.socket) abort(response.socket);
  else response.destroy();
}

export function nodeFailure(error: Error, nodeId: string): GatewayError {
  if (isConnectFailure(error)) {
    return new GatewayError('node_unreachable', 'no connection to the node', { cause: error, nodeId });
  }
  const code = (error as NodeJS.ErrnoException).code ?? '';
  if (code.startsWith('HPE_')) {
    return new GatewayError('node_bad_response', 'the node answered with something that is not HTTP', {
      cause: error,
      nodeId,
    });
  }
  return new GatewayError('node_broke_off', 'the node closed the connection before it answered', {
    cause: error,
    nodeId,
  });
}

/**
 * Writes a body with the head that waits for it. As latin1 text, which keeps every byte, both become one piece; and the
 * response is ended later, when the node's is: end() with a chunk adds an empty piece and so takes a vectored write.
 */
function writeInOnePiece(response: http.ServerResponse, body: Buffer): boolean {
  // Node holds back what is written to a response until the next tick unless its connection is held back already.
  response.socket?.cork();
  const room = response.write(body.toString('latin1'), 'latin1');
  response.socket?.uncork();
  return room;
}

function flushHead(message: http.OutgoingMessage): void {
  if (!message.destroyed && !message.writableEnded) message.flushHeaders();
}

/** The head of an answer goes out with the body's first bytes if those come at once. */
function flushAnswerHead({ context }: Exchange): void {
  if (context.bytesSent === 0) flushHead(context.response);
}

function onClientClose(this: http.ServerResponse): void {
  (this as Tagged)[EXCHANGE]?.clientClosed();
}

function onClientData(this: http.IncomingMessage, chunk: Buffer): void {
  (this as Tagged)[EXCHANGE]?.clientData(chunk);
}

function onClientEnd(this: http.IncomingMessage): void {
  (this as Tagged)[EXCHANGE]?.clientEnd();
}

function onClientDrain(this: http.ServerResponse): void {
  const exchange = (this as Tagged)[EXCHANGE];
  if (!exchange) return;
  exchange.activeMs = exchange.forwarder.nowMs;
  exchange.nodeResponse?.resume();
}

function onNodeSocket(this: http.ClientRequest, socket: Socket): void {
  whenConnected(socket, () => (this as Tagged)[EXCHANGE]?.connected(this));
}

function onNodeDrain(this: http.ClientRequest): void {
  const exchange = (this as Tagged)[EXCHANGE];
  if (exchange?.nodeRequest !== this) return;
  exchange.activeMs = exchange.forwarder.nowMs;
  exchange.context.request.resume();
}

function onNodeResponse(this: http.ClientRequest, nodeResponse: http.IncomingMessage): void {
  (this as Tagged)[EXCHANGE]?.answer(nodeResponse);
}

function onNodeError(this: http.ClientRequest, error: Error): void {
  const exchange = (this as Tagged)[EXCHANGE];
  if (exchange?.nodeRequest === this) exchange.nodeError(error);
}

function onNodeClose(this: http.ClientRequest): void {
  const exchange = (this as Tagged)[EXCHANGE];
  if (!exchange || exchange.nodeRequest !== this) return;
  exchange.forwarder.settle(exchange);
  // What is left of an upload that nobody wants is read and dropped, or the client would never see the answer.
  if (exchange.phase === 'sending' || !exchange.context.request.readableEnded) exchange.context.request.resume();
}

interface Information {
  readonly statusCode: number;
  readonly statusMessage: string;
  readonly rawHeaders: readonly string[];
}

function onInformation(this: http.ClientRequest, information: Information): void {
  const exchange = (this as Tagged)[EXCHANGE];
  if (!exchange || exchange.failed || exchange.clientGone) return;
  const { request, response } = exchange.context;
  exchange.activeMs = exchange.forwarder.nowMs;
  // RFC 9110 section 15.2: 1xx must not be sent to an HTTP/1.0 client.
  if (request.httpVersionMinor === 0 || response.headersSent) return;
  sendInformation(response, information);
}

/** What Node's own writeContinue and writeEarlyHints are made of; those take only some fields. */
interface RawWriter {
  _writeRaw(data: string, encoding: 'latin1', callback?: () => void): boolean;
}

function sendInformation(response: http.ServerResponse, information: Information): void {
  if (information.statusCode === 100 && information.rawHeaders.length === 0) {
    response.writeContinue();
    return;
  }
  let text = `HTTP/1.1 ${information.statusCode} ${reasonPhrase(information.statusMessage)}\r\n`;
  const fields = interimHeaders(information.rawHeaders);
  for (let index = 0; index < fields.length; index += 2) text += `${fields[index]}: ${fields[index + 1]}\r\n`;
  (response as unknown as RawWriter)._writeRaw(`${text}\r\n`, 'latin1');
}

function onAnswerData(this: http.IncomingMessage, chunk: Buffer): void {
  (this as Tagged)[EXCHANGE]?.answerData(chunk);
}

function onAnswerEnd(this: http.IncomingMessage): void {
  (this as Tagged)[EXCHANGE]?.answerEnd();
}

function onAnswerClose(this: http.IncomingMessage): void {
  if (!this.complete) (this as Tagged)[EXCHANGE]?.answerBroke();
}
