/**
 * In which version of a route a user is bound. A user with bindings in several belongs to the first of them in the
 * order of the route, on every gateway and whatever is cached where; nothing here makes or moves a binding.
 */
import type { BindingChange } from '../bindings/binding-store.ts';
import type { Clock } from '../support/clock.ts';
import { Lru } from '../support/lru.ts';
import type { PlannedVersion } from './route-plan.ts';

/** What is needed of the bindings. All that reject do so with `directory_unavailable`. */
export interface VersionBindings {
  cachedByUserId(serviceId: string, userId: string): object | undefined;
  findByUserId(serviceId: string, userId: string): Promise<{ readonly binding: object | undefined }>;
  findByUsername(serviceId: string, username: string): Promise<{ readonly binding: object | undefined }>;
}

export interface BoundVersionsOptions {
  readonly bindings: VersionBindings;
  /** How long "not bound in this version" is believed of a user who is bound in a later one. */
  readonly ttlMs: number;
  /** How long while the store does not answer. */
  readonly staleIfErrorMs: number;
  readonly maxEntries: number;
  readonly clock: Clock;
}

export class BoundVersions {
  readonly #options: BoundVersionsOptions;
  /**
   * When it was asked and found that a user is not bound in a service. It only ever lets a binding in a later version
   * be found without asking again: that somebody is bound nowhere is never concluded from it. The stores tell of no new
   * rows, so a second home in an earlier version, started elsewhere, is seen when the time is up.
   */
  readonly #notBound: Lru<string, number>;
  #freshSinceMs = Number.NEGATIVE_INFINITY;

  constructor(options: BoundVersionsOptions) {
    this.#options = options;
    this.#notBound = new Lru(options.maxEntries);
  }

  /** The version, if it is known without asking; undefined = ask `find`. No I/O, for the hot path. */
  cached(versions: readonly PlannedVersion[], userId: string): PlannedVersion | undefined {
    const { bindings, clock, ttlMs } = this.#options;
    for (const version of versions) {
      const { id } = version.service;
      if (bindings.cachedByUserId(id, userId) !== undefined) return version;
      const askedAtMs = this.#notBound.get(`${id}:${userId}`);
      if (askedAtMs === undefined || askedAtMs < this.#freshSinceMs) return undefined;
      if (clock.monotonic() - askedAtMs >= ttlMs) return undefined;
    }
    return undefined;
  }

  /**
   * Asks for each version in turn; undefined = the user is bound in none. Rejects with `directory_unavailable` when
   * that cannot be said, also when a binding in a later version is known: it may not be the one that counts.
   */
  async find(versions: readonly PlannedVersion[], userId: string): Promise<PlannedVersion | undefined> {
    const { bindings, clock } = this.#options;
    const notBound: [key: string, askedAtMs: number][] = [];
    let failure: unknown;
    for (const version of versions) {
      const key = `${version.service.id}:${userId}`;
      const askedAtMs = clock.monotonic();
      try {
        const { binding } = await bindings.findByUserId(version.service.id, userId);
        if (binding) {
          for (const [name, atMs] of notBound) this.#notBound.set(name, atMs);
          return version;
        }
        notBound.push([key, askedAtMs]);
      } catch (error) {
        if (!this.#wasNotBound(key)) throw error;
        failure = error;
      }
    }
    if (failure !== undefined) throw failure;
    return undefined;
  }

  /** The same at a login; `usernameOf`: the name as each version's service reads it. */
  async findByUsername(
    versions: readonly PlannedVersion[],
    usernameOf: (version: PlannedVersion) => string,
  ): Promise<PlannedVersion | undefined> {
    for (const version of versions) {
      const { binding } = await this.#options.bindings.findByUsername(version.service.id, usernameOf(version));
      if (binding) return version;
    }
    return undefined;
  }

  /**
   * The version in which the user is bound while they are not in `serviceId`: a binding made there would be a second home.
   * Rejects with `directory_unavailable`.
   */
  async findOther(
    versions: readonly PlannedVersion[],
    serviceId: string,
    userId: string,
  ): Promise<PlannedVersion | undefined> {
    const { bindings } = this.#options;
    const others = versions.filter(({ service }) => service.id !== serviceId);
    if (others.length === 0 || (await bindings.findByUserId(serviceId, userId)).binding) return undefined;
    for (const version of others) {
      if ((await bindings.findByUserId(version.service.id, userId)).binding) return version;
    }
    return undefined;
  }

  /** A binding changed: what was found of its user is void. */
  changed(change: BindingChange): void {
    for (const key of change.keys) if (key.kind === 'id') this.#notBound.delete(`${key.serviceId}:${key.userId}`);
  }

  /** News may have been missed: everything is asked again, as far as there is an answer. */
  expireAll(): void {
    this.#freshSinceMs = this.#options.clock.monotonic();
  }

  #wasNotBound(key: string): boolean {
    const askedAtMs = this.#notBound.get(key);
    return askedAtMs !== undefined && this.#options.clock.monotonic() - askedAtMs < this.#options.staleIfErrorMs;
  }
}
