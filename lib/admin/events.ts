/**
 * Changes as they happen, for a console: server-sent events of health and of the registry. Nobody is told what was
 * missed; a client that connects reads the state by the other calls first.
 */
import type { ServerResponse } from 'node:http';
import type { HealthState } from '../health/health-registry.ts';
import type { Snapshot } from '../model.ts';
import type { Clock, Timer } from '../support/clock.ts';
import { AdminError } from './admin-error.ts';
import type { CallHandler } from './call.ts';

const HEARTBEAT_MS = 15_000;
const MOST_CLIENTS = 32;
/** Bytes a client may be behind before it is dropped. */
const MOST_BEHIND = 65_536;

export interface EventsOptions {
  readonly health: { subscribe(listener: (healthKey: string, from: HealthState, to: HealthState) => void): () => void };
  readonly registry: {
    readonly snapshot: Snapshot | undefined;
    subscribe(listener: (snapshot: Snapshot) => void): () => void;
  };
  readonly clock: Clock;
  readonly mostClients?: number;
}

export class AdminEvents {
  readonly #options: EventsOptions;
  readonly #clients = new Set<ServerResponse>();
  #unsubscribe: (() => void)[] = [];
  #timer: Timer | undefined;

  constructor(options: EventsOptions) {
    this.#options = options;
  }

  get clients(): number {
    return this.#clients.size;
  }

  /** Idempotent. */
  start(): void {
    if (this.#unsubscribe.length > 0) return;
    const { health, registry } = this.#options;
    this.#unsubscribe = [
      health.subscribe((healthKey, from, to) => this.#healthChanged(healthKey, from, to)),
      registry.subscribe(({ version, stale }) => this.#send('registry', { version, stale })),
    ];
    this.#timer = this.#beat();
  }

  /** Idempotent; ends every stream. */
  stop(): void {
    for (const unsubscribe of this.#unsubscribe.splice(0)) unsubscribe();
    this.#timer?.cancel();
    this.#timer = undefined;
    for (const client of this.#clients) client.end();
    this.#clients.clear();
  }

  readonly open: CallHandler = ({ response, requestId }) => {
    if (this.#clients.size >= (this.#options.mostClients ?? MOST_CLIENTS)) {
      throw new AdminError('overloaded', 'too many clients listen to events already', {
        headers: { 'Retry-After': '5' },
      });
    }
    response.writeHead(200, {
      'Content-Type': 'text/event-stream; charset=utf-8',
      'Cache-Control': 'no-store',
      'X-Content-Type-Options': 'nosniff',
      'X-Accel-Buffering': 'no',
      'X-Request-Id': requestId,
    });
    this.#clients.add(response);
    response.once('close', () => this.#clients.delete(response));
    const { snapshot } = this.#options.registry;
    this.#write(response, frame('hello', { version: snapshot?.version ?? 0, stale: snapshot?.stale ?? false }));
    return null;
  };

  #healthChanged(healthKey: string, from: HealthState, to: HealthState): void {
    const nodes = [...(this.#options.registry.snapshot?.nodes.values() ?? [])];
    for (const node of nodes) {
      if (node.healthKey === healthKey) this.#send('health', { serviceId: node.serviceId, nodeId: node.id, from, to });
    }
  }

  #send(event: string, data: object): void {
    if (this.#clients.size === 0) return;
    const text = frame(event, data);
    for (const client of this.#clients) this.#write(client, text);
  }

  #write(client: ServerResponse, text: string): void {
    client.write(text);
    if (client.writableLength <= MOST_BEHIND) return;
    this.#clients.delete(client);
    client.destroy();
  }

  #beat(): Timer {
    return this.#options.clock.after(HEARTBEAT_MS, () => {
      for (const client of this.#clients) this.#write(client, ': beat\n\n');
      this.#timer = this.#beat();
    });
  }
}

function frame(event: string, data: object): string {
  return `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
}
