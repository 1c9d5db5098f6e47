/**
 * How long the embedded store takes to start with a million bindings, what memory that needs, and what appends and a
 * compaction cost. Prints numbers; asserts nothing. `node --import tsx tests/bench/embedded-store.ts [bindings]`
 */
import { execFileSync } from 'node:child_process';
import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { fileURLToPath } from 'node:url';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { JOURNAL_FILE } from '../../lib/bindings/journal-folder.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { systemClock } from '../../lib/support/clock.ts';

const options = { clock: systemClock, logger: silentLogger };
const [argument = '1000000', folder] = process.argv.slice(2);

function print(name: string, figures: Record<string, number | string>): void {
  process.stdout.write(`${JSON.stringify({ name, ...figures })}\n`);
}

function residentMb(): number {
  return Math.round(process.memoryUsage.rss() / 1e6);
}

/** In a process of its own, so that memory is that of a start and of nothing else. */
async function start(dataDir: string): Promise<void> {
  const bareMb = residentMb();
  const startedAt = performance.now();
  const journal = await Journal.open(dataDir, options);
  const ms = Math.round(performance.now() - startedAt);
  const peakMb = Math.round(process.resourceUsage().maxRSS / 1e3);
  print('start', { bindings: journal.bindings.size, ms, bareMb, residentMb: residentMb(), peakMb });
  await journal.stop();
}

function startElsewhere(dataDir: string): void {
  const script = fileURLToPath(import.meta.url);
  const loader = script.endsWith('.ts') ? ['--import', 'tsx'] : [];
  process.stdout.write(execFileSync(process.execPath, [...loader, script, 'start', dataDir]));
}

async function measure(bindings: number): Promise<void> {
  const dataDir = await mkdtemp(join(tmpdir(), 'sticky-gateway-bench-'));
  try {
    const journal = await Journal.open(dataDir, options);
    const store = new JournalBindings(journal);
    const importedAt = performance.now();
    for (let first = 0; first < bindings; first += 1_000) {
      const rows = Array.from({ length: Math.min(1_000, bindings - first) }, (_, index) => ({
        userId: String(1_790_000_000_000_000_000n + BigInt(first + index)),
        username: `user-${first + index}@example.org`,
        nodeId: `node-${index % 16}`,
      }));
      await store.insertAbsent('ai-server', rows);
    }
    print('import', { bindings, ms: Math.round(performance.now() - importedAt) });

    const lag = monitorEventLoopDelay({ resolution: 1 });
    lag.enable();
    const compactedAt = performance.now();
    let binds = 0;
    let slowestMs = 0;
    let compacting = true;
    const done = journal.compact().finally(() => {
      compacting = false;
    });
    while (compacting) {
      const boundAt = performance.now();
      await store.bindIfAbsent('ai-server', `during-${binds}`, null, 'node-1');
      slowestMs = Math.max(slowestMs, performance.now() - boundAt);
      binds += 1;
    }
    await done;
    lag.disable();
    print('compact', {
      ms: Math.round(performance.now() - compactedAt),
      longestBlockMs: Math.round(lag.max / 1e6),
      bindsMeanwhile: binds,
      slowestBindMs: Math.round(slowestMs),
      fileMb: Math.round((await stat(join(dataDir, JOURNAL_FILE))).size / 1e6),
    });
    await journal.stop();
    startElsewhere(dataDir);

    const reopened = await Journal.open(dataDir, options);
    const again = new JournalBindings(reopened);
    for (const lanes of [1, 100]) {
      const each = lanes === 1 ? 500 : 200;
      const appendedAt = performance.now();
      await Promise.all(
        Array.from({ length: lanes }, async (_, lane) => {
          for (let step = 0; step < each; step += 1) {
            await again.bindIfAbsent('ai-server', `append-${lanes}-${lane}-${step}`, null, 'node-1');
          }
        }),
      );
      const seconds = (performance.now() - appendedAt) / 1_000;
      print('bind', { lanes, perSecond: Math.round((lanes * each) / seconds) });
    }
    await reopened.stop();
  } finally {
    await rm(dataDir, { recursive: true });
  }
}

if (argument === 'start' && folder !== undefined) await start(folder);
else await measure(Number(argument));
