/**
 * One public address: accepts connections, turns requests and upgrades into contexts for the pipeline, and answers
 * what the HTTP parser refuses. What happens to a request is not decided here.
 */
import * as http from 'node:http';
import * as https from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { ListenOptions } from '../config/options.ts';
import { type Handler, RequestContext } from '../context.ts';
import { type ErrorCode, GatewayError, OperatorError, STATUS_OF } from '../errors.ts';
import type { Metrics } from '../observe/metrics.ts';
import { checkFraming } from '../proxy/framing.ts';
import type { Clock } from '../support/clock.ts';
import { explainListen } from '../support/explain-listen.ts';
import type { InheritedSocket } from './inherited-sockets.ts';
import { readTlsFiles } from './tls-files.ts';

export interface PublicListenerOptions {
  readonly listen: ListenOptions;
  /** A socket to listen on instead of binding the address; in a worker, the primary's descriptor. */
  readonly socket: InheritedSocket | null;
  readonly plain: Handler;
  readonly upgrade: Handler;
  readonly headerBytes: number;
  readonly requestHeadMs: number;
  readonly keepAliveMs: number;
  readonly clock: Clock;
  readonly metrics: Metrics;
}

/** How long a refused connection is kept half open, so that its answer is not lost in a reset. */
const REFUSED_LINGER_MS = 1_000;
/** How often Node looks for heads that take too long. */
const HEAD_CHECK_MS = 500;

const CONTEXT = Symbol('context');
const QUEUED = Symbol('queued');
interface Tagged {
  [CONTEXT]?: RequestContext;
  /** Answers to pipelined requests that have not got the connection yet. */
  [QUEUED]?: Set<http.ServerResponse>;
}

export class PublicListener {
  readonly #options: PublicListenerOptions;
  readonly #server: http.Server;
  #started = false;

  constructor(options: PublicListenerOptions) {
    this.#options = options;
    this.#server = this.#createServer();
    // Beyond its count Node leaves fields out without a word; the head's size is limit enough.
    this.#server.maxHeadersCount = 0;
    this.#server.on('request', (request, response) => this.#handle(request, response));
    this.#server.on('checkContinue', (request, response) => this.#handle(request, response));
    this.#server.on('checkExpectation', (request, response) => this.#handle(request, response));
    this.#server.on('upgrade', (request, socket, head) => this.#handleUpgrade(request, socket, head));
    this.#server.on('connect', (_request, socket) =>
      refuse(socket, 'bad_request', 'this gateway opens no tunnels by CONNECT'),
    );
    this.#server.on('clientError', (error, socket) => this.#refuseUnparsed(error, socket));
  }

  /** Rejects with OperatorError when the address cannot be taken. */
  async start(): Promise<AddressInfo> {
    const { listen, socket } = this.#options;
    const { host, port } = listen;
    const explain = (error: NodeJS.ErrnoException) =>
      socket
        ? `cannot listen on descriptor ${socket.fd}, which systemd passed: ${error.message}`
        : explainListen(error, host, port);
    await new Promise<void>((resolve, reject) => {
      const failed = (error: NodeJS.ErrnoException) => reject(new OperatorError(explain(error)));
      this.#server.once('error', failed);
      this.#server.listen(socket ? { fd: socket.fd } : { host, port }, () => {
        this.#server.off('error', failed);
        this.#started = true;
        resolve();
      });
    });
    const address = this.#server.address();
    // Clients are told apart, let in and trusted by their addresses, which only TCP has.
    if (address === null || typeof address === 'string' || address.port === undefined) {
      this.stopAccepting();
      throw new OperatorError(`descriptor ${socket?.fd}, which systemd passed, is no TCP socket (ListenStream=port)`);
    }
    return address;
  }

  get address(): AddressInfo {
    return this.#server.address() as AddressInfo;
  }

  get scheme(): 'http' | 'https' {
    return this.#options.listen.tls ? 'https' : 'http';
  }

  /**
   * Reads the certificate and key again (OperatorError) and returns what puts them in force, for connections made from
   * then on.
   */
  prepareReload(): () => void {
    const files = this.#options.listen.tls;
    const server = this.#server;
    if (!files || !(server instanceof https.Server)) return () => undefined;
    const pair = readTlsFiles(files);
    return () => server.setSecureContext(pair);
  }

  /** Takes no more connections; idle ones are closed, busy ones stay. Idempotent. */
  stopAccepting(): void {
    if (!this.#started) return;
    this.#started = false;
    this.#server.close();
  }

  closeIdle(): void {
    this.#server.closeIdleConnections();
  }

  /** Ends every connection. */
  closeAll(): void {
    this.#server.closeAllConnections();
  }

  #createServer(): http.Server {
    const { listen, headerBytes, requestHeadMs, keepAliveMs } = this.#options;
    const options: http.ServerOptions = {
      maxHeaderSize: headerBytes,
      headersTimeout: requestHeadMs,
      // Bodies may take as long as they flow: silence in them is watched by the forward stage.
      requestTimeout: 0,
      keepAliveTimeout: keepAliveMs,
      connectionsCheckingInterval: HEAD_CHECK_MS,
      noDelay: true,
      keepAlive: true,
    };
    if (!listen.tls) return http.createServer(options);
    return https.createServer({ ...options, ...readTlsFiles(listen.tls), ALPNProtocols: ['http/1.1'] });
  }

  #handle(request: http.IncomingMessage, response: http.ServerResponse): void {
    const socket = request.socket as Tagged;
    // What was parsed behind a request of doubtful framing may be part of its body: it is no request.
    if (socket[CONTEXT] && socket[CONTEXT].framingFault !== null) return;
    const context = new RequestContext(request, response, null, this.#options.clock.monotonic());
    socket[CONTEXT] = context;
    context.framingFault = checkFraming(request);
    if (context.framingFault !== null) response.shouldKeepAlive = false;
    if (response.socket === null) watchQueued(request.socket, response);
    void this.#options.plain(context);
  }

  #handleUpgrade(request: http.IncomingMessage, socket: Duplex, head: Buffer): void {
    // The parser has let go of the socket and of its errors; 'close' follows each of them.
    socket.on('error', ignoreBecauseCloseFollows);
    const response = new http.ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket as Socket);
    response.on('finish', () => hangUp(socket));
    // The server has let go of the socket, so nobody else tells the answer to a refused upgrade when to go on.
    socket.on('drain', () => {
      if (response.socket === socket) response.emit('drain');
    });
    const context = new RequestContext(request, response, { socket, head }, this.#options.clock.monotonic());
    context.framingFault = checkFraming(request);
    void this.#options.upgrade(context);
  }

  #refuseUnparsed(error: NodeJS.ErrnoException, socket: Duplex): void {
    if (socket.destroyed || !socket.writable || error.code === 'ECONNRESET') {
      socket.destroy();
      return;
    }
    const [code, message] = explainUnparsed(error);
    this.#options.metrics.counter('gateway_refusals_total', 'Requests answered with an error', { error: code }).inc();
    const context = (socket as Tagged)[CONTEXT];
    if (!context || context.response.closed) {
      refuse(socket, code, message);
    } else if (context.request.complete) {
      // The fault is in what follows a request that is still being answered: its answer goes first.
      context.response.once('close', () => refuse(socket, code, message));
    } else {
      // The fault is in the body of a request under way: no more of it will come.
      context.response.shouldKeepAlive = false;
      context.response.once('finish', () => socket.end());
      context.fail(new GatewayError(code, message, { cause: error }));
      context.request.destroy();
    }
  }
}

