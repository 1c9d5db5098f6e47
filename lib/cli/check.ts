/** `check`: reads a configuration file and the files it names, and tells every mistake. Nothing is connected. */
import { readConfigFile } from '../config/load.ts';
import type { GatewayOptions } from '../config/options.ts';
import { OperatorError } from '../errors.ts';
import { UsageError } from './cli-error.ts';
import { type Command, type CommandOptions, type Invocation, show } from './command.ts';

export const CONFIG_OPTION: CommandOptions = {
  config: { type: 'string', short: 'c', value: 'FILE', help: 'the configuration file' },
};

/** Throws UsageError when it is not given. */
export function requireConfig({ text, command }: Invocation): string {
  const config = text('config');
  if (config === undefined) throw new UsageError('--config FILE is missing', command);
  return config;
}

/** `checkFiles`: what is wrong with the files that a configuration names. */
export const check = (checkFiles: (options: GatewayOptions) => readonly string[]): Command => ({
  name: 'check',
  summary: 'Check a configuration file and print every mistake',
  usage: '--config FILE',
  options: CONFIG_OPTION,
  mostWords: 0,
  notes: ['Each mistake is a line: FILE:LINE:COLUMN: PATH: what is wrong. Exit code 1 if there is one.'],
  examples: ['sticky-gateway check --config gateway.yaml'],
  run: async (invocation) => {
    const file = requireConfig(invocation);
    const problems = checkFiles(await readConfigFile(file, invocation.env));
    if (problems.length > 0) throw new OperatorError(problems.join('\n'));
    await show(invocation, { file, problems: [] }, () => [`${file}: no mistakes found`]);
    return 0;
  },
});
