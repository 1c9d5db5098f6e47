/**
 * Runs the chaos test for as long as one likes and prints what came of it; exit 1 when a promise was broken.
 *
 *   node --import tsx tests/chaos/run.ts --seed 1 --seconds 60 [--quiet]
 */
import { parseArgs } from 'node:util';
import { runChaos } from './chaos.ts';

const MOST_FAULTS_SHOWN = 30;

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 100_000) },
    seconds: { type: 'string', default: '60' },
    quiet: { type: 'boolean', default: false },
  },
});
const seed = Number(values.seed);
const seconds = Number(values.seconds);
const write = (line: string) => void process.stdout.write(`${line}\n`);

const { faults, counts } = await runChaos({ seed, seconds, log: values.quiet ? () => undefined : write });
write(`seed ${seed}, ${seconds} s:`);
for (const [what, number] of [...counts].sort(([a], [b]) => a.localeCompare(b))) write(`  ${number} ${what}`);
for (const fault of faults.slice(0, MOST_FAULTS_SHOWN)) write(`FAULT ${fault}`);
write(faults.length === 0 ? 'no fault' : `${faults.length} faults with seed ${seed}`);
process.exitCode = faults.length === 0 ? 0 : 1;
