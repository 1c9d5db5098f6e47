/**
 * The loop that probes: by schedule, and at once when a request asks for it. It feeds the registry and decides
 * nothing about states itself; who may be chosen is not its business either.
 */
import { isDeepStrictEqual } from 'node:util';
import type { HealthOptions } from '../config/options.ts';
import type { Node, Service, Snapshot } from '../model.ts';
import { describeError, type Logger } from '../observe/log.ts';
import type { Clock, Timer } from '../support/clock.ts';
import type { HealthRegistry, ProbeKind } from './health-registry.ts';
import { type Probe, type ProbeResult, type ProbeTarget, probe as probeAddress } from './probe.ts';
import { firstDelayMs, nextDelayMs, type ProbePlan, planFor, regularMs, tighterPlan } from './schedule.ts';

export interface HealthCheckerOptions {
  readonly registry: HealthRegistry;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly options: HealthOptions;
  readonly probe?: Probe;
  /** [0, 1) */
  readonly random?: () => number;
  /** Most probes under way at one time; default 64. */
  readonly maxConcurrent?: number;
}

/** What an address is probed with, from all services that share it. */
interface Settings {
  readonly target: ProbeTarget;
  readonly plan: ProbePlan;
  readonly timeoutMs: number;
  readonly failures: number;
  readonly onDemandMs: number;
}

/** A probe waiting for its turn or under way. */
interface Run {
  readonly controller: AbortController;
  readonly done: Promise<void>;
}

interface Watched {
  readonly healthKey: string;
  settings: Settings;
  timer: Timer | null;
  dueMs: number;
  run: Run | null;
  lastOnDemandMs: number;
  /** Results of probes only: a burst of failing requests must not put the next probe off. */
  successesInRow: number;
  failuresInRow: number;
}

interface Waiter {
  readonly signal: AbortSignal;
  readonly begin: () => void;
}

const MAX_CONCURRENT = 64;
/**
 * Where one never-probed node is found UP, the others get so long to follow, so that waiting requests do not all go to
 * the quickest, and one that stays silent does not hold them up.
 */
const OTHERS_WAIT_MS = 100;

export class HealthChecker {
  readonly #registry: HealthRegistry;
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #probe: Probe;
  readonly #random: () => number;
  readonly #maxConcurrent: number;
  readonly #watched = new Map<string, Watched>();
  /** Runs without a turn yet, the next one first. */
  readonly #waiting: Waiter[] = [];
  #options: HealthOptions;
  #snapshot: Snapshot | null = null;
  #underWay = 0;
  /** Set while started. */
  #unsubscribe: (() => void) | null = null;

  constructor(options: HealthCheckerOptions) {
    this.#registry = options.registry;
    this.#clock = options.clock;
    this.#logger = options.logger;
    this.#options = options.options;
    this.#probe = options.probe ?? probeAddress;
    this.#random = options.random ?? Math.random;
    this.#maxConcurrent = options.maxConcurrent ?? MAX_CONCURRENT;
  }

  /** Idempotent. Without it addresses are watched and take passive observations, but nothing is probed. */
  start(): void {
    if (this.#unsubscribe) return;
    this.#unsubscribe = this.#registry.subscribe((healthKey, _from, to) => {
      if (to === 'DOWN') this.#wentDown(healthKey);
    });
    for (const watched of this.#watched.values()) this.#scheduleFirst(watched);
  }

