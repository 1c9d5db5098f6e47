/**
 * Speaks to the admin listener of a running gateway: JSON in and out, and files streamed both ways. Every failure is a
 * CommandFailure that says what to do. Where the gateway is and who asks is decided in connect.ts.
 */
import * as http from 'node:http';
import * as https from 'node:https';
import type { Readable } from 'node:stream';
import { describeError } from '../observe/log.ts';
import { CommandFailure } from './cli-error.ts';

export interface AdminClientOptions {
  /** Scheme, host, port and, behind another server, a path. */
  readonly base: URL;
  readonly token: string | null;
  /** Certificate authorities in PEM besides the system's own ones; null = those. */
  readonly ca: string | null;
}

export type Query = Readonly<Record<string, string | undefined>>;
export type Json = Readonly<Record<string, unknown>>;

export interface CallParts {
  readonly query?: Query;
  /** Sent as JSON. */
  readonly body?: unknown;
}

export interface JsonAnswer {
  readonly status: number;
  readonly body: Json;
}

/** Longest silence of the gateway on a call that is no file. */
const SILENCE_MS = 30_000;
/** Of an answer that is held as a whole. */
const MOST_ANSWER_BYTES = 67_108_864;

export class AdminClient {
  readonly #options: AdminClientOptions;
  readonly #agent: http.Agent;

  constructor(options: AdminClientOptions) {
    this.#options = options;
    const { protocol } = options.base;
    this.#agent =
      protocol === 'https:'
        ? new https.Agent({ keepAlive: true, ...(options.ca === null ? {} : { ca: options.ca }) })
        : new http.Agent({ keepAlive: true });
  }

  /** Where the gateway is, for messages. */
  get address(): string {
    return this.#options.base.href.replace(/\/$/, '');
  }

  close(): void {
    this.#agent.destroy();
  }

  async get(path: string, query: Query = {}): Promise<Json> {
    return (await this.send('GET', path, { query })).body;
  }

