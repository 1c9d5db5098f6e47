/**
 * What this gateway believes about each address: a state machine fed with observations. It holds no timers and
 * opens no connections; probing is done by health-checker.ts.
 */
import type { Logger } from '../observe/log.ts';
import type { Metrics } from '../observe/metrics.ts';
import type { Clock } from '../support/clock.ts';

/** UNKNOWN counts as usable. */
export type HealthState = 'UNKNOWN' | 'UP' | 'DOWN';
/** `active` = by schedule, `passive` = seen on a proxied request, `immediate` = asked for by a request. */
export type ProbeKind = 'active' | 'passive' | 'immediate';
export type HealthListener = (healthKey: string, from: HealthState, to: HealthState) => void;

export interface HealthDetails {
  readonly state: HealthState;
  /** Since when the state holds, epoch milliseconds; null = the address is not watched. */
  readonly sinceMs: number | null;
  /** Last observation of any kind, epoch milliseconds; null = never checked. */
  readonly lastCheckMs: number | null;
  readonly lastKind: ProbeKind | null;
  /** What the last failure said; a later success leaves it. */
  readonly lastError: string | null;
  readonly successesInRow: number;
  readonly failuresInRow: number;
}

/** `flips` or more addresses going DOWN within `windowMs` mean the gateway's own network; flips 0 = never. */
export interface Suspicion {
  readonly flips: number;
  readonly windowMs: number;
}

export interface HealthRegistryOptions {
  readonly suspicion: Suspicion;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics?: Metrics;
}

interface Entry {
  /** Failures in a row that make DOWN. */
  failures: number;
  state: HealthState;
  sinceMs: number;
  lastCheckMs: number | null;
  lastKind: ProbeKind | null;
  lastError: string | null;
  successesInRow: number;
  failuresInRow: number;
  /** A change to DOWN was held back under suspicion; the next failure after the hold is believed. */
  held: boolean;
}

/** A recent change to DOWN, with what it takes to undo it. */
interface RecentDown {
  readonly atMs: number;
  readonly from: HealthState;
  readonly sinceMs: number;
}

const UNWATCHED: HealthDetails = {
  state: 'UNKNOWN',
  sinceMs: null,
  lastCheckMs: null,
  lastKind: null,
  lastError: null,
  successesInRow: 0,
  failuresInRow: 0,
};

const STATE_VALUE: Record<HealthState, number> = { UNKNOWN: 0, UP: 1, DOWN: 2 };

/**
 * Spec §9. Consecutive failures make DOWN, one success makes UP.
 *
 * Suspicion of the own network: when changes to DOWN of `flips` distinct addresses fall within `windowMs`, that is
 * logged once, those of them still DOWN go back to the state they had, and for `windowMs` no address goes DOWN. The
 * first failure of an address after that (its next round) is believed at once and not counted again, so that a real
 * outage of many nodes is held back once and not for ever. Changes to UP are never held back and raise no
 * suspicion: an answer proves that the network works, and bound users must not wait.
 */
export class HealthRegistry {
  readonly #entries = new Map<string, Entry>();
  readonly #listeners = new Set<HealthListener>();
  #onNews: (healthKey: string) => void = () => undefined;
  /** In the order of time. */
  readonly #recentDowns = new Map<string, RecentDown>();
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #metrics: Metrics | undefined;
  #suspicion: Suspicion;
  #holdUntilMs = Number.NEGATIVE_INFINITY;
  #version = 0;

  constructor(options: HealthRegistryOptions) {
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#metrics = options.metrics;
    this.#suspicion = options.suspicion;
  }

  /** Counts up with each change of a state and of what is watched: what was read at the same number still holds. */
  get version(): number {
    return this.#version;
  }

  /** UNKNOWN for an address that is not watched. */
  stateOf(healthKey: string): HealthState {
    return this.#entries.get(healthKey)?.state ?? 'UNKNOWN';
  }

