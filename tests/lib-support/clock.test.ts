import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { describe, it } from 'node:test';
import { promisify } from 'node:util';
import { systemClock } from '../../lib/support/clock.ts';

describe('systemClock', () => {
  it('says the time of day in milliseconds', () => {
    const before = Date.now();
    const now = systemClock.now();
    assert.ok(now >= before && now <= Date.now());
  });

  it('has a time that never goes back', () => {
    let last = systemClock.monotonic();
    for (let count = 0; count < 1_000; count += 1) {
      const now = systemClock.monotonic();
      assert.ok(now >= last);
      last = now;
    }
  });

  it('calls back once, not before its time', async () => {
    const begin = systemClock.monotonic();
    let calls = 0;
    // The timer alone does not keep the process alive, so something else has to.
    const alive = setTimeout(() => assert.fail('never called'), 10_000);
    await new Promise<void>((resolve) =>
      systemClock.after(20, () => {
        calls += 1;
        resolve();
      }),
    );
    clearTimeout(alive);
    // Node's timers round to whole milliseconds.
    assert.ok(systemClock.monotonic() - begin >= 19);
    assert.equal(calls, 1);
  });

  it('does not call back what was cancelled, however often', async () => {
    let called = false;
    const timer = systemClock.after(1, () => {
      called = true;
    });
    timer.cancel();
    timer.cancel();
    await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(called, false);
  });

  it('lets the process end while a timer runs', async () => {
    const from = new URL(`../../lib/support/clock${import.meta.url.endsWith('.js') ? '.js' : '.ts'}`, import.meta.url);
    const script = `import { systemClock } from ${JSON.stringify(from.href)};
      systemClock.after(3_600_000, () => console.log('called'));
      console.log('over');`;
    const loader = from.href.endsWith('.ts') ? ['--import', import.meta.resolve('tsx')] : [];
    const { stdout } = await promisify(execFile)(
      process.execPath,
      [...loader, '--input-type=module', '--eval', script],
      { timeout: 30_000 },
    );
    assert.equal(stdout, 'over\n');
  });
});
