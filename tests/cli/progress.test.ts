/** Progress on stderr: on a terminal one line that is written over, elsewhere only when asked for. */
import assert from 'node:assert/strict';
import { PassThrough } from 'node:stream';
import { describe, it } from 'node:test';
import { Output } from '../../lib/cli/output.ts';
import { Progress } from '../../lib/cli/progress.ts';
import { FakeClock } from '../support/fake-clock.ts';

const CHUNK = Buffer.from('a\nb\nc');

function started(setup: { readonly terminal: boolean; readonly asked?: boolean; readonly quiet?: boolean }) {
  const stream = Object.assign(new PassThrough(), { isTTY: setup.terminal });
  const clock = new FakeClock();
  const invocation = { err: new Output(stream), flag: () => setup.asked === true, clock };
  const text = () => String(stream.read() ?? '');
  return { progress: new Progress(invocation, 'sent', setup.quiet), clock, text };
}

describe('progress', () => {
  it('counts lines, and writes one line over and over on a terminal', () => {
    const { progress, clock, text } = started({ terminal: true });
    progress.take(CHUNK);
    assert.equal(text(), '', 'not at once');
    clock.advance(500);
    progress.take(CHUNK);
    assert.equal(text(), '\r\u001b[Ksent: 4 rows, 8 rows/s, 0.5 s');
    clock.advance(500);
    progress.end();
    assert.equal(text(), '\r\u001b[Ksent: 4 rows, 4 rows/s, 1.0 s\n');
  });

  it('writes lines elsewhere when asked for, and nothing when not', () => {
    const asked = started({ terminal: false, asked: true });
    asked.clock.advance(5_000);
    asked.progress.take(CHUNK);
    assert.equal(asked.text(), 'sent: 2 rows, 0 rows/s, 5.0 s\n');
    for (const setup of [{ terminal: false }, { terminal: true, quiet: true }]) {
      const silent = started(setup);
      silent.clock.advance(5_000);
      silent.progress.take(CHUNK);
      silent.progress.end();
      assert.equal(silent.text(), '');
      assert.equal(silent.progress.rows, 2);
    }
  });
});
