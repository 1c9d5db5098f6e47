import assert from 'node:assert/strict';
import { test } from 'node:test';
import { REPLAY_BYTES, ReplayBuffer } from '../../lib/proxy/replay-buffer.ts';
import { Seeded } from '../support/seeded.ts';

test('keeps a copy of what was sent, in order, up to and with 64 KB', () => {
  const random = new Seeded(9);
  for (let round = 0; round < 50; round += 1) {
    const buffer = new ReplayBuffer();
    const sent: Buffer[] = [];
    for (let left = REPLAY_BYTES; left > 0; ) {
      const chunk = Buffer.alloc(Math.min(left, 1 + random.below(20_000)), random.below(256));
      sent.push(Buffer.from(chunk));
      buffer.keep(chunk);
      // The caller may use its memory for something else.
      chunk.fill(0);
      left -= chunk.length;
    }
    assert.equal(buffer.whole, true);
    assert.ok(buffer.bytes.equals(Buffer.concat(sent)));
  }
});

test('one byte more and nothing is held, nor is anything that follows', () => {
  const buffer = new ReplayBuffer();
  buffer.keep(Buffer.alloc(REPLAY_BYTES));
  buffer.keep(Buffer.alloc(1));
  assert.deepEqual([buffer.whole, buffer.bytes.length], [false, 0]);
  buffer.keep(Buffer.from('a'));
  assert.deepEqual([buffer.whole, buffer.bytes.length], [false, 0]);
  const none = new ReplayBuffer(0);
  assert.equal(none.whole, true, 'nothing was sent yet');
  none.keep(Buffer.from('a'));
  assert.deepEqual([none.whole, none.bytes.length], [false, 0]);
});

test('what was taken for one attempt stays as it is when more is kept', () => {
  const buffer = new ReplayBuffer();
  buffer.keep(Buffer.from('first'));
  const taken = buffer.bytes;
  for (let part = 0; part < 100; part += 1) buffer.keep(Buffer.from(` part ${part}`));
  assert.equal(taken.toString(), 'first');
  assert.ok(buffer.bytes.toString().startsWith('first part 0 part 1'));
});