  /** Idempotent. Ends probes under way; their results are ignored. */
  stop(): void {
    this.#unsubscribe?.();
    this.#unsubscribe = null;
    for (const watched of this.#watched.values()) this.#cancel(watched);
  }

  /** Call on every snapshot swap. Nodes of disabled services and disabled nodes are not watched. */
  update(snapshot: Snapshot): void {
    this.#snapshot = snapshot;
    const wanted = collectSettings(snapshot, this.#options);
    for (const [healthKey, watched] of this.#watched) {
      if (wanted.has(healthKey)) continue;
      this.#cancel(watched);
      this.#watched.delete(healthKey);
    }
    this.#registry.retain(wanted);
    for (const [healthKey, settings] of wanted) {
      const watched = this.#watched.get(healthKey);
      if (watched) this.#adjust(watched, settings);
      else this.#watch(healthKey, settings);
    }
  }

  /** Takes over changed settings; schedules they do not change run on. */
  configure(options: HealthOptions): void {
    this.#options = options;
    this.#registry.setSuspicion(options.suspicion);
    if (this.#snapshot) this.update(this.#snapshot);
  }

  /**
   * The extra probe for a bound user whose node is DOWN. Resolves when the probe is over and observed. At most one
   * extra probe per `onDemandMs` and address; sooner calls share the one under way or resolve without a probe.
   */
  async probeNow(node: Pick<Node, 'healthKey'>): Promise<void> {
    const watched = this.#watched.get(node.healthKey);
    if (!watched || !this.#unsubscribe) return;
    if (!watched.run) {
      const nowMs = this.#clock.monotonic();
      if (nowMs - watched.lastOnDemandMs < watched.settings.onDemandMs) return;
      watched.lastOnDemandMs = nowMs;
    }
    await this.#runUrgently(watched);
  }

  /**
   * Probes those of `nodes` that were never checked, in parallel; calls that overlap share the probes. Resolves when all
   * are over and observed, or a moment after the first that was found UP.
   */
  async probeUnknown(nodes: readonly Pick<Node, 'healthKey'>[]): Promise<void> {
    if (!this.#unsubscribe) return;
    const asked = nodes.flatMap(({ healthKey }) => this.#watched.get(healthKey) ?? []);
    const fresh = asked.filter(({ healthKey }) => !this.#registry.wasChecked(healthKey));
    if (fresh.length === 0) return;
    let left = fresh.length;
    let timer: Timer | null = null;
    await new Promise<void>((resolve) => {
      const ended = ({ healthKey }: Watched) => {
        left -= 1;
        if (left === 0) resolve();
        else if (this.#registry.stateOf(healthKey) === 'UP') timer ??= this.#clock.after(OTHERS_WAIT_MS, resolve);
      };
      for (const watched of fresh) void this.#runUrgently(watched).then(() => ended(watched));
    });
    (timer as Timer | null)?.cancel();
  }

  /** What a proxied request showed: a response head is ok; a connect error, reset or timeout before it is not. */
  passive(node: Pick<Node, 'healthKey'>, ok: boolean, error?: string): void {
    this.#registry.observe(node.healthKey, ok, 'passive', error);
  }

  #watch(healthKey: string, settings: Settings): void {
    const watched: Watched = {
      healthKey,
      settings,
      timer: null,
      dueMs: 0,
      run: null,
      lastOnDemandMs: Number.NEGATIVE_INFINITY,
      successesInRow: 0,
      failuresInRow: 0,
    };
    this.#watched.set(healthKey, watched);
    if (this.#unsubscribe) this.#scheduleFirst(watched);
  }

  #adjust(watched: Watched, settings: Settings): void {
    const samePlan = isDeepStrictEqual(watched.settings.plan, settings.plan);
    watched.settings = settings;
    // Without a timer nothing is started, or a probe is under way and the next one follows the new plan anyway.
    if (samePlan || !watched.timer) return;
    this.#scheduleNext(watched);
  }

  #cancel(watched: Watched): void {
    watched.timer?.cancel();
    watched.timer = null;
    watched.run?.controller.abort();
    watched.run = null;
  }

  #scheduleFirst(watched: Watched): void {
    this.#schedule(watched, firstDelayMs(watched.settings.plan, this.#random));
  }

  #scheduleNext(watched: Watched): void {
    this.#schedule(watched, nextDelayMs(watched.settings.plan, watched, this.#random));
  }

  #schedule(watched: Watched, delayMs: number): void {
    watched.timer?.cancel();
    watched.dueMs = this.#clock.monotonic() + delayMs;
    watched.timer = this.#clock.after(delayMs, () => {
      watched.timer = null;
      const run = watched.run ?? this.#begin(watched, 'active', false);
      void run.done.then(() => {
        // Aborted = removed or stopped meanwhile; a restart has made a schedule of its own.
        if (!run.controller.signal.aborted) this.#scheduleNext(watched);
      });
    });
  }

  /** Requests saw the node fail while its next probe may be minutes away: it could be back long before. */
  #wentDown(healthKey: string): void {
    const watched = this.#watched.get(healthKey);
    if (!watched?.timer) return;
    watched.successesInRow = 0;
    watched.failuresInRow = 0;
    const { plan } = watched.settings;
    if (watched.dueMs - this.#clock.monotonic() > regularMs(plan) * (1 + plan.jitter)) this.#scheduleNext(watched);
  }

  #runUrgently(watched: Watched): Promise<void> {
    const { run } = watched;
    if (!run) return this.#begin(watched, 'immediate', true).done;
    // A scheduled probe may be far back in the queue; someone is waiting for it now.
    const index = this.#waiting.findIndex((waiter) => waiter.signal === run.controller.signal);
    if (index > 0) this.#waiting.unshift(...this.#waiting.splice(index, 1));
    return run.done;
  }

