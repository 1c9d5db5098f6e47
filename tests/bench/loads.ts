/** The loads that are put on a proxy: wrk for requests, a client of its own for event streams. */
import { once } from 'node:events';
import * as fs from 'node:fs';
import * as http from 'node:http';
import * as path from 'node:path';
import { type Processes, pause } from './processes.ts';
export const REQUEST_LOADS = ['get', 'post', 'download'] as const;
export type RequestLoad = (typeof REQUEST_LOADS)[number];

/** Paths as the backends know them; the prefixes are the gateway's services. */
export const PATHS = { get: '/js/a/x', post: '/js/a/sink', download: '/js/a/file', sse: '/js/e/events' } as const;
export const TOKENS = { requests: 'bench-token', events: 'bench-events-token' } as const;

export interface LoadResult {
  /** Requests that were answered, or events that arrived. */
  readonly count: number;
  readonly seconds: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Connections that failed, or answers that did not come in time. */
  readonly socketErrors: number;
}

/** Told when the part of a load begins and ends that counts. */
export interface Meter {
  begin(): void;
  end(): void;
}

export interface WrkOptions {
  readonly program: string;
  readonly processes: Processes;
  readonly connections: number;
  /** Where the script for POST may be written. */
  readonly folder: string;
}

const STREAMS = 200;
const SETTLE_MS = 300;
const POST_BYTES = 16_384;

/** Rejects when anything but 2xx and 3xx was answered: what refuses requests is not fast. */
export async function runWrk(
  { program, processes, connections, folder }: WrkOptions,
  load: RequestLoad,
  port: number,
  seconds: number,
  meter: Meter,
): Promise<LoadResult> {
  const args = ['-t1', `-c${connections}`, `-d${seconds}s`, '--latency', '-H', `x-token: ${TOKENS.requests}`];
  if (load === 'post') {
    const script = path.join(folder, 'post.lua');
    fs.writeFileSync(script, `wrk.method = "POST"\nwrk.body = string.rep("x", ${POST_BYTES})\n`);
    args.push('-s', script);
  }
  meter.begin();
  const output = await processes.run(program, [...args, `http://127.0.0.1:${port}${PATHS[load]}`]);
  meter.end();
  return readWrk(output);
}

function readWrk(output: string): LoadResult {
  const refused = /Non-2xx or 3xx responses: (\d+)/.exec(output)?.[1];
  if (refused !== undefined) throw new Error(`${refused} requests were refused`);
  const total = /(\d+) requests in ([\d.]+\w+),/.exec(output);
  const errors = /Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)/.exec(output);
  return {
    count: Number(total?.[1] ?? 0),
    seconds: milliseconds(total?.[2]) / 1_000,
    p50Ms: percentile(output, 50),
    p99Ms: percentile(output, 99),
    socketErrors: (errors?.slice(1) ?? []).reduce((sum, count) => sum + Number(count), 0),
  };
}

/** From a line of its own: the table above may hold a share like `88.99%`, too. */
function percentile(output: string, percent: number): number {
  return milliseconds(new RegExp(`^\\s*${percent}%\\s+(\\S+)`, 'm').exec(output)?.[1]);
}

/** As wrk writes times: `12.30us`, `1.20ms`, `1.50s`, `1.00m`. */
function milliseconds(text: string | undefined): number {
  const found = /^([\d.]+)(us|ms|s|m)$/.exec(text ?? '');
  const factor = { us: 0.001, ms: 1, s: 1_000, m: 60_000 }[found?.[2] ?? ''];
  return factor === undefined ? Number.NaN : Number(found?.[1]) * factor;
}

/** 200 streams that stay open; counts their events and how late each is. Opening them is not part of what counts. */
export async function runSse(port: number, seconds: number, meter: Meter): Promise<LoadResult> {
  const latenessMs: number[] = [];
  let counting = false;
  let broken = 0;
  const streams = await Promise.all(Array.from({ length: STREAMS }, () => openStream(port)));
  for (const response of streams) {
    response.on('data', (chunk: Buffer) => {
      if (!counting) return;
      const nowMs = Date.now();
      for (const [, sentMs] of chunk.toString().matchAll(/data: (\d+)/g)) latenessMs.push(nowMs - Number(sentMs));
    });
    response.on('error', () => {
      if (counting) broken += 1;
    });
  }
  // What had gathered before anybody read is late by no fault of the proxy.
  await pause(SETTLE_MS);
  meter.begin();
  counting = true;
  const startedMs = performance.now();
  await pause(seconds * 1_000);
  const elapsedMs = performance.now() - startedMs;
  counting = false;
  meter.end();
  for (const response of streams) response.destroy();
  latenessMs.sort((left, right) => left - right);
  const at = (share: number) => latenessMs[Math.floor(latenessMs.length * share)] ?? Number.NaN;
  return {
    count: latenessMs.length,
    seconds: elapsedMs / 1_000,
    p50Ms: at(0.5),
    p99Ms: at(0.99),
    socketErrors: broken,
  };
}

async function openStream(port: number): Promise<http.IncomingMessage> {
  const request = http.get({
    host: '127.0.0.1',
    port,
    path: PATHS.sse,
    headers: { 'x-token': TOKENS.events },
    agent: false,
  });
  const [response] = (await once(request, 'response')) as [http.IncomingMessage];
  if (response.statusCode !== 200) throw new Error(`an event stream was refused: ${response.statusCode}`);
  return response;
}
