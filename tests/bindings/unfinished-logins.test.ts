import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { type UnfinishedLogin, UnfinishedLogins } from '../../lib/bindings/unfinished-logins.ts';
import { OperatorError } from '../../lib/errors.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FakeClock } from '../support/fake-clock.ts';

const KEEP_MS = 60_000;
const LONGEST_MS = 10_000;

describe('UnfinishedLogins', () => {
  let clock: FakeClock;
  let lines: string[];
  let logins: UnfinishedLogins;
  /** What every step throws; undefined = it succeeds. */
  let fault: unknown;
  let done: string[];

  beforeEach(() => {
    clock = new FakeClock();
    lines = [];
    done = [];
    fault = new StoreUnavailable('postgres', new Error('away'));
    const logger = new LineLogger({ level: 'debug', format: 'json' }, { write: (line) => void lines.push(line) });
    logins = new UnfinishedLogins({ clock, logger, keepMs: KEEP_MS });
  });

  function login(name: string, own?: () => unknown): UnfinishedLogin {
    const step = async () => {
      const thrown = own ? own() : fault;
      if (thrown !== undefined) throw thrown;
      done.push(name);
    };
    return { serviceId: 'demo', userId: name, steps: [step] };
  }

  async function advance(ms: number): Promise<void> {
    clock.advance(ms);
    for (let turn = 0; turn < 5; turn += 1) await new Promise(setImmediate);
  }

  const forgotten = () => lines.filter((line) => line.includes('login_forgotten')).length;

  it('tries again, less and less often, until the store is back, and then does all in their order', async () => {
    let tries = 0;
    logins.add(
      login('first', () => {
        tries += 1;
        return fault;
      }),
    );
    logins.add(login('second'));
    await advance(499);
    assert.equal(tries, 0);
    await advance(1);
    assert.equal(tries, 1);
    await advance(999);
    assert.equal(tries, 1);
    await advance(1);
    assert.equal(tries, 2);
    for (let turn = 0; turn < 4; turn += 1) await advance(LONGEST_MS);
    const before = tries;
    await advance(LONGEST_MS);
    assert.equal(tries, before + 1, 'never more seldom than every ten seconds');
    fault = undefined;
    await advance(LONGEST_MS);
    assert.deepEqual(done, ['first', 'second']);
    assert.equal(logins.size, 0);
    assert.equal(clock.pending, 0, 'nothing is left to wait for');
    assert.equal(forgotten(), 0);
  });

  it('keeps every login of one user, for each brought a token', async () => {
    logins.add(login('alice'));
    logins.add(login('alice'));
    fault = undefined;
    await advance(500);
    assert.deepEqual(done, ['alice', 'alice']);
  });

  it('lets nobody wait behind a login that the store will never take', async () => {
    fault = undefined;
    logins.add(login('never', () => new OperatorError('not a number')));
    logins.add(login('faulty', () => new Error('a fault of its own')));
    logins.add(login('fine'));
    await advance(500);
    assert.deepEqual(done, ['fine']);
    assert.equal(logins.size, 1, 'the faulty one is tried again');
    assert.equal(forgotten(), 1);
  });

  it('knows whose logins are not finished yet', async () => {
    logins.add(login('alice'));
    logins.add(login('alice'));
    logins.add(login('bob'));
    assert.equal(logins.mayHave('demo', 'alice'), true);
    assert.equal(logins.mayHave('other', 'alice'), false);
    assert.equal(logins.mayHave('demo', 'carol'), false);
    fault = undefined;
    await advance(500);
    assert.deepEqual(done, ['alice', 'alice', 'bob']);
    for (const name of ['alice', 'bob']) assert.equal(logins.mayHave('demo', name), false, name);
  });

  it('tries at once when it hears that the store is back, and only then', async () => {
    logins.add(login('alice'));
    for (const ms of [500, 1_000, 2_000]) await advance(ms);
    fault = undefined;
    logins.storeIsBack();
    await advance(0);
    assert.deepEqual(done, ['alice']);
    logins.storeIsBack();
    assert.equal(clock.pending, 0, 'nothing is left to do');
    assert.equal(logins.mayHave('demo', 'anybody'), true, 'of another gateway, for a while');
    await advance(5_999);
    assert.equal(logins.settling, true);
    await advance(1);
    assert.equal(logins.mayHave('demo', 'anybody'), false);
  });

  it('gives a login up, loudly, when it is too old', async () => {
    logins.add(login('old'));
    await advance(500);
    await advance(KEEP_MS);
    assert.equal(logins.size, 0);
    assert.equal(forgotten(), 1);
  });

  it('takes no more than ten thousand, and none after its end', async () => {
    for (let index = 0; index < 10_000; index += 1) logins.add(login(`user${index}`));
    logins.add(login('one too many'));
    assert.equal(logins.size, 10_000);
    assert.equal(forgotten(), 1);
    logins.stop();
    logins.stop();
    logins.add(login('late'));
    assert.equal(forgotten(), 2);
    assert.equal(clock.pending, 0);
  });

  it('takes up what comes while it is at work', async () => {
    fault = undefined;
    logins.add(
      login('first', () => {
        if (done.length === 0 && logins.size === 1) logins.add(login('meanwhile'));
        return undefined;
      }),
    );
    await advance(500);
    assert.deepEqual(done, ['first']);
    await advance(500);
    assert.deepEqual(done, ['first', 'meanwhile']);
    assert.equal(logins.size, 0);
  });

  it('does the steps of a login in order, and all of them again after one failed', async () => {
    const steps: string[] = [];
    let tokenFails = true;
    logins.add({
      serviceId: 'demo',
      userId: 'alice',
      steps: [
        async () => steps.push('bind'),
        async () => {
          steps.push('token');
          if (tokenFails) throw new StoreUnavailable('redis', new Error('away'));
        },
      ],
    });
    await advance(500);
    tokenFails = false;
    await advance(1_000);
    assert.deepEqual(steps, ['bind', 'token', 'bind', 'token']);
    assert.equal(logins.size, 0);
  });

  it('asks a store that is away once a round, not once for every login', async () => {
    let tries = 0;
    for (let index = 0; index < 100; index += 1) {
      logins.add(
        login(`user${index}`, () => {
          tries += 1;
          return fault;
        }),
      );
    }
    await advance(500);
    assert.equal(tries, 1);
  });

  it('begins with short waits again after everything went well', async () => {
    logins.add(login('first'));
    for (let turn = 0; turn < 3; turn += 1) await advance(LONGEST_MS);
    fault = undefined;
    await advance(LONGEST_MS);
    assert.deepEqual(done, ['first']);
    logins.add(login('second'));
    await advance(500);
    assert.deepEqual(done, ['first', 'second']);
  });

  it('has one round at a time, however long it takes', async () => {
    let finish: () => void = () => undefined;
    let running = 0;
    logins.add({
      serviceId: 'demo',
      userId: 'slow',
      steps: [
        () => {
          running += 1;
          return new Promise<void>((resolve) => (finish = resolve));
        },
      ],
    });
    await advance(500);
    logins.add(login('next'));
    await advance(LONGEST_MS);
    assert.equal(running, 1);
    assert.equal(clock.pending, 0);
    fault = undefined;
    finish();
    await advance(0);
    await advance(500);
    assert.deepEqual(done, ['next']);
  });

  it('does nothing more once it is stopped, not even in the middle of a round', async () => {
    let finish: () => void = () => undefined;
    fault = undefined;
    logins.add({
      serviceId: 'demo',
      userId: 'slow',
      steps: [() => new Promise<void>((resolve) => (finish = resolve))],
    });
    logins.add(login('next'));
    await advance(500);
    logins.stop();
    finish();
    await advance(LONGEST_MS);
    assert.deepEqual(done, []);
    assert.equal(clock.pending, 0);
    assert.equal(lines.filter((line) => line.includes('"logins_forgotten","count":2')).length, 1);
  });

  it('stops without a word when nothing is left to do', async () => {
    fault = undefined;
    logins.add(login('alice'));
    await advance(500);
    logins.stop();
    assert.deepEqual(lines, []);
  });

  it('keeps a login by a clock that nobody sets', async () => {
    logins.add(login('alice'));
    clock.now = () => Number.MAX_SAFE_INTEGER;
    await advance(500);
    assert.equal(logins.size, 1);
  });
});
