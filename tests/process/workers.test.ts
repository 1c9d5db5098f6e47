import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { loadConfig } from '../../lib/config/load.ts';
import type { GatewayOptions } from '../../lib/config/options.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import type { FromWorker, Question, ToWorker } from '../../lib/process/worker-messages.ts';
import { type WorkerEvents, type WorkerProcess, Workers, type WorkersOptions } from '../../lib/process/workers.ts';
import { FakeClock } from '../support/fake-clock.ts';

function optionsOf(): GatewayOptions {
  const loaded = loadConfig('services: [{ id: a, pathPrefix: /a, nodes: [] }]', 'g.yaml', {});
  if ('problems' in loaded) assert.fail('a mistake');
  return loaded.options;
}

const SUMMARY = { on: ['http://127.0.0.1:80'], stores: 'PostgreSQL', services: 1 };

/** A worker that answers what it is asked, unless it is told to be silent. */
class FakeWorker implements WorkerProcess {
  readonly id: number;
  readonly pid: number;
  readonly events: WorkerEvents;
  readonly got: ToWorker[] = [];
  answers: (question: Question) => unknown = (question) => (question.kind === 'drain' ? 0 : null);
  silent = false;
  deaf = false;
  killed = false;
  /** Counted so far. */
  count = 0;

  constructor(id: number, events: WorkerEvents) {
    this.id = id;
    this.pid = 1_000 + id;
    this.events = events;
  }

  send(message: ToWorker): void {
    this.got.push(message);
    if (this.deaf) return;
    if (message.type === 'stop') queueMicrotask(() => this.end('exit 0'));
    if (message.type !== 'ask' || this.silent) return;
    if (message.question.kind === 'metrics') this.tellMetrics();
    this.say({ type: 'answer', id: message.id, value: this.answers(message.question) });
  }

  kill(): void {
    this.killed = true;
    queueMicrotask(() => this.end('SIGKILL'));
  }

  say(message: FromWorker): void {
    this.events.message(message);
  }

  end(how = 'SIGKILL'): void {
    this.events.ended(how);
  }

  serve(): void {
    this.say({ type: 'hello' });
    this.say({ type: 'loaded' });
    this.say({ type: 'ready', summary: SUMMARY });
  }

  tellMetrics(): void {
    const metrics = new Metrics();
    metrics.counter('a_total', 'Things').inc(this.count);
    this.say({ type: 'metrics', families: metrics.collect() });
  }

  get types(): string[] {
    return this.got.map(({ type }) => type);
  }

  get questions(): string[] {
    return this.got.flatMap((message) => (message.type === 'ask' ? [message.question.kind] : []));
  }

  /** What it was told last about probing. */
  get probes(): boolean | undefined {
    return this.got.findLast((message) => message.type === 'appoint')?.probes;
  }
}

class World {
  readonly clock = new FakeClock();
  readonly forks: FakeWorker[] = [];
  readonly events: string[] = [];
  readonly workers: Workers;

  constructor(given: Partial<WorkersOptions> = {}) {
    const log = (event: string) => void this.events.push(event);
    this.workers = new Workers({
      count: 2,
      options: optionsOf,
      sockets: [null],
      adminSocketOf: (place) => `/run/${place}.sock`,
      reload: async () => undefined,
      fork: (events) => {
        const worker = new FakeWorker(this.forks.length + 1, events);
        this.forks.push(worker);
        return worker;
      },
      clock: this.clock,
      logger: { debug: log, info: log, warn: log, error: log },
      metrics: new Metrics(),
      ...given,
    });
  }

  fork(number: number): FakeWorker {
    return this.forks[number - 1] ?? assert.fail(`there is no worker ${number}`);
  }

  async start(): Promise<void> {
    const started = this.workers.start();
    for (const worker of this.forks) worker.serve();
    await started;
  }

  async valueOf(name: string): Promise<number> {
    return Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(await this.workers.render())?.[1]);
  }
}

