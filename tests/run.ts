/**
 * Runs the test files with Node's own runner against one private PostgreSQL, which ends with the run whatever
 * happens. What is tested stands in the files.
 *
 *   node dist/tests/run.js [--coverage] [-- part of a path ...]
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { POSTGRES_URL_VARIABLE, type PostgresServer, startPostgres } from './support/postgres-server.ts';
import { ensurePrograms } from './support/programs.ts';

const PROGRAMS = ['initdb', 'postgres', 'redis-server'];
/** Needed only by the tests in its folder. */
const BROWSER = { program: 'chromium', folder: 'console' };
const LEAST_LINE_COVERAGE = 90;
/** Where a wrong turn sends a user to the wrong node; of these, so much of the branches. */
const DECIDING = ['lib/bindings', 'lib/tokens', 'lib/health', 'lib/middleware/sticky-route'];
const LEAST_BRANCH_COVERAGE = 95;

const here = dirname(fileURLToPath(import.meta.url));
const compiled = import.meta.url.endsWith('.js');
const root = resolve(here, compiled ? '../..' : '..');
const coverageFolder = join(root, 'coverage');

interface Arguments {
  readonly coverage: boolean;
  /** Parts of paths; a file runs when its path has one of them. Empty = all. */
  readonly filters: readonly string[];
}

function readArguments(argv: readonly string[]): Arguments {
  const split = argv.indexOf('--');
  const flags = split === -1 ? argv : argv.slice(0, split);
  const unknown = flags.find((flag) => flag !== '--coverage');
  if (unknown !== undefined) throw new Error(`'${unknown}' is not known: run.js [--coverage] [-- part of a path ...]`);
  return { coverage: flags.includes('--coverage'), filters: split === -1 ? [] : argv.slice(split + 1) };
}

/** Test files of the same kind as this one; the benchmarks are no tests. */
function findTests(filters: readonly string[]): string[] {
  const ending = compiled ? '.test.js' : '.test.ts';
  const files = readdirSync(here, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith(ending) && !path.startsWith(`bench${sep}`) && !path.includes('node_modules'))
    .filter((path) => filters.length === 0 || filters.some((filter) => join('tests', path).includes(filter)))
    .sort();
  return files.map((path) => join(here, path));
}

/** Ends what the run started, once, on every way out. */
class Run {
  #server: PostgresServer | undefined;
  #child: ChildProcess | undefined;
  #signalled = false;

  async execute({ coverage, filters }: Arguments): Promise<number> {
    const files = findTests(filters);
    if (files.length === 0) throw new Error('no test file matches');
    const browsing = files.some((file) => relative(here, file).startsWith(`${BROWSER.folder}${sep}`));
    await ensurePrograms([...PROGRAMS, ...(browsing ? [BROWSER.program] : [])]);
    this.#server = await startPostgres();
    if (this.#signalled) return 1;
    const raw = join(coverageFolder, 'raw');
    if (coverage) {
      rmSync(coverageFolder, { recursive: true, force: true });
      mkdirSync(raw, { recursive: true });
    }
    const status = await this.#spawn(
      [
        ...(compiled ? [] : ['--import', 'tsx']),
        ...['--enable-source-maps', '--test', '--test-concurrency=2', '--test-reporter=spec'],
        ...files.map((file) => relative(root, file)),
      ],
      {
        [POSTGRES_URL_VARIABLE]: this.#server.url,
        // Node writes what was covered, in child processes too; c8 only makes the reports of it.
        ...(coverage ? { NODE_V8_COVERAGE: raw } : {}),
      },
    );
    if (!coverage || this.#signalled) return status;
    return (await this.#reportCoverage(raw, filters.length === 0)) || status;
  }

  async stop(): Promise<void> {
    this.#signalled = true;
    this.#child?.kill('SIGTERM');
    const server = this.#server;
    this.#server = undefined;
    await server?.dispose();
  }

  /** A part of the tests covers a part of the program: then there is no threshold. */
  async #reportCoverage(raw: string, check: boolean): Promise<number> {
    const c8 = createRequire(import.meta.url).resolve('c8/bin/c8.js');
    const common = ['--temp-directory', raw, '--reports-dir', coverageFolder, '--all', '--src', 'lib'];
    const selection = ['--include', 'lib/**', '--include', 'dist/lib/**', '--exclude-after-remap'];
    const report = [c8, 'report', ...common, ...selection];
    const output: string[] = [];
    await this.#spawn([...report, '--reporter', 'text'], {}, (text) => output.push(text));
    writeFileSync(join(coverageFolder, 'coverage.txt'), output.join(''));
    const threshold = check ? ['--check-coverage', '--lines', String(LEAST_LINE_COVERAGE)] : [];
    let status = await this.#spawn([...report, '--reporter', 'text-summary', ...threshold], {});
    for (const place of check ? DECIDING : []) {
      const include = ['--include', `${place}*`, '--include', `${place}/**`, '--exclude-after-remap'];
      const least = [
        '--reporter',
        'none',
        '--check-coverage',
        '--lines',
        '0',
        '--branches',
        String(LEAST_BRANCH_COVERAGE),
      ];
      status = (await this.#spawn([c8, 'report', ...common, ...include, ...least], {})) || status;
    }
    rmSync(raw, { recursive: true, force: true });
    return status;
  }

  #spawn(args: readonly string[], env: Record<string, string>, onOutput?: (text: string) => void): Promise<number> {
    return new Promise((settle, reject) => {
      const child = spawn(process.execPath, args, {
        cwd: root,
        env: { ...process.env, ...env },
        stdio: ['ignore', onOutput ? 'pipe' : 'inherit', 'inherit'],
      });
      this.#child = child;
      child.stdout?.setEncoding('utf8').on('data', (text: string) => onOutput?.(text));
      child.once('error', reject);
      child.once('close', (code) => {
        this.#child = undefined;
        settle(code ?? 1);
      });
    });
  }
}

const run = new Run();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => {
    run.stop().finally(() => process.exit(1));
  });
}
try {
  process.exitCode = await run.execute(readArguments(process.argv.slice(2)));
} catch (error) {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
} finally {
  await run.stop();
}
