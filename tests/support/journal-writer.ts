/**
 * A process that writes to an embedded store until it is killed: binds, moves, removes and tokens, several at once.
 * Every line on stdout is an acknowledgement: `user node epoch`, or `user -` after a removal.
 *
 * Arguments: data folder, first user number, users, `compact` to compact all the time.
 */
import { writeSync } from 'node:fs';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { JournalTokenStore } from '../../lib/tokens/journal-token-store.ts';

const [dataDir = '', first = '0', users = '1000', mode = ''] = process.argv.slice(2);
const journal = await Journal.open(dataDir, { clock: systemClock, logger: silentLogger });
const bindings = new JournalBindings(journal);
const tokens = new JournalTokenStore({ journal, clock: systemClock });
let done = false;

// One write call a line, past every buffer of the process: what is printed was acknowledged before the kill.
function acknowledge(line: string): void {
  writeSync(1, `${line}\n`);
}

async function writeUser(user: string): Promise<void> {
  const number = Number(user);
  const { binding } = await bindings.bindIfAbsent('svc', user, `name-${user}`, `node-${number % 7}`);
  acknowledge(`${user} ${binding.nodeId} ${binding.epoch}`);
  await tokens.save('svc', `token-${user}`, user, 3_600_000);
  acknowledge(`token ${user}`);
  if (number % 3 === 0) {
    const moved = await bindings.move('svc', user, 'node-moved');
    acknowledge(`${user} ${moved.nodeId} ${moved.epoch}`);
  }
  if (number % 11 === 0) {
    acknowledge(`${user} ?`);
    await bindings.remove('svc', user);
    acknowledge(`${user} -`);
  }
}

async function work(lane: number, lanes: number): Promise<void> {
  for (let index = lane; index < Number(users); index += lanes) await writeUser(String(Number(first) + index));
}

async function compactAllTheTime(): Promise<void> {
  while (!done) await journal.compact();
}

acknowledge('ready');
const compacting = mode === 'compact' ? compactAllTheTime() : Promise.resolve();
await Promise.all([0, 1, 2, 3].map((lane) => work(lane, 4)));
done = true;
await compacting;
await journal.stop();
acknowledge('finished');
