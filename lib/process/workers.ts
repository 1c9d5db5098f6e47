/**
 * The primary process: starts the workers, replaces those that die, and makes them act as one (reload, shutdown,
 * metrics, the one that probes). It serves no requests and knows no users; what a worker does is in worker-link.ts.
 */
import type { GatewayOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import type { HealthMessage } from '../health/shared-health.ts';
import type { Logger } from '../observe/log.ts';
import { type Counter, type Metrics, renderFamilies } from '../observe/metrics.ts';
import { MetricsSum } from '../observe/metrics-sum.ts';
import { Backoff } from '../support/backoff.ts';
import type { Clock, Timer } from '../support/clock.ts';
import type { InheritedSocket } from './inherited-sockets.ts';
import type { Stoppable } from './shutdown.ts';
import type { FromWorker, Question, ToWorker, WorkerSummary } from './worker-messages.ts';

/** A worker's process as the primary sees it. */
export interface WorkerProcess {
  /** Unlike that of any other, past or present. */
  readonly id: number;
  readonly pid: number;
  send(message: ToWorker): void;
  kill(): void;
}

export interface WorkerEvents {
  message(message: FromWorker): void;
  /** Once, when the process is gone. */
  ended(how: string): void;
}

export interface WorkersOptions {
  readonly count: number;
  /** What a worker starts with, at each start. */
  readonly options: () => GatewayOptions;
  readonly sockets: readonly (InheritedSocket | null)[];
  /** Where the worker in a place answers calls of the admin API; null = nowhere. */
  readonly adminSocketOf: (place: number) => string | null;
  /** Asked for by a worker: reads the file again for all of them, or only checks it. */
  readonly reload: (dryRun: boolean) => Promise<void>;
  readonly fork: (events: WorkerEvents) => WorkerProcess;
  readonly clock: Clock;
  readonly logger: Logger;
  /** The primary's own, added to those of the workers. */
  readonly metrics: Metrics;
}

const FIRST_RESTART_MS = 100;
const MOST_RESTART_MS = 30_000;
/** After so long a life its place starts again with the shortest wait. */
const SOUND_AFTER_MS = 60_000;
/** A worker that is this busy is left out of what is asked of all. */
const ANSWER_WAIT_MS = 1_000;
const RELOAD_WAIT_MS = 10_000;
/** Beyond the grace, for the worker to say that it is over; then to end. */
const DRAIN_SLACK_MS = 2_000;
const STOP_WAIT_MS = 5_000;

interface Running {
  readonly process: WorkerProcess;
  readonly startedMs: number;
  /** Set once it listens. */
  summary: WorkerSummary | null;
  loaded: boolean;
  /** Why it cannot start, in its own words. */
  complaint: string | null;
}

interface Place {
  readonly number: number;
  readonly backoff: Backoff;
  running: Running | null;
  timer: Timer | null;
}

interface Asked {
  readonly processId: number;
  readonly settle: (value: unknown) => void;
}

/** No answer: the worker is gone, or too busy. */
const NONE = Symbol('none');

export class Workers implements Stoppable {
  /** Resolves when the workers cannot go on, with the reason. */
  readonly failed: Promise<OperatorError>;
  readonly #options: WorkersOptions;
  readonly #places: readonly Place[];
  readonly #sum = new MetricsSum();
  readonly #restarts: Counter;
  readonly #asked = new Map<number, Asked>();
  readonly #waitingForEnd = new Set<() => void>();
  #fail: (error: OperatorError) => void = () => undefined;
  #lastQuestion = 0;
  #proberId: number | null = null;
  /** Set while the first workers start. */
  #starting: { readonly done: () => void; readonly failed: (error: OperatorError) => void } | null = null;
  #reload: Promise<void> = Promise.resolve();
  #closing = false;

  constructor(options: WorkersOptions) {
    this.#options = options;
    const { metrics } = options;
    this.#places = Array.from({ length: options.count }, (_, index) => ({
      number: index + 1,
      backoff: new Backoff({ firstMs: FIRST_RESTART_MS, mostMs: MOST_RESTART_MS }),
      running: null,
      timer: null,
    }));
    this.failed = new Promise((resolve) => {
      this.#fail = resolve;
    });
    this.#restarts = metrics.counter('gateway_worker_restarts_total', 'Workers started in the place of a dead one');
    metrics.gauge('gateway_workers', 'Worker processes that serve', {}, () => this.#serving().length);
  }

  /** Of a worker: all of them listen on the same, on the same stores. */
  get summary(): WorkerSummary {
    const [first] = this.#serving();
    if (!first?.summary) throw new Error('no worker serves');
    return first.summary;
  }

  /** Of a worker that can answer calls of the admin API; null = none can. */
  get adminSocket(): string | null {
    const place = this.#places.find(({ running }) => running?.summary);
    return place ? this.#options.adminSocketOf(place.number) : null;
  }

  get pids(): readonly number[] {
    return this.#serving().map(({ process }) => process.pid);
  }

  /** Null = ready; else why not. */
  notReady(): string | null {
    if (this.#closing) return 'the gateway is shutting down';
    const serving = this.#serving();
    if (serving.length === 0) return 'no worker is serving';
    return serving.every(({ loaded }) => loaded) ? null : 'the services have not been loaded yet';
  }

  /** Resolves when all serve. Rejects with OperatorError when one cannot start; none is left running then. */
  async start(): Promise<void> {
    try {
      await new Promise<void>((done, failed) => {
        this.#starting = { done, failed };
        for (const place of this.#places) this.#fork(place);
      });
    } catch (error) {
      await this.stop();
      throw error;
    } finally {
      this.#starting = null;
    }
  }

  /**
   * All workers read the files again; only if all of them can use what they read does it take effect, in all. Rejects
   * with OperatorError. Reloads follow one another.
   */
  reload(options: GatewayOptions): Promise<void> {
    const next = this.#reload.then(() => this.#reloadAll(options));
    this.#reload = next.catch(() => undefined);
    return next;
  }

  /** Prometheus text: the metrics of all workers and of this process, added up. */
  async render(): Promise<string> {
    await Promise.all(this.#serving().map((one) => this.#ask(one, { kind: 'metrics' }, ANSWER_WAIT_MS)));
    this.#sum.update('primary', this.#options.metrics.collect());
    return renderFamilies(this.#sum.collect());
  }

  beginClosing(): void {
    this.#closing = true;
    this.#endUnfinished();
    this.#tellAll({ type: 'begin-closing' });
  }

  stopAccepting(): void {
    this.#closing = true;
    this.#tellAll({ type: 'stop-accepting' });
  }

  async drain(graceMs: number): Promise<number> {
    const left = await Promise.all(
      this.#serving().map((one) => this.#ask(one, { kind: 'drain', graceMs }, graceMs + DRAIN_SLACK_MS)),
    );
    // One that died has cut what it had.
    return left.reduce<number>((sum, count) => sum + (typeof count === 'number' ? count : 1), 0);
  }

  async stop(): Promise<void> {
    this.#closing = true;
    this.#endUnfinished();
    this.#tellAll({ type: 'stop' });
    const timer = this.#options.clock.after(STOP_WAIT_MS, () => this.killAll());
    await new Promise<void>((resolve) => {
      const look = () => {
        if (this.#places.some(({ running }) => running)) return;
        this.#waitingForEnd.delete(look);
        resolve();
      };
      this.#waitingForEnd.add(look);
      look();
    });
    timer.cancel();
  }

  /** At once; for the end of this process. */
  killAll(): void {
    for (const { running } of this.#places) running?.process.kill();
  }

  /** Those that do not serve yet have nothing to finish. */
  #endUnfinished(): void {
    for (const { timer, running } of this.#places) {
      timer?.cancel();
      if (running && !running.summary) running.process.kill();
    }
  }

  #serving(): Running[] {
    return this.#places.flatMap(({ running }) => (running?.summary ? [running] : []));
  }

  #tellAll(message: ToWorker): void {
    for (const { running } of this.#places) running?.process.send(message);
  }

  #fork(place: Place): void {
    const process = this.#options.fork({
      message: (message) => this.#take(place, running, message),
      ended: (how) => this.#ended(place, running, how),
    });
    const running: Running = {
      process,
      startedMs: this.#options.clock.monotonic(),
      summary: null,
      loaded: false,
      complaint: null,
    };
    place.running = running;
  }

  #take(place: Place, running: Running, message: FromWorker): void {
    // Its counts are among those of the dead already.
    if (place.running !== running) return;
    switch (message.type) {
      case 'hello':
        this.#welcome(place, running);
        break;
      case 'ready':
        this.#ready(place, running, message.summary);
        break;
      case 'loaded':
        running.loaded = true;
        break;
      case 'failed':
        running.complaint = message.message;
        break;
      case 'metrics':
        this.#sum.update(`${place.number}`, message.families);
        break;
      case 'answer':
        this.#asked.get(message.id)?.settle(message.value);
        break;
      case 'reload':
        void this.#reloadFor(running, message.id, message.dryRun);
        break;
      case 'health':
        this.#carry(running.process.id, message.to, message.message);
    }
  }

  #welcome(place: Place, { process }: Running): void {
    const { options, sockets } = this.#options;
    const adminSocket = this.#options.adminSocketOf(place.number);
    process.send({ type: 'start', start: { place: place.number, options: options(), sockets, adminSocket } });
    // The first one that speaks probes: nodes are to be known as soon as there is anybody to ask for them.
    if (this.#proberId === null) this.#appoint(process.id);
    else process.send({ type: 'appoint', probes: process.id === this.#proberId });
  }

  #ready(place: Place, running: Running, summary: WorkerSummary): void {
    running.summary = summary;
    const { logger } = this.#options;
    if (this.#starting) {
      if (this.#places.every((one) => one.running?.summary)) this.#starting.done();
    } else {
      logger.info('worker_restarted', { worker: place.number, pid: running.process.pid });
    }
  }

  #carry(from: number, to: 'prober' | 'others' | number, message: HealthMessage): void {
    for (const { running } of this.#places) {
      const id = running?.process.id;
      if (id === undefined || id === from) continue;
      if (to === 'others' || id === (to === 'prober' ? this.#proberId : to))
        running?.process.send({ type: 'health', from, message });
    }
  }

  #appoint(proberId: number | null): void {
    this.#proberId = proberId;
    for (const { running } of this.#places)
      running?.process.send({ type: 'appoint', probes: running.process.id === proberId });
  }

  #ended(place: Place, running: Running, how: string): void {
    const { logger, clock } = this.#options;
    const { process, startedMs, summary, complaint } = running;
    place.running = null;
    this.#sum.retire(`${place.number}`);
    for (const asked of [...this.#asked.values()]) if (asked.processId === process.id) asked.settle(NONE);
    if (process.id === this.#proberId) this.#appoint(this.#nextProber());
    if (this.#starting) {
      const reason = complaint ?? `worker ${place.number} ended before it could serve: ${how}`;
      this.#starting.failed(new OperatorError(reason));
    } else if (!this.#closing) {
      logger.error('worker_ended', { worker: place.number, pid: process.pid, how, error: complaint ?? undefined });
      if (clock.monotonic() - startedMs >= SOUND_AFTER_MS) place.backoff.reset();
      if (this.#lostSockets(summary)) return;
      this.#restartLater(place);
    }
    for (const look of [...this.#waitingForEnd]) look();
  }

  #nextProber(): number | null {
    // One that serves knows the nodes already; one that starts will.
    const next = this.#serving()[0] ?? this.#places.find(({ running }) => running)?.running;
    return next?.process.id ?? null;
  }

  /**
   * Node closes an address when nobody listens on it any more. One of its own is bound again by the next worker; one
   * that was inherited is gone, and only systemd, which has it still, can hand it out again.
   */
  #lostSockets(summary: WorkerSummary | null): boolean {
    if (summary === null || this.#serving().length > 0) return false;
    if (this.#options.sockets.every((socket) => socket === null)) return false;
    this.#fail(new OperatorError('all workers died, and with them the sockets that systemd had passed'));
    return true;
  }

  #restartLater(place: Place): void {
    place.timer = this.#options.clock.after(place.backoff.nextMs(), () => {
      place.timer = null;
      this.#restarts.inc();
      this.#fork(place);
    });
  }

  /** Resolves when every worker has let go of what one of them has changed, or is too busy to say so. */
  async refresh(): Promise<void> {
    await Promise.all(this.#serving().map((one) => this.#ask(one, { kind: 'refresh' }, ANSWER_WAIT_MS)));
  }

  async #reloadFor({ process }: Running, id: number, dryRun: boolean): Promise<void> {
    try {
      await this.#options.reload(dryRun);
      process.send({ type: 'reloaded', id, error: null });
    } catch (error) {
      process.send({ type: 'reloaded', id, error: error instanceof Error ? error.message : String(error) });
    }
  }

  async #reloadAll(options: GatewayOptions): Promise<void> {
    const asked = this.#serving();
    const answers = await Promise.all(asked.map((one) => this.#ask(one, { kind: 'prepare', options }, RELOAD_WAIT_MS)));
    asked.forEach((one, index) => {
      const answer = answers[index];
      if (typeof answer === 'string') throw new OperatorError(answer);
      // One that is gone is replaced by one that reads the files anew.
      if (answer === NONE && this.#isRunning(one))
        throw new OperatorError(`the worker with process id ${one.process.pid} does not answer`);
    });
    const left = asked.filter((one) => this.#isRunning(one));
    await Promise.all(left.map((one) => this.#ask(one, { kind: 'commit' }, RELOAD_WAIT_MS)));
  }

  #isRunning(one: Running): boolean {
    return this.#places.some(({ running }) => running === one);
  }

  #ask({ process }: Running, question: Question, waitMs: number): Promise<unknown> {
    this.#lastQuestion += 1;
    const id = this.#lastQuestion;
    return new Promise((resolve) => {
      const settle = (value: unknown) => {
        timer.cancel();
        this.#asked.delete(id);
        resolve(value);
      };
      const timer = this.#options.clock.after(waitMs, () => settle(NONE));
      this.#asked.set(id, { processId: process.id, settle });
      process.send({ type: 'ask', id, question });
    });
  }
}