describe('Workers', () => {
  it('start all, give each its place, and let the first that speaks probe', async () => {
    const world = new World({ count: 3 });
    assert.equal(world.workers.notReady(), 'no worker is serving');
    assert.throws(() => world.workers.summary, /no worker serves/);
    await world.start();
    const places = world.forks.map(({ got }) => got.flatMap((one) => (one.type === 'start' ? [one.start.place] : [])));
    assert.deepEqual(places, [[1], [2], [3]]);
    assert.deepEqual(
      world.forks.map(({ probes }) => probes),
      [true, false, false],
    );
    assert.deepEqual(world.workers.summary, SUMMARY);
    assert.equal(world.workers.notReady(), null);
    assert.deepEqual(world.workers.pids, [1_001, 1_002, 1_003]);
  });

  it('are ready when all that serve have the services', async () => {
    const world = new World();
    const started = world.workers.start();
    for (const worker of world.forks) {
      worker.say({ type: 'hello' });
      worker.say({ type: 'ready', summary: SUMMARY });
    }
    await started;
    world.fork(1).say({ type: 'loaded' });
    assert.equal(world.workers.notReady(), 'the services have not been loaded yet');
    world.fork(2).say({ type: 'loaded' });
    assert.equal(world.workers.notReady(), null);
  });

  it('end all when one cannot start, with its words', async () => {
    const world = new World();
    const started = world.workers.start();
    world.fork(1).serve();
    world.fork(2).say({ type: 'hello' });
    world.fork(2).say({ type: 'failed', message: 'the port is taken' });
    world.fork(2).end('exit 1');
    await assert.rejects(started, /^OperatorError: the port is taken$/);
    assert.ok(world.fork(1).types.includes('stop'));
    await world.clock.advanceAsync(60_000);
    assert.equal(world.forks.length, 2, 'no second try');
  });

  it('end all when one dies before it serves, and say how', async () => {
    const world = new World();
    const started = world.workers.start();
    world.fork(1).end('SIGSEGV');
    await assert.rejects(started, /^OperatorError: worker 1 ended before it could serve: SIGSEGV$/);
    assert.ok(world.fork(2).killed, 'one that does not serve has nothing to finish');
  });

  it('replace a dead one after a growing wait, which is short again after a long life', async () => {
    const world = new World();
    await world.start();
    world.fork(1).end();
    assert.deepEqual(world.events, ['worker_ended']);
    await world.clock.advanceAsync(40);
    assert.equal(world.forks.length, 2);
    await world.clock.advanceAsync(60);
    assert.equal(world.forks.length, 3);
    assert.equal(await world.valueOf('gateway_workers'), 1);
    for (let deaths = 1; deaths <= 12; deaths += 1) {
      world.fork(world.forks.length).end('exit 1');
      await world.clock.advanceAsync(30_000);
      assert.equal(world.forks.length, 3 + deaths);
      // It dies young again.
    }
    world.fork(15).serve();
    assert.equal(world.events.at(-1), 'worker_restarted');
    assert.equal(await world.valueOf('gateway_worker_restarts_total'), 13);
    await world.clock.advanceAsync(60_000);
    world.fork(15).end();
    await world.clock.advanceAsync(100);
    assert.equal(world.forks.length, 16);
    world.fork(16).end();
    for (const _ of [1, 2, 3, 4, 5, 6]) {
      await world.clock.advanceAsync(30_000);
      world.fork(world.forks.length).end();
    }
    const { length } = world.forks;
    await world.clock.advanceAsync(1_000);
    assert.equal(world.forks.length, length, 'by now it waits for longer');
  });

  it('let another one probe when the one that does dies', async () => {
    const world = new World({ count: 3 });
    await world.start();
    world.fork(1).end();
    assert.deepEqual([world.fork(2).probes, world.fork(3).probes], [true, false]);
    await world.clock.advanceAsync(100);
    world.fork(4).say({ type: 'hello' });
    assert.equal(world.fork(4).probes, false);
    world.fork(2).end();
    assert.deepEqual([world.fork(3).probes, world.fork(4).probes], [true, false], 'one that serves is preferred');
    world.fork(3).end();
    assert.equal(world.fork(4).probes, true);
    world.fork(4).end();
    await world.clock.advanceAsync(30_000);
    world.fork(7).say({ type: 'hello' });
    assert.equal(world.fork(7).probes, true);
  });

  it('hear of it again when they speak after they were chosen', async () => {
    const world = new World();
    await world.start();
    world.fork(1).end();
    await world.clock.advanceAsync(100);
    world.fork(2).end();
    // It is all that is left, and may not have listened yet.
    world.fork(3).got.length = 0;
    world.fork(3).say({ type: 'hello' });
    assert.equal(world.fork(3).probes, true);
  });

  it('carry words about health to the one that probes, to the others, or to one', async () => {
    const world = new World({ count: 3 });
    await world.start();
    for (const worker of world.forks) worker.got.length = 0;
    const message = { kind: 'tell' } as const;
    const received = () => world.forks.map(({ got }) => got.length);
    world.fork(2).say({ type: 'health', to: 'prober', message });
    assert.deepEqual(received(), [1, 0, 0]);
    assert.deepEqual(world.fork(1).got, [{ type: 'health', from: 2, message }]);
    world.fork(1).say({ type: 'health', to: 'others', message });
    assert.deepEqual(received(), [1, 1, 1]);
    world.fork(1).say({ type: 'health', to: 3, message });
    assert.deepEqual(received(), [1, 1, 2]);
    world.fork(1).say({ type: 'health', to: 99, message });
    world.fork(1).say({ type: 'health', to: 'prober', message });
    assert.deepEqual(received(), [1, 1, 2]);
  });

  it('add up what all have counted, the dead and the silent too', async () => {
    const world = new World();
    await world.start();
    world.fork(1).count = 5;
    world.fork(2).count = 7;
    assert.equal(await world.valueOf('a_total'), 12);
    world.fork(1).count = 6;
    world.fork(1).tellMetrics();
    world.fork(1).end();
    world.fork(1).count = 1_000;
    world.fork(1).tellMetrics();
    assert.equal(await world.valueOf('a_total'), 13, 'a word from the grave does not count');
    world.fork(2).silent = true;
    world.fork(2).count = 8;
    const late = world.valueOf('a_total');
    await world.clock.advanceAsync(1_000);
    assert.ok((await late) >= 13);
    world.fork(2).silent = false;
    assert.equal(await world.valueOf('a_total'), 14);
  });

  it('reload in two steps, and not at all when one of them cannot', async () => {
    const world = new World();
    await world.start();
    await world.workers.reload(optionsOf());
    for (const { questions } of world.forks) assert.deepEqual(questions, ['prepare', 'commit']);
    world.fork(2).answers = () => 'the certificate is bad';
    await assert.rejects(world.workers.reload(optionsOf()), /^OperatorError: the certificate is bad$/);
    for (const { questions } of world.forks) assert.deepEqual(questions.slice(2), ['prepare']);

    world.fork(2).silent = true;
    const refused = assert.rejects(world.workers.reload(optionsOf()), /process id 1002 does not answer/);
    // The next one waits for it.
    const next = world.workers.reload(optionsOf());
    await world.clock.advanceAsync(0);
    await world.clock.advanceAsync(10_000);
    await refused;
    world.fork(2).end();
    await next;
    assert.deepEqual(world.fork(1).questions.slice(3), ['prepare', 'prepare', 'commit']);
  });

  it('wind down together, and add up what was cut, with one for each that died or is silent', async () => {
    const world = new World({ count: 3 });
    await world.start();
    world.workers.beginClosing();
    assert.equal(world.workers.notReady(), 'the gateway is shutting down');
    world.workers.stopAccepting();
    world.fork(1).answers = () => 2;
    world.fork(2).silent = true;
    world.fork(3).silent = true;
    const drained = world.workers.drain(1_000);
    world.fork(2).end();
    await world.clock.advanceAsync(3_000);
    assert.equal(await drained, 4);
    await world.workers.stop();
    assert.deepEqual(world.fork(1).types.slice(-4), ['begin-closing', 'stop-accepting', 'ask', 'stop']);
    await world.clock.advanceAsync(60_000);
    assert.equal(world.forks.length, 3, 'nobody is replaced any more');
    assert.deepEqual(world.events, []);
    await world.workers.stop();
  });

  it('are killed when they do not end, and not waited for before they serve', async () => {
    const world = new World();
    await world.start();
    world.fork(2).end();
    await world.clock.advanceAsync(100);
    world.fork(1).deaf = true;
    const stopped = world.workers.stop();
    assert.ok(world.fork(3).killed);
    await world.clock.advanceAsync(4_999);
    assert.ok(!world.fork(1).killed);
    await world.clock.advanceAsync(1);
    assert.ok(world.fork(1).killed);
    await stopped;
  });

  it('fail as a whole when the last one dies and the sockets were inherited', async () => {
    const world = new World({ sockets: [{ fd: 3 }] });
    await world.start();
    for (const worker of world.forks) worker.end();
    assert.match(String(await world.workers.failed), /OperatorError: all workers died/);
    const own = new World();
    await own.start();
    for (const worker of own.forks.slice()) worker.end();
    await own.clock.advanceAsync(100);
    assert.equal(own.forks.length, 4, 'an address of its own is bound again');
  });
});
