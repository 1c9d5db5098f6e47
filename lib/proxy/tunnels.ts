/** The open tunnels, so that they can be closed when their user is moved or unbound, and at shutdown. */
import type { Duplex } from 'node:stream';
import type { BindingChange } from '../bindings/binding-store.ts';
import type { RequestContext } from '../context.ts';

/** WebSocket close codes (RFC 6455 section 7.4.1 and its registry). */
export const CLOSE_GOING_AWAY = 1001;
export const CLOSE_SERVICE_RESTART = 1012;

export interface Tunnel {
  readonly serviceId: string;
  readonly userId: string | null;
  readonly nodeId: string;
  readonly client: Duplex;
  readonly webSocket: boolean;
  /** Ends both sides; `code` goes to a WebSocket client first. */
  close(code: number): void;
}

/** What tells whether a user still belongs where their tunnel leads. */
export interface TunnelDirectory {
  findByUserId(
    serviceId: string,
    userId: string,
  ): Promise<{ readonly binding: { readonly nodeId: string; readonly frozen: boolean } | undefined }>;
}

export class Tunnels {
  readonly #byUser = new Map<string, Set<Tunnel>>();
  readonly #all = new Set<Tunnel>();
  readonly #directory: TunnelDirectory;

  constructor(directory: TunnelDirectory) {
    this.#directory = directory;
  }

  get size(): number {
    return this.#all.size;
  }

  add(tunnel: Tunnel): void {
    this.#all.add(tunnel);
    const key = keyOf(tunnel);
    if (key === null) return;
    const ofUser = this.#byUser.get(key) ?? new Set();
    this.#byUser.set(key, ofUser.add(tunnel));
    // The user may have been moved between the decision and now, when no tunnel was there yet to be closed.
    if (tunnel.userId !== null) void this.#recheck(tunnel.serviceId, tunnel.userId, new Set([tunnel]));
  }

  remove(tunnel: Tunnel): void {
    this.#all.delete(tunnel);
    const key = keyOf(tunnel);
    const ofUser = key === null ? undefined : this.#byUser.get(key);
    if (key === null || !ofUser) return;
    ofUser.delete(tunnel);
    if (ofUser.size === 0) this.#byUser.delete(key);
  }

  /** A change is a hint: whoever's binding leads elsewhere now is cut off, everybody else stays. */
  changed(change: BindingChange): void {
    for (const key of change.keys) {
      if (key.kind !== 'id') continue;
      const ofUser = this.#byUser.get(`${key.serviceId}:${key.userId}`);
      if (ofUser) void this.#recheck(key.serviceId, key.userId, ofUser);
    }
  }

  /** Asks about every user with a tunnel, as after a time without news. */
  recheckAll(): void {
    for (const ofUser of [...this.#byUser.values()]) {
      const [tunnel] = ofUser;
      if (tunnel && tunnel.userId !== null) void this.#recheck(tunnel.serviceId, tunnel.userId, ofUser);
    }
  }

  closeAll(code: number): void {
    for (const tunnel of [...this.#all]) tunnel.close(code);
  }

  async #recheck(serviceId: string, userId: string, tunnels: ReadonlySet<Tunnel>): Promise<void> {
    let nodeId: string | undefined;
    try {
      const { binding } = await this.#directory.findByUserId(serviceId, userId);
      nodeId = binding?.nodeId;
    } catch {
      // Nobody knows: an open tunnel is not cut on a guess. The next change or recheck asks again.
      return;
    }
    for (const tunnel of [...tunnels]) if (tunnel.nodeId !== nodeId) tunnel.close(CLOSE_SERVICE_RESTART);
  }
}

function keyOf(tunnel: Tunnel): string | null {
  return tunnel.userId === null ? null : `${tunnel.serviceId}:${tunnel.userId}`;
}

export function tunnelOf(context: RequestContext): Pick<Tunnel, 'serviceId' | 'userId' | 'nodeId'> {
  // Only a bound user's tunnel depends on a binding; one that was balanced or anonymous belongs to nobody.
  const bound = context.epoch > 0;
  return {
    serviceId: context.service?.id ?? '',
    userId: bound ? context.userId : null,
    nodeId: context.node?.id ?? '',
  };
}
