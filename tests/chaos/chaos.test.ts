/** A short run of the chaos test; the long ones are started by run.ts. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { runChaos } from './chaos.ts';

const SECONDS = 5;

describe('two gateways in chaos', () => {
  for (const seed of [4]) {
    it(`keep every promise for ${SECONDS} s of seed ${seed}`, { timeout: 90_000 }, async () => {
      const happened: string[] = [];
      const { faults, counts } = await runChaos({ seed, seconds: SECONDS, log: (line) => void happened.push(line) });
      const story = `seed ${seed}\n${happened.join('\n')}\n${faults.join('\n')}`;
      assert.deepEqual(faults, [], story);
      assert.ok((counts.get('kept logins') ?? 0) > 100, story);
      assert.ok((counts.get('arrived where the user was bound') ?? 0) > 100, story);
      assert.ok((counts.get('moved') ?? 0) > 10, story);
    });
  }
});