  /** Rejects with CommandFailure for everything but a success. */
  async send(method: string, path: string, { query = {}, body }: CallParts = {}): Promise<JsonAnswer> {
    const text = body === undefined ? undefined : JSON.stringify(body);
    const request = this.#request(
      method,
      path,
      query,
      text === undefined ? {} : { 'Content-Type': 'application/json' },
    );
    request.setTimeout(SILENCE_MS, () => request.destroy(silent()));
    const answered = this.#answer(request);
    request.end(text);
    return this.#read(await answered);
  }

  /** What lies beside the API: `/readyz`, `/metrics`. */
  async text(path: string): Promise<{ readonly status: number; readonly text: string }> {
    const request = this.#request('GET', path, {}, {});
    request.setTimeout(SILENCE_MS, () => request.destroy(silent()));
    const answered = this.#answer(request);
    request.end();
    const response = await answered;
    return { status: response.statusCode ?? 0, text: await this.#readText(response) };
  }

  /**
   * Sends a file as fast as the gateway takes it, until the file ends or the answer is there. When the source fails the
   * request is cut off, so that a part never passes for the whole.
   */
  async upload(path: string, query: Query, contentType: string, source: Readable): Promise<Json> {
    const request = this.#request('POST', path, query, { 'Content-Type': contentType });
    let sourceError: unknown = null;
    const fail = (error: Error) => {
      sourceError ??= error;
      request.destroy(error);
    };
    source.once('error', fail);
    source.once('close', () => {
      if (!source.readableEnded && !request.destroyed) fail(new Error('it was closed'));
    });
    const answered = this.#answer(request);
    // Nobody wants the rest then; but the connection has to last until the answer has been read.
    request.once('response', () => source.unpipe(request));
    if (source.errored) fail(source.errored);
    else source.pipe(request);
    try {
      return (await this.#read(await answered)).body;
    } catch (error) {
      if (sourceError === null) throw error;
      throw new CommandFailure({
        code: 'file_unreadable',
        message: `the file could not be read to its end, so nothing was taken over: ${describeError(sourceError)}`,
        cause: sourceError,
      });
    } finally {
      request.destroy();
      source.destroy();
    }
  }

  /** The answer's body, unread. A connection that ends early is an error of the stream. */
  async download(path: string, query: Query): Promise<http.IncomingMessage> {
    const request = this.#request('GET', path, query, {});
    const answered = this.#answer(request);
    request.end();
    const response = await answered;
    if (response.statusCode !== 200) await this.#read(response);
    return response;
  }

  #request(method: string, path: string, query: Query, headers: http.OutgoingHttpHeaders): http.ClientRequest {
    const { base, token } = this.#options;
    const given = Object.entries(query).filter((pair): pair is [string, string] => pair[1] !== undefined);
    const search = given.length === 0 ? '' : `?${new URLSearchParams(given)}`;
    const { request } = base.protocol === 'https:' ? https : http;
    return request(base, {
      method,
      // As a text: a URL would take a user id of two dots for a step up.
      path: base.pathname.replace(/\/$/, '') + path + search,
      agent: this.#agent,
      headers: {
        Accept: 'application/json, text/plain, */*',
        'User-Agent': 'sticky-gateway-cli',
        ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
        ...headers,
      },
    });
  }

  #answer(request: http.ClientRequest): Promise<http.IncomingMessage> {
    return new Promise((resolve, reject) => {
      request.once('response', resolve);
      // Stays for good: a write may fail after the answer has come.
      request.on('error', (error: NodeJS.ErrnoException) => reject(this.#unreachable(error)));
    });
  }

  async #read(response: http.IncomingMessage): Promise<JsonAnswer> {
    const text = await this.#readText(response);
    const status = response.statusCode ?? 0;
    let body: unknown;
    try {
      body = JSON.parse(text);
    } catch (error) {
      throw this.#stranger(status, error);
    }
    if (typeof body !== 'object' || body === null || Array.isArray(body)) throw this.#stranger(status);
    if (status >= 400) throw refusal(status, body as Json);
    if (status < 200 || status >= 300) throw this.#stranger(status);
    return { status, body: body as Json };
  }

  async #readText(response: http.IncomingMessage): Promise<string> {
    const chunks: Buffer[] = [];
    let bytes = 0;
    try {
      for await (const chunk of response as AsyncIterable<Buffer>) {
        bytes += chunk.length;
        if (bytes > MOST_ANSWER_BYTES) throw this.#stranger(response.statusCode ?? 0);
        chunks.push(chunk);
      }
    } catch (error) {
      if (error instanceof CommandFailure) throw error;
      throw this.#unreachable(error as NodeJS.ErrnoException);
    }
    return Buffer.concat(chunks).toString('utf8');
  }

  #stranger(status: number, cause?: unknown): CommandFailure {
    return new CommandFailure({
      code: 'not_a_gateway',
      message: `${this.address} answers (status ${status}), but not as the admin listener of a gateway does`,
      hint: 'give the address of admin.listen, not that of the public listener: --admin http://HOST:9090',
      cause,
    });
  }

  #unreachable(error: NodeJS.ErrnoException): CommandFailure {
    const { base } = this.#options;
    const code = error.code ?? '';
    const refused = code === 'ECONNREFUSED' || (error instanceof AggregateError && error.message === '');
    const certificate = /CERT|SELF_SIGNED|ISSUER|ALTNAME/.test(code);
    const brokeOff = code === 'ECONNRESET' || code === 'EPIPE';
    const hint = refused
      ? 'start one with sticky-gateway --config gateway.yaml, or name its admin listener: --admin http://HOST:PORT'
      : certificate
        ? 'give the file of the certificate, or of its authority, with --ca FILE'
        : code === 'EPROTO'
          ? 'the listener may speak plain HTTP: try http:// instead of https://'
          : (brokeOff || code.startsWith('HPE_')) && base.protocol === 'http:'
            ? 'it may have stopped, or speak TLS: see its log, or try https://'
            : 'see --admin, and whether the network lets you through';
    return new CommandFailure({
      code: refused ? 'no_gateway' : brokeOff ? 'broke_off' : 'unreachable',
      message: refused
        ? `no gateway answers at ${this.address}: connection refused`
        : brokeOff
          ? `${this.address} broke the connection off before its answer was complete`
          : `${this.address} cannot be reached: ${describeError(error)}`,
      hint,
      cause: error,
    });
  }
}

function silent(): NodeJS.ErrnoException {
  return Object.assign(new Error(`no answer within ${SILENCE_MS / 1_000} s`), { code: 'ETIMEDOUT' });
}

const HINTS: Readonly<Record<string, string>> = {
  unauthorized: 'give a token of admin.tokens: in STICKY_GATEWAY_TOKEN, in a file with --token-file, or with --config',
  ip_not_allowed: "admin.allow in the gateway's configuration says who may use the admin listener",
  too_many_requests: 'wait a minute, then try again with the right token',
  not_ready: 'the gateway has not read its services yet: see its log and sticky-gateway status',
  store_unavailable: 'the gateway cannot reach its store: see its log',
};

/** What the API refused, in its own words. */
function refusal(status: number, body: Json): CommandFailure {
  const { error, message, code: _status, ...details } = body;
  const code = typeof error === 'string' ? error : `status_${status}`;
  return new CommandFailure({
    code,
    message: typeof message === 'string' ? message : `the gateway refused with status ${status}`,
    hint: HINTS[code],
    details: { status, ...details },
  });
}
