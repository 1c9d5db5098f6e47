/** The table of commands, in the order of help. Those that need the gateway's own parts are passed in. */
import type { GatewayOptions } from '../config/options.ts';
import { apply } from './apply.ts';
import { audit } from './audit.ts';
import { bindingsExport } from './bindings-export.ts';
import { bindingsFreeze, bindingsUnfreeze } from './bindings-freeze.ts';
import { bindingsImport } from './bindings-import.ts';
import { bindingsList } from './bindings-list.ts';
import { bindingsRemove } from './bindings-remove.ts';
import { bindingsMove, bindingsSet } from './bindings-set.ts';
import { CONFIG_OPTION, check, requireConfig } from './check.ts';
import { type Command, show } from './command.ts';
import { explain } from './explain.ts';
import { status } from './status.ts';

export interface OwnCommands {
  /** Runs the gateway until a signal; resolves with the exit code. */
  readonly serve: (config: string) => Promise<number>;
  /** What is wrong with the certificates and keys that a configuration names. */
  readonly checkFiles: (options: GatewayOptions) => readonly string[];
  /** Resolves when the schema is up to date. */
  readonly migrate: (config: string) => Promise<void>;
}

export function commandTable({ serve, migrate, checkFiles }: OwnCommands): readonly Command[] {
  return [
    {
      name: 'serve',
      summary: 'Run the gateway',
      usage: '--config FILE',
      options: CONFIG_OPTION,
      mostWords: 0,
      notes: [
        'SIGTERM and SIGINT finish what runs and stop, a second one stops at once; SIGHUP reads the file again.',
        'Logs go to stdout, in the form that log.format says.',
      ],
      examples: ['sticky-gateway --config gateway.yaml'],
      run: (invocation) => serve(requireConfig(invocation)),
    },
    check(checkFiles),
    apply,
    {
      name: 'migrate',
      summary: 'Bring the PostgreSQL schema up to date',
      usage: '--config FILE',
      options: CONFIG_OPTION,
      mostWords: 0,
      notes: ['May be run at any time, also beside running gateways: it only adds.'],
      examples: ['sticky-gateway migrate --config gateway.yaml'],
      run: async (invocation) => {
        await migrate(requireConfig(invocation));
        await show(invocation, { migrated: true }, () => ['the schema is up to date']);
        return 0;
      },
    },
    status,
    explain,
    bindingsList,
    bindingsSet,
    bindingsMove,
    bindingsFreeze,
    bindingsUnfreeze,
    bindingsRemove,
    bindingsImport,
    bindingsExport,
    audit,
  ];
}
