/** Commands of the command line: in this process with streams of their own, or as a real process that can be ended. */
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { PassThrough, Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { commandTable } from '../../lib/cli/commands.ts';
import { runCommandLine } from '../../lib/cli/run.ts';
import { systemClock } from '../../lib/support/clock.ts';

export interface CliEnd {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
  /** Of stdout. Throws if it is not one JSON document. */
  json(): Record<string, unknown>;
  /** Of stderr. */
  error(): Record<string, unknown>;
  /** Of stdout, line by line. */
  ndjson(): Record<string, unknown>[];
}

export interface CliSetup {
  readonly stdin?: string | Readable;
  readonly env?: Readonly<Record<string, string>>;
  /** All streams claim to be terminals. */
  readonly terminal?: boolean;
}

/** Runs one command line here. `serve` and `migrate` are not to be had. */
export async function runCli(args: readonly string[], setup: CliSetup = {}): Promise<CliEnd> {
  const output = () => Object.assign(new PassThrough(), { isTTY: setup.terminal === true });
  const [stdout, stderr] = [output(), output()];
  const texts = [stdout, stderr].map(async (stream) => {
    let text = '';
    for await (const chunk of stream) text += String(chunk);
    return text;
  });
  const { stdin = '' } = setup;
  const input = typeof stdin === 'string' ? Readable.from(stdin === '' ? [] : [Buffer.from(stdin)]) : stdin;
  const never = () => Promise.reject(new Error('not here'));
  const code = await runCommandLine({
    argv: args,
    commands: commandTable({ serve: never, migrate: never, checkFiles: () => [] }),
    stdin: () => Object.assign(input, { isTTY: setup.terminal === true }),
    stdout,
    stderr,
    env: setup.env ?? {},
    clock: systemClock,
    version: () => '1.2.3',
  });
  stdout.end();
  stderr.end();
  const [out = '', err = ''] = await Promise.all(texts);
  return {
    code,
    stdout: out,
    stderr: err,
    json: () => JSON.parse(out) as Record<string, unknown>,
    error: () => JSON.parse(err) as Record<string, unknown>,
    ndjson: () =>
      out
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => JSON.parse(line) as Record<string, unknown>),
  };
}

const compiled = import.meta.url.endsWith('.js');
const COMMAND = fileURLToPath(new URL(`../../bin/gateway.${compiled ? 'js' : 'ts'}`, import.meta.url));

/** The real command; ends with this process at the latest. */
export function spawnCli(
  args: readonly string[],
  env: Readonly<Record<string, string>> = {},
): ChildProcessWithoutNullStreams {
  const child = spawn(process.execPath, [...(compiled ? [] : ['--import', 'tsx']), COMMAND, ...args], {
    env: { ...process.env, ...env },
  });
  const endWithProcess = () => child.kill('SIGKILL');
  process.on('exit', endWithProcess);
  child.once('close', () => process.off('exit', endWithProcess));
  return child;
}
