/** A small HTTP client for tests: one request, the whole answer, no cleverness. */
import * as http from 'node:http';

export interface Answer {
  readonly status: number;
  readonly headers: http.IncomingHttpHeaders;
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
  readonly text: string;
  /** Throws if the body is not JSON. */
  json(): Record<string, unknown>;
}

export interface Call {
  readonly method?: string;
  readonly headers?: http.OutgoingHttpHeaders | readonly string[];
  readonly body?: string | Buffer;
  readonly agent?: http.Agent;
  readonly signal?: AbortSignal;
}

/** Sends `call` to `http://127.0.0.1:port` and reads the answer; rejects when the connection breaks off. */
export function call(port: number, path: string, options: Call = {}): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const request = http.request({
      host: '127.0.0.1',
      port,
      path,
      method: options.method ?? 'GET',
      headers: options.headers as http.OutgoingHttpHeaders,
      agent: options.agent ?? false,
      ...(options.signal ? { signal: options.signal } : {}),
    });
    request.on('error', reject);
    request.on('response', (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        const body = Buffer.concat(chunks);
        resolve({
          status: response.statusCode ?? 0,
          headers: response.headers,
          rawHeaders: response.rawHeaders,
          body,
          text: body.toString('utf8'),
          json: () => JSON.parse(body.toString('utf8')) as Record<string, unknown>,
        });
      });
    });
    request.end(options.body);
  });
}

export function postJson(
  port: number,
  path: string,
  value: unknown,
  headers: Record<string, string> = {},
): Promise<Answer> {
  return call(port, path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...headers },
    body: JSON.stringify(value),
  });
}
