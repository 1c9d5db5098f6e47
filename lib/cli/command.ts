/** What a command is and what it is given. Reading the command line is done in command-line.ts. */
import type { Readable } from 'node:stream';
import type { Clock } from '../support/clock.ts';
import type { Output } from './output.ts';
import type { Style } from './style.ts';

export interface CommandOption {
  readonly type: 'string' | 'boolean';
  readonly short?: string;
  readonly multiple?: true;
  /** What stands for the value in help; strings only. */
  readonly value?: string;
  readonly help: string;
}

export type CommandOptions = Readonly<Record<string, CommandOption>>;

export interface Command {
  /** `status`, `bindings list` */
  readonly name: string;
  /** One line. */
  readonly summary: string;
  /** Behind the name: `[USER-ID] --node NODE` */
  readonly usage: string;
  /** Its own; those that all commands have come on top. */
  readonly options: CommandOptions;
  /** Most words behind the name. */
  readonly mostWords: number;
  /** What help says besides; empty = nothing. */
  readonly notes: readonly string[];
  readonly examples: readonly string[];
  /** Resolves with the exit code. */
  readonly run: (invocation: Invocation) => Promise<number>;
}

export type Input = Readable & { readonly isTTY?: boolean };

/** One call of a command. */
export interface Invocation {
  readonly stdin: Input;
  readonly out: Output;
  readonly err: Output;
  readonly command: string;
  readonly words: readonly string[];
  readonly json: boolean;
  /** Of standard output. */
  readonly style: Style;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly clock: Clock;
  /** Of this command itself. */
  readonly version: string;
  /** The last one counts; undefined = not given. */
  readonly text: (option: string) => string | undefined;
  readonly texts: (option: string) => readonly string[];
  readonly flag: (option: string) => boolean;
}

/** Shows a result: as one JSON document, or the lines for people. */
export async function show(invocation: Invocation, document: unknown, lines: () => readonly string[]): Promise<void> {
  const text = invocation.json ? JSON.stringify(document) : lines().join('\n');
  if (text !== '') await invocation.out.line(text);
}
