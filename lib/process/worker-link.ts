/**
 * A worker's end of the line to the primary process: does what it is told and says what it is asked. Signals are the
 * primary's business: a worker has no will of its own, and ends when the primary is gone.
 */
import type { GatewayOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import type { HealthChannel, HealthMessage } from '../health/shared-health.ts';
import type { FamilySnapshot } from '../observe/metrics.ts';
import type { Clock, Timer } from '../support/clock.ts';
import type { FromWorker, Question, ToWorker, WorkerStart, WorkerSummary } from './worker-messages.ts';

/** What a worker is asked to do. */
export interface Worker {
  beginClosing(): void;
  stopAccepting(): void;
  drain(graceMs: number): Promise<number>;
  stop(): Promise<void>;
  /** Forgets what may be out of date, and reads the services. */
  refresh(): Promise<void>;
  /** Reads all files again, throws if one cannot be used, and returns what puts them in force. */
  prepareReload(options: GatewayOptions): () => Promise<unknown>;
  appoint(probes: boolean): void;
  receiveHealth(from: number, message: HealthMessage): void;
  collectMetrics(): readonly FamilySnapshot[];
}

export interface WorkerLinkOptions {
  readonly send: (message: FromWorker) => void;
  readonly clock: Clock;
}

/** What is counted is told so often: of a process that is killed no more than this is lost. */
const METRICS_PERIOD_MS = 2_000;

export class WorkerLink {
  readonly health: HealthChannel;
  /** What to do and with what; resolves when the primary says so. */
  readonly started: Promise<WorkerStart>;
  /** Resolves when the worker has stopped because it was told to. */
  readonly stopped: Promise<void>;
  readonly #send: (message: FromWorker) => void;
  readonly #clock: Clock;
  #start: (start: WorkerStart) => void = () => undefined;
  #stop: () => void = () => undefined;
  #worker: Worker | undefined;
  #probes = false;
  #timer: Timer | undefined;
  #prepared: (() => Promise<unknown>) | undefined;
  readonly #reloads = new Map<number, (error: string | null) => void>();
  #lastReload = 0;

  constructor({ send, clock }: WorkerLinkOptions) {
    this.#send = send;
    this.#clock = clock;
    const say = (to: 'prober' | 'others' | number, message: HealthMessage) => send({ type: 'health', to, message });
    this.health = {
      toProber: (message) => say('prober', message),
      toOthers: (message) => say('others', message),
      toOne: say,
    };
    this.started = new Promise((resolve) => {
      this.#start = resolve;
    });
    this.stopped = new Promise((resolve) => {
      this.#stop = resolve;
    });
  }

  /** Call when messages are listened for. */
  hello(): void {
    this.#send({ type: 'hello' });
  }

  /** Call before the worker starts: it may be the one that probes. */
  attach(worker: Worker): void {
    this.#worker = worker;
    worker.appoint(this.#probes);
  }

  ready(summary: WorkerSummary): void {
    this.#send({ type: 'ready', summary });
    this.#tellMetrics();
  }

  loaded(): void {
    this.#send({ type: 'loaded' });
  }

  failed(message: string): void {
    this.#send({ type: 'failed', message });
  }

  /** Has all workers read the file again, or the file checked. Rejects with OperatorError if it is refused. */
  requestReload(dryRun: boolean): Promise<void> {
    this.#lastReload += 1;
    const id = this.#lastReload;
    return new Promise((resolve, reject) => {
      this.#reloads.set(id, (error) => {
        this.#reloads.delete(id);
        if (error === null) resolve();
        else reject(new OperatorError(error));
      });
      this.#send({ type: 'reload', id, dryRun });
    });
  }

  receive(message: ToWorker): void {
    const worker = this.#worker;
    switch (message.type) {
      case 'start':
        this.#start(message.start);
        break;
      case 'appoint':
        this.#probes = message.probes;
        worker?.appoint(message.probes);
        break;
      case 'health':
        worker?.receiveHealth(message.from, message.message);
        break;
      case 'reloaded':
        this.#reloads.get(message.id)?.(message.error);
        break;
      case 'begin-closing':
        worker?.beginClosing();
        break;
      case 'stop-accepting':
        worker?.stopAccepting();
        break;
      case 'stop':
        void this.#stopWorker(worker);
        break;
      case 'ask':
        void this.#answer(message.id, message.question, worker);
    }
  }

  async #stopWorker(worker: Worker | undefined): Promise<void> {
    this.#timer?.cancel();
    await worker?.stop();
    // The last requests end in stop.
    if (worker) this.#send({ type: 'metrics', families: worker.collectMetrics() });
    this.#stop();
  }

  async #answer(id: number, question: Question, worker: Worker | undefined): Promise<void> {
    this.#send({ type: 'answer', id, value: worker ? await this.#valueFor(question, worker) : null });
  }

  async #valueFor(question: Question, worker: Worker): Promise<unknown> {
    switch (question.kind) {
      case 'metrics':
        this.#send({ type: 'metrics', families: worker.collectMetrics() });
        return null;
      case 'drain':
        return worker.drain(question.graceMs);
      case 'refresh':
        await worker.refresh();
        return null;
      case 'prepare':
        return this.#prepare(question.options, worker);
      case 'commit': {
        const take = this.#prepared;
        this.#prepared = undefined;
        await take?.();
        return null;
      }
    }
  }

  /** Null, or what is wrong with the files. */
  #prepare(options: GatewayOptions, worker: Worker): string | null {
    // What was prepared for a reload that another worker refused is not to come into force with a later one.
    this.#prepared = undefined;
    try {
      this.#prepared = worker.prepareReload(options);
      return null;
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  }

  #tellMetrics(): void {
    this.#timer = this.#clock.after(METRICS_PERIOD_MS, () => {
      if (this.#worker) this.#send({ type: 'metrics', families: this.#worker.collectMetrics() });
      this.#tellMetrics();
    });
  }
}
