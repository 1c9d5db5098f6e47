/** The texts of --help, made from the table of commands. */
import type { Command, CommandOptions } from './command.ts';
import { COMMON_OPTIONS } from './command-line.ts';
import { Table } from './table.ts';

const PROGRAM = 'sticky-gateway';

/** `group` empty = the whole program. */
export function helpOfAll(commands: readonly Command[], group: string): string {
  const shown = group === '' ? commands : commands.filter(({ name }) => name.startsWith(`${group} `));
  const rows = shown.map(({ name, summary }) => [`  ${PROGRAM} ${name === 'serve' ? '[serve]' : name}`, summary]);
  const lines = [
    ...(group === '' ? [`${PROGRAM}: binds each user to one node and never sends them to another`, ''] : []),
    ...new Table().lines(rows),
    '',
    `${PROGRAM} COMMAND --help says more, with examples.`,
  ];
  if (group === '')
    lines.push(
      `${PROGRAM} --version`,
      '',
      `  ${PROGRAM} check --config gateway.yaml`,
      `  ${PROGRAM} --config gateway.yaml`,
      `  ${PROGRAM} status`,
      '',
      'Exit codes: 0 done, 1 it failed, 2 the command line is wrong.',
      'Signals: SIGTERM and SIGINT finish what runs and stop, a second one stops at once; SIGHUP reads the file again.',
    );
  return `${lines.join('\n')}\n`;
}

export function helpOf(command: Command): string {
  const lines = [
    `${command.summary}.`,
    '',
    usageOf(command),
    ...(command.notes.length > 0 ? ['', ...command.notes] : []),
    '',
    ...optionLines({ ...command.options, ...COMMON_OPTIONS }),
    '',
    ...(command.examples.length === 1 ? ['Example:'] : ['Examples:']),
    ...command.examples.map((example) => `  ${example}`),
  ];
  return `${lines.join('\n')}\n`;
}

export function usageOf({ name, usage }: Command): string {
  return `usage: ${PROGRAM} ${name === 'serve' ? '[serve]' : name}${usage === '' ? '' : ` ${usage}`}`;
}

function optionLines(options: CommandOptions): string[] {
  const rows = Object.entries(options).map(([name, { short, value, help }]) => {
    const forms = `${short ? `-${short}, ` : '    '}--${name}${value ? ` ${value}` : ''}`;
    return [`  ${forms}`, help];
  });
  return new Table().lines(rows);
}