  /** Not DOWN. */
  isUsable(healthKey: string): boolean {
    return this.#entries.get(healthKey)?.state !== 'DOWN';
  }

  /** False until the first observation of any kind. */
  wasChecked(healthKey: string): boolean {
    const entry = this.#entries.get(healthKey);
    return entry !== undefined && entry.lastCheckMs !== null;
  }

  details(healthKey: string): HealthDetails {
    const entry = this.#entries.get(healthKey);
    if (!entry) return UNWATCHED;
    const { state, sinceMs, lastCheckMs, lastKind, lastError, successesInRow, failuresInRow } = entry;
    return { state, sinceMs, lastCheckMs, lastKind, lastError, successesInRow, failuresInRow };
  }

  /** Takes in one result; true only if the state changed. Addresses that are not watched are ignored. */
  observe(healthKey: string, ok: boolean, kind: ProbeKind, error?: string): boolean {
    const entry = this.#entries.get(healthKey);
    if (!entry) return false;
    const routine = kind === 'passive' && ok && entry.state === 'UP' && entry.failuresInRow === 0;
    entry.lastCheckMs = this.#clock.now();
    entry.lastKind = kind;
    const flipped = ok ? this.#succeeded(healthKey, entry) : this.#failed(healthKey, entry, error ?? 'failed');
    if (!routine && !flipped) this.#onNews(healthKey);
    return flipped;
  }

  /** UP and the last observation was a success, or not watched: one more success says nothing new. */
  isSound(healthKey: string): boolean {
    const entry = this.#entries.get(healthKey);
    return entry === undefined || (entry.state === 'UP' && entry.failuresInRow === 0);
  }

  /** The addresses that were checked. */
  checked(): string[] {
    return [...this.#entries].filter(([, entry]) => entry.lastCheckMs !== null).map(([healthKey]) => healthKey);
  }

  /**
   * Takes over what another process found out about an address. A change of state is told to the listeners, but not
   * logged or counted: that was done where it was found. Addresses that are not watched are ignored.
   */
  adopt(healthKey: string, details: HealthDetails): void {
    const entry = this.#entries.get(healthKey);
    if (!entry) return;
    const { sinceMs, ...rest } = details;
    const from = entry.state;
    Object.assign(entry, rest);
    entry.sinceMs = sinceMs ?? entry.sinceMs;
    if (entry.state !== from) this.#tellListeners(healthKey, from, entry.state);
  }

  /** Calls `onNews` with each address of which more is known than before: all but one success after another. */
  watchNews(onNews: (healthKey: string) => void): void {
    this.#onNews = onNews;
  }

  /** Watches exactly these addresses: new ones are UNKNOWN, staying ones keep their state, others are forgotten. */
  retain(watched: ReadonlyMap<string, { readonly failures: number }>): void {
    for (const healthKey of this.#entries.keys()) {
      if (!watched.has(healthKey)) this.#forget(healthKey);
    }
    for (const [healthKey, { failures }] of watched) {
      const entry = this.#entries.get(healthKey);
      if (entry) entry.failures = failures;
      else this.#watch(healthKey, failures);
    }
  }

  /** Changes the thresholds of suspicion; a hold under way runs out as it was. */
  setSuspicion(suspicion: Suspicion): void {
    this.#suspicion = suspicion;
  }

  /** Calls `listener` on each change of state, also on one undone by suspicion. Returns the way to unsubscribe. */
  subscribe(listener: HealthListener): () => void {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  #succeeded(healthKey: string, entry: Entry): boolean {
    entry.failuresInRow = 0;
    entry.successesInRow += 1;
    entry.held = false;
    if (entry.state === 'UP') return false;
    this.#change(healthKey, entry, 'UP');
    return true;
  }

  #failed(healthKey: string, entry: Entry, error: string): boolean {
    entry.successesInRow = 0;
    entry.failuresInRow += 1;
    entry.lastError = error;
    if (entry.state === 'DOWN' || entry.failuresInRow < entry.failures) return false;
    if (!this.#mayGoDown(healthKey, entry)) {
      entry.held = true;
      return false;
    }
    entry.held = false;
    this.#change(healthKey, entry, 'DOWN');
    return true;
  }