  #begin(watched: Watched, kind: ProbeKind, urgent: boolean): Run {
    const controller = new AbortController();
    const done = this.#probeOnce(watched, kind, urgent, controller.signal).finally(() => {
      if (watched.run === run) watched.run = null;
    });
    const run: Run = { controller, done };
    watched.run = run;
    return run;
  }

  async #probeOnce(watched: Watched, kind: ProbeKind, urgent: boolean, signal: AbortSignal): Promise<void> {
    await this.#takeTurn(urgent, signal);
    try {
      if (signal.aborted) return;
      const result = await this.#ask(watched, signal);
      if (!signal.aborted) this.#record(watched, kind, result);
    } finally {
      this.#giveTurn();
    }
  }

  async #ask(watched: Watched, signal: AbortSignal): Promise<ProbeResult> {
    const { target, timeoutMs } = watched.settings;
    try {
      return await this.#probe(target, timeoutMs, { signal, clock: this.#clock });
    } catch (error) {
      this.#logger.error('health_probe_threw', { healthKey: watched.healthKey, error: describeError(error) });
      return { ok: false, error: describeError(error) };
    }
  }

  #record(watched: Watched, kind: ProbeKind, result: ProbeResult): void {
    watched.successesInRow = result.ok ? watched.successesInRow + 1 : 0;
    watched.failuresInRow = result.ok ? 0 : watched.failuresInRow + 1;
    this.#registry.observe(watched.healthKey, result.ok, kind, result.ok ? undefined : result.error);
  }

  #takeTurn(urgent: boolean, signal: AbortSignal): Promise<void> {
    if (this.#underWay < this.#maxConcurrent) {
      this.#underWay += 1;
      return Promise.resolve();
    }
    return new Promise((begin) => {
      const waiter = { signal, begin };
      if (urgent) this.#waiting.unshift(waiter);
      else this.#waiting.push(waiter);
    });
  }

  /** Hands the turn to the next one waiting. One that was cancelled meanwhile gives it on at once. */
  #giveTurn(): void {
    const next = this.#waiting.shift();
    if (next) next.begin();
    else this.#underWay -= 1;
  }
}

/** Addresses to probe, each once. */
function collectSettings(snapshot: Snapshot, options: HealthOptions): Map<string, Settings> {
  const collected = new Map<string, Settings>();
  for (const service of snapshot.services.values()) {
    if (!service.enabled) continue;
    for (const node of service.nodes) {
      if (!node.enabled) continue;
      const own = settingsOf(service, node, options);
      const shared = collected.get(node.healthKey);
      collected.set(node.healthKey, shared ? combine(shared, own) : own);
    }
  }
  return collected;
}

function settingsOf(service: Service, node: Node, options: HealthOptions): Settings {
  const { protocol, hostname, port, authority } = node;
  const { ca, insecure } = service.upstream;
  return {
    target: { protocol, hostname, port, authority, path: service.healthPath, ca, insecure },
    plan: planFor(service, options),
    timeoutMs: service.health.timeoutMs ?? options.timeoutMs,
    failures: service.health.failures ?? options.failures,
    onDemandMs: service.health.onDemandMs ?? options.onDemandMs,
  };
}

/** Probed as often as the most eager service wants, judged as patiently as the most patient; TLS as the first says. */
function combine(first: Settings, second: Settings): Settings {
  return {
    target: first.target,
    plan: tighterPlan(first.plan, second.plan),
    timeoutMs: Math.max(first.timeoutMs, second.timeoutMs),
    failures: Math.max(first.failures, second.failures),
    onDemandMs: Math.min(first.onDemandMs, second.onDemandMs),
  };
}
