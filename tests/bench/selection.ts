/** What one pick among many nodes costs, for every selector a stateless service can have. Opens no sockets. */
import { createSelector } from '../../lib/balance/create-selector.ts';
import type { Selectable } from '../../lib/balance/selector.ts';
import type { Balance } from '../../lib/model.ts';
import { median, printTable, spread, text } from './report.ts';

export interface SelectionSample {
  readonly balance: Balance;
  /** Of 10 nodes, how many are refused by the caller. */
  readonly refusedInTen: number;
  readonly nanosecondsPerPick: readonly number[];
}

interface Candidate extends Selectable {
  readonly open: boolean;
}

const BALANCES: readonly Balance[] = ['round-robin', 'weighted', 'random', 'consistent-hash'];
const NODES = 100;
const KEYS = 1_024;
const PICKS = 200_000;
const WARM_UP_ROUNDS = 2;

/** All in turn and repeated; the first rounds, in which code is compiled, do not count. */
export function measureSelection(rounds: number): SelectionSample[] {
  const keys = Array.from({ length: KEYS }, (_, index) => `user-${index}`);
  const cases = BALANCES.flatMap((balance) =>
    [0, 3].map((refusedInTen) => ({
      balance,
      refusedInTen,
      nodes: makeNodes(refusedInTen),
      nanosecondsPerPick: [] as number[],
    })),
  );
  for (let round = -WARM_UP_ROUNDS; round < rounds; round += 1) {
    for (const { balance, nodes, nanosecondsPerPick } of cases) {
      const nanoseconds = timePicks(balance, nodes, keys);
      if (round >= 0) nanosecondsPerPick.push(nanoseconds);
    }
  }
  return cases.map(({ balance, refusedInTen, nanosecondsPerPick }) => ({ balance, refusedInTen, nanosecondsPerPick }));
}

function makeNodes(refusedInTen: number): Candidate[] {
  return Array.from({ length: NODES }, (_, index) => ({
    id: `node-${index}`,
    weight: 1 + (index % 5),
    open: index % 10 >= refusedInTen,
  }));
}

function timePicks(balance: Balance, nodes: readonly Candidate[], keys: readonly string[]): number {
  const selector = createSelector<Candidate>(balance);
  const isOpen = (node: Candidate) => node.open;
  selector.next(nodes, isOpen, '');
  let picked = 0;
  const started = process.hrtime.bigint();
  for (let pick = 0; pick < PICKS; pick += 1) {
    if (selector.next(nodes, isOpen, keys[pick % KEYS])) picked += 1;
  }
  const elapsed = Number(process.hrtime.bigint() - started);
  if (picked !== PICKS) throw new Error(`${balance} picked ${picked} times of ${PICKS}`);
  return elapsed / PICKS;
}

export function printSelection(samples: readonly SelectionSample[]): void {
  console.log(`\nselect: nanoseconds a pick among ${NODES} nodes of weights 1 to 5`);
  const rows = samples.map(({ balance, refusedInTen, nanosecondsPerPick: all }) => [
    `${balance}${refusedInTen ? `, ${refusedInTen} of 10 refused` : ''}`,
    text(median(all), 0),
    spread(all, 0),
  ]);
  printTable(['', 'ns a pick', 'min-max'], rows);
}
