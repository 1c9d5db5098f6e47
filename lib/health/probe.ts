/**
 * One probe of one address: an HTTP GET or a TCP connect on a connection of its own, closed before the deadline
 * whatever the other side does. What the result means is decided elsewhere.
 */
import { readFile } from 'node:fs/promises';
import http from 'node:http';
import https from 'node:https';
import net from 'node:net';
import { describeError } from '../observe/log.ts';
import { type Clock, systemClock } from '../support/clock.ts';

export interface ProbeTarget {
  readonly protocol: 'http:' | 'https:';
  /** An IPv6 address without brackets. */
  readonly hostname: string;
  readonly port: number;
  /** `host[:port]` for the Host field. */
  readonly authority: string;
  /** Path of the GET, with a query if there is one; null = a TCP connect. */
  readonly path: string | null;
  /** Path of a PEM file with the authorities for https; null = the system's. */
  readonly ca: string | null;
  /** True = https certificates are not verified. */
  readonly insecure: boolean;
}

export type ProbeResult =
  | { readonly ok: true; readonly status?: number }
  | { readonly ok: false; readonly error: string };

export interface ProbeOptions {
  /** Ends the probe at once, as a failure. */
  readonly signal?: AbortSignal;
  readonly clock?: Clock;
}

/** Reads `target` once. Contract of the function below, so that others can be put in its place. */
export type Probe = (target: ProbeTarget, timeoutMs: number, options?: ProbeOptions) => Promise<ProbeResult>;

/** More of a body than this is not read. */
const BODY_LIMIT_BYTES = 65_536;

type Settle = (result: ProbeResult) => void;

/**
 * 2xx within `timeoutMs` (resolving, connecting, TLS and the response head together) is a success; redirects are
 * not followed. Resolves as soon as the head is there; what follows is drained until the deadline or 64 KB, so that
 * nodes do not see resets in their logs. Never rejects.
 */
export async function probe(target: ProbeTarget, timeoutMs: number, options: ProbeOptions = {}): Promise<ProbeResult> {
  try {
    const readsCa = target.path !== null && target.protocol === 'https:' && target.ca !== null;
    const ca = readsCa ? await readFile(target.ca) : undefined;
    return await attempt(target, ca, timeoutMs, options);
  } catch (error) {
    return { ok: false, error: describeError(error) };
  }
}

function attempt(
  target: ProbeTarget,
  ca: Buffer | undefined,
  timeoutMs: number,
  { signal, clock = systemClock }: ProbeOptions,
): Promise<ProbeResult> {
  return new Promise((resolve) => {
    // Both calls after the first are no-ops for the promise, but not for the connection.
    const finish: Settle = (result) => {
      resolve(result);
      timer.cancel();
      signal?.removeEventListener('abort', onAbort);
      connection.destroy();
    };
    const onAbort = () => finish({ ok: false, error: 'aborted' });
    const connection =
      target.path === null ? connectOnly(target, finish) : get(target, target.path, ca, resolve, finish);
    const timer = clock.after(timeoutMs, () => finish({ ok: false, error: `no answer within ${timeoutMs} ms` }));
    if (signal?.aborted) onAbort();
    else signal?.addEventListener('abort', onAbort);
  });
}

function connectOnly(target: ProbeTarget, finish: Settle): { destroy(): unknown } {
  const socket = net.connect({ host: target.hostname, port: target.port });
  socket.on('connect', () => finish({ ok: true }));
  socket.on('error', (error) => finish({ ok: false, error: describeError(error) }));
  return socket;
}

function get(
  target: ProbeTarget,
  path: string,
  ca: Buffer | undefined,
  resolve: Settle,
  finish: Settle,
): { destroy(): unknown } {
  const request = (target.protocol === 'https:' ? https : http).request({
    host: target.hostname,
    port: target.port,
    path,
    agent: false,
    headers: { Host: target.authority, 'User-Agent': 'sticky-gateway-probe', Accept: '*/*' },
    rejectUnauthorized: !target.insecure,
    ...(ca === undefined ? {} : { ca }),
  });
  const broken: ProbeResult = { ok: false, error: 'the connection closed without an answer' };
  request.on('response', (response) => {
    const result = judge(response.statusCode ?? 0);
    resolve(result);
    let bytesRead = 0;
    response.on('data', (chunk: Buffer) => {
      bytesRead += chunk.length;
      if (bytesRead > BODY_LIMIT_BYTES) finish(result);
    });
    response.on('error', () => finish(result));
  });
  request.on('error', (error) => finish({ ok: false, error: describeError(error) }));
  // Comes last in every case, and is all there is after an answer like 101.
  request.on('close', () => finish(broken));
  request.end();
  return request;
}

function judge(status: number): ProbeResult {
  return status >= 200 && status < 300 ? { ok: true, status } : { ok: false, error: `status ${status}` };
}