  #mayGoDown(healthKey: string, entry: Entry): boolean {
    const nowMs = this.#clock.monotonic();
    if (nowMs < this.#holdUntilMs) return false;
    if (entry.held) return true;
    for (const [key, down] of this.#recentDowns) {
      if (nowMs - down.atMs <= this.#suspicion.windowMs) break;
      this.#recentDowns.delete(key);
    }
    // Deleted first: a map keeps the place of a key that it already has, and the order must be that of time.
    this.#recentDowns.delete(healthKey);
    this.#recentDowns.set(healthKey, { atMs: nowMs, from: entry.state, sinceMs: entry.sinceMs });
    if (this.#suspicion.flips <= 0 || this.#recentDowns.size < this.#suspicion.flips) return true;
    this.#suspect(nowMs);
    return false;
  }

  #suspect(nowMs: number): void {
    const { windowMs } = this.#suspicion;
    const downs = [...this.#recentDowns];
    this.#recentDowns.clear();
    this.#holdUntilMs = nowMs + windowMs;
    this.#metrics?.counter('gateway_health_suspicions_total', 'Times the gateway suspected its own network').inc();
    this.#logger.warn('health_network_suspected', { nodes: downs.length, windowMs });
    for (const [healthKey, down] of downs) {
      const entry = this.#entries.get(healthKey);
      if (entry?.state !== 'DOWN') continue;
      entry.held = true;
      entry.state = down.from;
      entry.sinceMs = down.sinceMs;
      this.#notify(healthKey, 'DOWN', down.from);
    }
  }

  #change(healthKey: string, entry: Entry, to: HealthState): void {
    const from = entry.state;
    entry.state = to;
    entry.sinceMs = this.#clock.now();
    this.#metrics?.counter('gateway_health_flips_total', 'Changes of health state', { to }).inc();
    const fields = { healthKey, from, to, kind: entry.lastKind };
    if (to === 'DOWN') this.#logger.warn('health_changed', { ...fields, error: entry.lastError });
    else this.#logger.info('health_changed', fields);
    this.#notify(healthKey, from, to);
  }

  #notify(healthKey: string, from: HealthState, to: HealthState): void {
    this.#tellListeners(healthKey, from, to);
    this.#onNews(healthKey);
  }

  #tellListeners(healthKey: string, from: HealthState, to: HealthState): void {
    this.#version += 1;
    for (const listener of this.#listeners) {
      try {
        listener(healthKey, from, to);
      } catch (error) {
        // The observer may be a request on its way; a listener's fault must not become its fault.
        this.#logger.error('health_listener_failed', { healthKey, error: String(error) });
      }
    }
  }

  #watch(healthKey: string, failures: number): void {
    const entry: Entry = {
      failures,
      state: 'UNKNOWN',
      sinceMs: this.#clock.now(),
      lastCheckMs: null,
      lastKind: null,
      lastError: null,
      successesInRow: 0,
      failuresInRow: 0,
      held: false,
    };
    this.#entries.set(healthKey, entry);
    this.#version += 1;
    this.#metrics?.gauge(
      'gateway_health_state',
      'Health of an address: 0 unknown, 1 up, 2 down',
      { target: healthKey },
      () => STATE_VALUE[entry.state],
      // All processes believe the same, but for the moment that the news takes.
      'max',
    );
  }

  #forget(healthKey: string): void {
    this.#entries.delete(healthKey);
    this.#version += 1;
    this.#recentDowns.delete(healthKey);
    this.#metrics?.removeGauge('gateway_health_state', { target: healthKey });
  }
}