/**
 * A pipelined request's answer has no connection before its turn comes, and Node lets it never close when the client
 * leaves until then: all that waits for its end would wait for ever.
 */
function watchQueued(socket: Socket, response: http.ServerResponse): void {
  const tagged = socket as Tagged;
  if (!tagged[QUEUED]) {
    const queued = new Set<http.ServerResponse>();
    tagged[QUEUED] = queued;
    socket.once('close', () => {
      for (const waiting of queued) {
        // The one that has the connection hears of its end from Node.
        if (waiting.socket !== null) continue;
        waiting.destroy();
        waiting.emit('close');
      }
    });
  }
  const queued = tagged[QUEUED];
  queued.add(response);
  response.once('close', () => queued.delete(response));
}

function ignoreBecauseCloseFollows(): void {
  // Every stage that cares listens to 'close'.
}

function explainUnparsed(error: NodeJS.ErrnoException): [ErrorCode, string] {
  if (error.code === 'HPE_HEADER_OVERFLOW')
    return ['header_too_large', 'the request head is larger than this gateway reads'];
  if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') return ['request_timeout', 'the request head did not come in time'];
  return ['bad_request', 'this is not a request that can be understood in one way only'];
}

/** Answers on a bare socket and closes it. */
function refuse(socket: Duplex, code: ErrorCode, message: string): void {
  // After CONNECT the socket is nobody's: a reset under this answer would end the process.
  socket.on('error', ignoreBecauseCloseFollows);
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  const status = STATUS_OF[code];
  const body = JSON.stringify({ code: status, error: code, message });
  socket.end(
    `HTTP/1.1 ${status} ${http.STATUS_CODES[status]}\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
  hangUp(socket);
}

/** Ends a connection behind its last answer. */
function hangUp(socket: Duplex): void {
  socket.end();
  // What the client still sends is dropped, or the kernel would reset the connection under the answer.
  socket.resume();
  const timer = setTimeout(() => socket.destroy(), REFUSED_LINGER_MS);
  timer.unref();
  socket.once('close', () => clearTimeout(timer));
}
