/**
 * From the words of a command line to a command and its options, or to a UsageError that says what was meant. It
 * knows no single command.
 */
import { parseArgs } from 'node:util';
import { didYouMean } from '../config/fields.ts';
import { UsageError } from './cli-error.ts';
import type { Command, CommandOption, CommandOptions } from './command.ts';

/** Of every command. */
export const COMMON_OPTIONS: CommandOptions = {
  json: { type: 'boolean', help: 'one JSON document on stdout, errors as JSON on stderr' },
  help: { type: 'boolean', short: 'h', help: 'this text' },
};

/** Words that others use for a command -> its name here. */
const SYNONYMS: Readonly<Record<string, string>> = {
  start: 'serve',
  run: 'serve',
  validate: 'check',
  test: 'check',
  push: 'apply',
  diff: 'apply',
  health: 'status',
  log: 'audit',
  ls: 'list',
  get: 'list',
  show: 'list',
  find: 'list',
  rm: 'remove',
  delete: 'remove',
  unbind: 'remove',
  add: 'set',
  bind: 'set',
  put: 'set',
  thaw: 'unfreeze',
  load: 'import',
  dump: 'export',
};

export interface ParsedLine {
  /** null = help or version of the whole program, or of a group. */
  readonly command: Command | null;
  /** `bindings`; empty = none was named. */
  readonly group: string;
  readonly help: boolean;
  readonly version: boolean;
  readonly words: readonly string[];
  readonly values: ReadonlyMap<string, readonly (string | true)[]>;
}

/** Throws UsageError. */
export function parseCommandLine(argv: readonly string[], commands: readonly Command[]): ParsedLine {
  const known = knownOptions(commands);
  const { tokens } = parseArgs({
    args: [...argv],
    options: Object.fromEntries(
      [...known].map(([name, { type, short }]) => [name, short ? { type, short } : { type }]),
    ),
    allowPositionals: true,
    strict: false,
    tokens: true,
  });
  const words: string[] = [];
  const given: { name: string; written: string; value: string | undefined; inline: boolean }[] = [];
  for (const token of tokens) {
    if (token.kind === 'positional') words.push(token.value);
    else if (token.kind === 'option')
      given.push({ name: token.name, written: token.rawName, value: token.value, inline: token.inlineValue === true });
  }
  if (words[0] === 'help') {
    words.shift();
    given.push({ name: 'help', written: 'help', value: undefined, inline: false });
  }
  // What follows an unknown option may be its value and no command at all.
  const unknown = given.find(({ name }) => !known.has(name));
  const { command, group, rest } = unknown ? nearestCommand(words, commands) : findCommand(words, commands);
  const values = new Map<string, (string | true)[]>();
  for (const { name, written, value, inline } of given) {
    const option = optionOf(name, written, command, group, known);
    const list = values.get(name) ?? [];
    list.push(readValue(option, written, value, inline, command?.name ?? group));
    values.set(name, list);
  }
  const parsed = { group, words: rest, values, help: values.has('help'), version: values.has('version') };
  if (command === null || parsed.help || parsed.version) return { ...parsed, command };
  const extra = rest[command.mostWords];
  if (extra !== undefined) {
    const meant = /\.ya?ml$/.test(extra) && !values.has('config') ? ` Write --config ${extra}` : '';
    throw new UsageError(`what is '${extra}' for?${meant}`, command.name);
  }
  return { ...parsed, command };
}

function knownOptions(commands: readonly Command[]): ReadonlyMap<string, CommandOption> {
  const version: CommandOption = { type: 'boolean', short: 'v', help: '' };
  return new Map([
    ...Object.entries(COMMON_OPTIONS),
    ['version', version] as const,
    ...commands.flatMap(({ options }) => Object.entries(options)),
  ]);
}

interface Found {
  readonly command: Command | null;
  readonly group: string;
  readonly rest: readonly string[];
}

/** Without a word it is `serve`, unless nothing is given at all: run.ts decides what to say then. */
function findCommand(words: readonly string[], commands: readonly Command[]): Found {
  const [first, second] = words;
  if (first === undefined) return { command: null, group: '', rest: [] };
  const single = commands.find(({ name }) => name === first);
  if (single) return { command: single, group: '', rest: words.slice(1) };
  const members = commands.filter(({ name }) => name.startsWith(`${first} `));
  if (members.length === 0) {
    const names = [...new Set(commands.map(({ name }) => name.split(' ')[0] ?? ''))];
    throw new UsageError(`there is no command '${first}'${meant(first, names)}`);
  }
  if (second === undefined) return { command: null, group: first, rest: [] };
  const member = members.find(({ name }) => name === `${first} ${second}`);
  if (member) return { command: member, group: first, rest: words.slice(2) };
  const names = members.map(({ name }) => name.slice(first.length + 1));
  throw new UsageError(`there is no command '${first} ${second}'${meant(second, names)}`, first);
}

/** For the message on an unknown option: what can be told without more complaints. */
function nearestCommand(words: readonly string[], commands: readonly Command[]): Found {
  const command = [2, 1]
    .map((count) => words.slice(0, count).join(' '))
    .flatMap((name) => commands.find((one) => one.name === name) ?? [])[0];
  return { command: command ?? null, group: '', rest: [] };
}

function meant(word: string, names: readonly string[]): string {
  const synonym = SYNONYMS[word.toLowerCase()];
  if (synonym !== undefined && names.includes(synonym)) return ` (did you mean ${synonym}?)`;
  return didYouMean(word, names) || `: there are ${names.join(', ')}`;
}

function optionOf(
  name: string,
  written: string,
  command: Command | null,
  group: string,
  known: ReadonlyMap<string, CommandOption>,
): CommandOption {
  const option = known.get(name);
  // Before a command is known, any command's options may stand: `serve` is the one without a word.
  const own = command === null ? option : (command.options[name] ?? COMMON_OPTIONS[name]);
  if (own) return own;
  const fitting = command ? [...Object.keys(command.options), ...Object.keys(COMMON_OPTIONS)] : [...known.keys()];
  const what = command ? `'${command.name}' has no option '${written}'` : `there is no option '${written}'`;
  const hint = didYouMean(name, fitting).replace(/mean /, 'mean --');
  if (name === 'version' && option) return option;
  throw new UsageError(what + hint, command?.name ?? group);
}

function readValue(
  option: CommandOption,
  written: string,
  value: string | undefined,
  inline: boolean,
  command: string,
): string | true {
  if (option.type === 'boolean') {
    if (value !== undefined) throw new UsageError(`${written} takes no value`, command);
    return true;
  }
  if (value === undefined || value === '') throw new UsageError(`${written} needs a value`, command);
  // `--config --json`: the value was forgotten. A single '-' is standard input.
  if (!inline && /^-./.test(value))
    throw new UsageError(`${written} needs a value (one that begins with '-' is written ${written}=${value})`, command);
  return value;
}
