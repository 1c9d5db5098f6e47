/** A gateway that is killed at any moment loses nothing that it acknowledged: real processes, real SIGKILL. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFile, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { JOURNAL_FILE } from '../../lib/bindings/journal-folder.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { JournalTokenStore } from '../../lib/tokens/journal-token-store.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';

const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
const writer = fileURLToPath(new URL(`../support/journal-writer.${extension}`, import.meta.url));
const loader = extension === 'ts' ? ['--import', 'tsx'] : [];
const USERS_A_ROUND = 5_000;

/** What is known of a user: the last acknowledgement; `undefined` values may be there or not. */
type Acknowledged = Map<string, { nodeId: string; epoch: number } | 'removed' | 'unknown'>;

for (const mode of ['append', 'compact'] as const) {
  const rounds = mode === 'append' ? 50 : 30;
  test(`keeps every acknowledged write through ${rounds} kills (${mode})`, {
    timeout: 240_000,
  }, async (t) => {
    const folder = await temporaryFolder(t);
    const acknowledged: Acknowledged = new Map();
    const tokens = new Set<string>();
    for (let round = 0; round < rounds; round += 2) {
      // Two at a time on two cores: the start of a process costs more than what it is killed in.
      const folders = [join(folder, 'a'), join(folder, 'b')];
      await Promise.all(
        folders.map((each, index) => killOnce(each, (round + index) * USERS_A_ROUND, mode, acknowledged, tokens)),
      );
      // A power failure or a full disk may leave half a line.
      if (round % 4 === 0) await appendFile(join(folders[0] ?? '', JOURNAL_FILE), '5f3a00ff [["b","svc",1,"');
    }
    assert.ok(acknowledged.size > rounds, `only ${acknowledged.size} users were acknowledged`);
    await compare([join(folder, 'a'), join(folder, 'b')], acknowledged, tokens);
  });
}

async function killOnce(
  folder: string,
  first: number,
  mode: string,
  acknowledged: Acknowledged,
  tokens: Set<string>,
): Promise<void> {
  const child = spawn(process.execPath, [...loader, writer, folder, String(first), String(USERS_A_ROUND), mode], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  child.stdout.setEncoding('utf8');
  child.stdout.on('data', (text: string) => {
    // The moment is counted from the first write, at random within the first 40 ms of work.
    if (output === '') setTimeout(() => child.kill('SIGKILL'), Math.random() * 40);
    output += text;
  });
  const signal = await new Promise((resolve) => child.once('close', (_code, by) => resolve(by)));
  assert.equal(signal, 'SIGKILL', 'the writer ended by itself');
  const lines = output.split('\n');
  lines.pop();
  for (const line of lines.slice(1)) {
    const [user = '', nodeId = '', epoch = ''] = line.split(' ');
    if (user === 'token') tokens.add(nodeId);
    else if (nodeId === '-') acknowledged.set(user, 'removed');
    else if (nodeId === '?') acknowledged.set(user, 'unknown');
    else acknowledged.set(user, { nodeId, epoch: Number(epoch) });
  }
}

async function compare(folders: readonly string[], acknowledged: Acknowledged, tokens: Set<string>): Promise<void> {
  const opened = await Promise.all(
    folders.map((folder) => Journal.open(folder, { clock: systemClock, logger: silentLogger })),
  );
  const stores = opened.map((journal) => ({
    bindings: new JournalBindings(journal),
    tokens: new JournalTokenStore({ journal, clock: systemClock }),
  }));
  const storeOf = (user: string) => stores[Math.floor(Number(user) / USERS_A_ROUND) % 2]!;
  for (const [user, expected] of acknowledged) {
    const found = await storeOf(user).bindings.findByUserId('svc', user);
    if (expected === 'removed') assert.equal(found, undefined, `user ${user} came back`);
    else if (expected !== 'unknown') {
      assert.ok(found, `user ${user} is lost`);
      // A move that was not acknowledged may have reached the disk.
      const moved = found.nodeId === 'node-moved' && found.epoch === expected.epoch + 1;
      assert.ok(moved || (found.nodeId === expected.nodeId && found.epoch === expected.epoch), `user ${user}`);
      assert.equal((await storeOf(user).bindings.findByUsername('svc', `name-${user}`))?.userId, user);
    }
  }
  for (const user of tokens) assert.equal(await storeOf(user).tokens.find('svc', `token-${user}`), user);
  await Promise.all(opened.map((journal) => journal.stop()));
  for (const folder of folders) assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
}
