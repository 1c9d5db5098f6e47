/** Runs one command line from its words to an exit code, and shows what went wrong. What commands do lies with them. */
import { ConfigError } from '../config/load.ts';
import { OperatorError } from '../errors.ts';
import { describeError } from '../observe/log.ts';
import type { Clock } from '../support/clock.ts';
import { CommandFailure, ReaderGone, UsageError } from './cli-error.ts';
import { type Command, type Input, type Invocation, show } from './command.ts';
import { type ParsedLine, parseCommandLine } from './command-line.ts';
import { helpOf, helpOfAll, usageOf } from './help.ts';
import { Output } from './output.ts';
import { styleFor } from './style.ts';
import { printable } from './table.ts';

const EXIT_DONE = 0;
const EXIT_FAILED = 1;
const EXIT_USAGE = 2;

export interface RunOptions {
  readonly argv: readonly string[];
  readonly commands: readonly Command[];
  /** Opened by commands that read it, and by no other. */
  readonly stdin: () => Input;
  readonly stdout: Output['stream'];
  readonly stderr: Output['stream'];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly clock: Clock;
  readonly version: () => string;
}

/** Resolves with the exit code when all output has gone out. Never rejects. */
export async function runCommandLine(options: RunOptions): Promise<number> {
  const out = new Output(options.stdout);
  const err = new Output(options.stderr);
  try {
    return await run(options, out, err);
  } catch (error) {
    return report(error, options, err);
  } finally {
    await out.flush();
    await err.flush();
  }
}

async function run(options: RunOptions, out: Output, err: Output): Promise<number> {
  const { argv, commands } = options;
  const parsed = parseCommandLine(argv, commands);
  const command = parsed.command ?? (parsed.group === '' ? commands.find(({ name }) => name === 'serve') : undefined);
  if (parsed.help) {
    await out.write(parsed.command ? helpOf(parsed.command) : helpOfAll(commands, parsed.group));
    return EXIT_DONE;
  }
  const invocation = invocationOf(parsed, command?.name ?? '', options, out, err);
  if (parsed.version) {
    await show(invocation, { version: options.version() }, () => [options.version()]);
    return EXIT_DONE;
  }
  if (!command) throw new UsageError(`'${parsed.group}' what?`, parsed.group);
  if (argv.length === 0) throw new UsageError('--config FILE is missing');
  const foreign = [...parsed.values.keys()].find((name) => name !== 'json' && !Object.hasOwn(command.options, name));
  if (foreign !== undefined) throw new UsageError(`which command is --${foreign} for?`);
  return command.run(invocation);
}

function invocationOf(parsed: ParsedLine, command: string, options: RunOptions, out: Output, err: Output): Invocation {
  const { values, words } = parsed;
  const texts = (name: string) => (values.get(name) ?? []).filter((value) => typeof value === 'string');
  return {
    out,
    err,
    get stdin() {
      return options.stdin();
    },
    command,
    words,
    json: values.has('json'),
    style: styleFor(out.isTerminal, options.env),
    env: options.env,
    clock: options.clock,
    get version() {
      return options.version();
    },
    texts,
    text: (name) => texts(name).at(-1),
    flag: (name) => values.has(name),
  };
}

function report(error: unknown, options: RunOptions, err: Output): number {
  if (error instanceof ReaderGone) return EXIT_DONE;
  const text = options.argv.includes('--json') ? JSON.stringify(asDocument(error)) : asText(error, options);
  err.say(text.trimEnd());
  return error instanceof UsageError ? EXIT_USAGE : EXIT_FAILED;
}

function asDocument(error: unknown): Record<string, unknown> {
  if (error instanceof UsageError) return { error: 'usage', message: error.message };
  if (error instanceof ConfigError)
    return { error: 'config_invalid', message: error.message, problems: error.problems };
  if (error instanceof CommandFailure) {
    const { code, message, hint, details } = error;
    return { error: code, message, ...(hint === undefined ? {} : { hint }), ...details };
  }
  return { error: isExpected(error) ? 'failed' : 'unexpected', message: describeError(error) };
}

function asText(error: unknown, { commands }: RunOptions): string {
  if (error instanceof UsageError) {
    const command = commands.find(({ name }) => name === error.command);
    const help = command
      ? `${usageOf(command)}\nsticky-gateway ${command.name} --help says more\n`
      : `\n${helpOfAll(commands, error.command)}`;
    return `sticky-gateway: ${printable(error.message)}\n${help}`;
  }
  // Each mistake stands on its own line, as compilers print them.
  if (error instanceof ConfigError) return `${error.message}\n`;
  if (error instanceof CommandFailure) {
    const lines = [...error.lines.map(printable), `sticky-gateway: ${printable(error.message)}`];
    return `${[...lines, ...(error.hint === undefined ? [] : [`  ${error.hint}`])].join('\n')}\n`;
  }
  if (error instanceof OperatorError) return `sticky-gateway: ${error.message}\n`;
  if (isExpected(error)) return `sticky-gateway: ${describeError(error)}\n`;
  return `sticky-gateway: unexpected: ${error instanceof Error ? error.stack : String(error)}\n`;
}

/** A store that is away, a full disk: told in a line, where a fault of the program itself is told with its stack. */
function isExpected(error: unknown): boolean {
  if (error instanceof OperatorError) return true;
  return error instanceof Error && (error.name === 'StoreUnavailable' || ('code' in error && 'syscall' in error));
}
