/**
 * Health of nodes in one of several processes: one of them probes, the others tell it what requests showed and take
 * over what it finds out. Who probes is decided elsewhere, and messages are carried by somebody else.
 */
import type { Node, Snapshot } from '../model.ts';
import type { Clock } from '../support/clock.ts';
import type { HealthChecker } from './health-checker.ts';
import type { HealthDetails, HealthRegistry } from './health-registry.ts';

type States = readonly (readonly [healthKey: string, details: HealthDetails])[];

export type HealthMessage =
  | { readonly kind: 'states'; readonly states: States }
  | { readonly kind: 'tell' }
  | { readonly kind: 'observed'; readonly healthKey: string; readonly ok: boolean; readonly error: string | null }
  | { readonly kind: 'probe'; readonly id: number; readonly healthKey: string; readonly unknownOnly: boolean }
  | { readonly kind: 'probed'; readonly id: number; readonly states: States };

/** Carries messages between the processes, those from one to another in order; any may be lost. */
export interface HealthChannel {
  toProber(message: HealthMessage): void;
  toOthers(message: HealthMessage): void;
  toOne(process: number, message: HealthMessage): void;
}

export interface SharedHealthOptions {
  readonly registry: HealthRegistry;
  readonly checker: HealthChecker;
  readonly channel: HealthChannel;
  readonly clock: Clock;
  /** Least time between two probes of an address that this process asks for. */
  readonly onDemandMs: number;
  /** Longest wait for the outcome of a probe elsewhere. */
  readonly waitMs: number;
}

interface Question {
  readonly healthKey: string;
  readonly askedMs: number;
  /** Set while the answer is awaited. */
  pending: { readonly id: number; readonly done: Promise<void>; readonly settle: () => void } | null;
}

type Addressed = Pick<Node, 'healthKey'>;

export class SharedHealth {
  readonly #options: SharedHealthOptions;
  /** By address; the last time each was asked for. */
  readonly #questions = new Map<string, Question>();
  #lastId = 0;
  #probes = false;
  #running = false;

  constructor(options: SharedHealthOptions) {
    this.#options = options;
    options.registry.watchNews((healthKey) => {
      if (this.#probes) options.channel.toOthers({ kind: 'states', states: this.#statesOf([healthKey]) });
    });
  }

  /** Idempotent. */
  start(): void {
    if (this.#running) return;
    this.#running = true;
    if (this.#probes) this.#options.checker.start();
  }

  /** Idempotent. Whoever waits for a probe goes on without it. */
  stop(): void {
    this.#running = false;
    this.#options.checker.stop();
    this.#settleAll();
  }

  /** `probes`: this process is the one from now on, with the states it has heard of. Call at each change. */
  appoint(probes: boolean): void {
    // What the one before was asked is not answered any more.
    this.#settleAll();
    this.#probes = probes;
    if (!this.#running) return;
    if (probes) this.#options.checker.start();
    else {
      this.#options.checker.stop();
      this.#options.channel.toProber({ kind: 'tell' });
    }
  }

  update(snapshot: Snapshot): void {
    this.#options.checker.update(snapshot);
    const watched = new Set([...snapshot.nodes.values()].map(({ healthKey }) => healthKey));
    for (const [healthKey, { pending }] of this.#questions) {
      if (watched.has(healthKey)) continue;
      pending?.settle();
      this.#questions.delete(healthKey);
    }
    // Of addresses that are new here the other may know more already.
    if (!this.#probes) this.#options.channel.toProber({ kind: 'tell' });
  }

  /** See HealthChecker.passive. Only what is news leaves this process: most requests just show what is known. */
  passive(node: Addressed, ok: boolean, error?: string): void {
    const { registry, checker, channel } = this.#options;
    if (this.#probes) {
      checker.passive(node, ok, error);
      return;
    }
    const { healthKey } = node;
    if (ok) {
      if (registry.isSound(healthKey)) return;
      // One success makes UP, here at once; so the next one is no news.
      registry.adopt(healthKey, { ...registry.details(healthKey), state: 'UP', failuresInRow: 0 });
    }
    channel.toProber({ kind: 'observed', healthKey, ok, error: error ?? null });
  }

  /** See HealthChecker.probeNow. */
  probeNow(node: Addressed): Promise<void> {
    return this.#probes ? this.#options.checker.probeNow(node) : this.#ask(node.healthKey, false);
  }

  /** See HealthChecker.probeUnknown. */
  async probeUnknown(nodes: readonly Addressed[]): Promise<void> {
    const { checker, registry } = this.#options;
    if (this.#probes) return checker.probeUnknown(nodes);
    const unknown = nodes.filter(({ healthKey }) => !registry.wasChecked(healthKey));
    await Promise.all(unknown.map(({ healthKey }) => this.#ask(healthKey, true)));
  }

  /** A message from the process with this number. */
  receive(from: number, message: HealthMessage): void {
    const { registry, channel } = this.#options;
    switch (message.kind) {
      case 'states':
        // A message of one that probed before can still be on its way.
        if (!this.#probes) this.#adopt(message.states);
        break;
      case 'tell':
        if (this.#probes) channel.toOne(from, { kind: 'states', states: this.#statesOf(registry.checked()) });
        break;
      case 'observed':
        if (this.#probes) registry.observe(message.healthKey, message.ok, 'passive', message.error ?? undefined);
        break;
      case 'probe':
        void this.#probeFor(from, message);
        break;
      case 'probed':
        if (!this.#probes) this.#adopt(message.states);
        for (const { pending } of this.#questions.values()) if (pending?.id === message.id) pending.settle();
    }
  }

  async #probeFor(from: number, message: HealthMessage & { kind: 'probe' }): Promise<void> {
    const { checker, channel } = this.#options;
    const { id, healthKey, unknownOnly } = message;
    if (this.#probes) await (unknownOnly ? checker.probeUnknown([{ healthKey }]) : checker.probeNow({ healthKey }));
    channel.toOne(from, { kind: 'probed', id, states: this.#probes ? this.#statesOf([healthKey]) : [] });
  }

  /** At most one question per address is under way, and, but for unknown ones, one per `onDemandMs`. */
  async #ask(healthKey: string, unknownOnly: boolean): Promise<void> {
    if (!this.#running) return;
    const { clock, onDemandMs, waitMs, channel } = this.#options;
    const last = this.#questions.get(healthKey);
    if (last?.pending) return last.pending.done;
    const nowMs = clock.monotonic();
    if (last && !unknownOnly && nowMs - last.askedMs < onDemandMs) return;
    this.#lastId += 1;
    const id = this.#lastId;
    const question: Question = { healthKey, askedMs: nowMs, pending: null };
    let resolveDone: () => void = () => undefined;
    const done = new Promise<void>((resolve) => {
      resolveDone = resolve;
    });
    const settle = () => {
      timer.cancel();
      question.pending = null;
      resolveDone();
    };
    const timer = clock.after(waitMs, settle);
    question.pending = { id, done, settle };
    this.#questions.set(healthKey, question);
    channel.toProber({ kind: 'probe', id, healthKey, unknownOnly });
    return done;
  }

  #adopt(states: States): void {
    for (const [healthKey, details] of states) this.#options.registry.adopt(healthKey, details);
  }

  #statesOf(healthKeys: readonly string[]): States {
    return healthKeys.map((healthKey) => [healthKey, this.#options.registry.details(healthKey)]);
  }

  #settleAll(): void {
    for (const { pending } of this.#questions.values()) pending?.settle();
  }
}
