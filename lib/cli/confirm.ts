/** Asks before what cannot simply be taken back. */
import { createInterface } from 'node:readline/promises';
import { UsageError } from './cli-error.ts';
import type { CommandOptions, Invocation } from './command.ts';

export const YES_OPTION: CommandOptions = {
  yes: { type: 'boolean', short: 'y', help: 'do not ask' },
};

/** False = the answer was no. Throws UsageError where nobody can be asked. */
export async function confirm(invocation: Invocation, question: string): Promise<boolean> {
  if (invocation.flag('yes')) return true;
  const { stdin, err, command } = invocation;
  if (stdin.isTTY !== true || !err.isTerminal)
    throw new UsageError('there is no terminal to ask on: add --yes to go ahead, or --dry-run to only look', command);
  const terminal = createInterface({ input: stdin, output: err.stream });
  try {
    const ended = new Promise<string>((resolve) => terminal.once('close', () => resolve('')));
    const answer = await Promise.race([terminal.question(`${question} [y/N] `), ended]);
    return /^y(es)?$/i.test(answer.trim());
  } finally {
    terminal.close();
  }
}
