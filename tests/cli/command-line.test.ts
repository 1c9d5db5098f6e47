/** Reading of command lines: what is understood, and what is said about the rest. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { UsageError } from '../../lib/cli/cli-error.ts';
import { COMMON_OPTIONS, parseCommandLine } from '../../lib/cli/command-line.ts';
import { commandTable } from '../../lib/cli/commands.ts';
import { helpOf } from '../../lib/cli/help.ts';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { runCli } from '../support/cli.ts';

const COMMANDS = commandTable({ serve: async () => 0, migrate: async () => undefined, checkFiles: () => [] });
const parse = (line: string) =>
  parseCommandLine(
    line.split(' ').filter((word) => word !== ''),
    COMMANDS,
  );

describe('the command line', () => {
  it('finds commands, groups of them, and options on either side', () => {
    assert.equal(parse('bindings move 42 --node n2').command?.name, 'bindings move');
    const { command, words, values } = parse('--json -c f.yaml bindings list --node n2 alice --admin=http://x');
    assert.equal(command?.name, 'bindings list');
    assert.deepEqual(words, ['alice']);
    assert.deepEqual(
      [...values],
      [
        ['json', [true]],
        ['config', ['f.yaml']],
        ['node', ['n2']],
        ['admin', ['http://x']],
      ],
    );
    assert.equal(parse('--config f.yaml').command, null);
    assert.equal(parse('bindings --help').group, 'bindings');
    assert.equal(parse('help bindings list').help, true);
  });

  it('takes - for a value, and values that begin with a dash when they stand behind =', () => {
    assert.deepEqual(parse('explain --token -').values.get('token'), ['-']);
    assert.deepEqual(parse('bindings remove --user-id=-7').values.get('user-id'), ['-7']);
    assert.deepEqual(parse('bindings remove -- -7').words, ['-7']);
  });

  it('says what is wrong and what may have been meant', () => {
    for (const [line, pattern] of [
      ['statsu', /no command 'statsu' \(did you mean status\?\)/],
      ['dance', /no command 'dance': there are serve, check/],
      ['validate --config x', /did you mean check/],
      ['bindings unbind 4', /no command 'bindings unbind' \(did you mean remove\?\)/],
      ['bindings imprt', /did you mean import/],
      ['status --jsn', /'status' has no option '--jsn' \(did you mean --json\?\)/],
      ['check --yes --config x', /'check' has no option '--yes'/],
      ['--colour', /no option '--colour'/],
      ['--colour x', /no option '--colour'/],
      ['bindings list --colour x', /'bindings list' has no option '--colour'/],
      ['check --config', /--config needs a value/],
      ['check --config --json', /--config needs a value/],
      ['check --config=', /--config needs a value/],
      ['status --json=yes', /--json takes no value/],
      ['check x.yaml --config y.yaml', /what is 'x\.yaml' for/],
      ['bindings list a b', /what is 'b' for/],
    ] as const)
      assert.throws(
        () => parse(line),
        (error) => error instanceof UsageError && pattern.test(error.message),
        line,
      );
  });

  it('has options of one kind under one name, so that they can stand before the command', () => {
    const kinds = new Map<string, string>();
    for (const { name, options } of COMMANDS) {
      for (const [option, { type, short }] of Object.entries({ ...options, ...COMMON_OPTIONS })) {
        const kind = `${type} ${short ?? ''}`;
        assert.equal(kinds.get(option) ?? kind, kind, `${name} --${option}`);
        kinds.set(option, kind);
      }
    }
    const shorts = [...kinds].map(([option, kind]) => [kind.split(' ')[1], option]).filter(([short]) => short !== '');
    assert.equal(new Set(shorts.map(([short]) => short)).size, shorts.length, 'each short name stands for one option');
  });

  it('has help with an example for every command', async () => {
    for (const command of COMMANDS) {
      const help = helpOf(command);
      assert.match(help, /^usage: sticky-gateway/m, command.name);
      assert.ok(command.examples.length > 0);
      for (const option of Object.keys(command.options))
        assert.ok(help.includes(`--${option}`), `${command.name} --${option}`);
      for (const line of help.split('\n')) assert.ok(line.length <= 132, line);
    }
    const help = await runCli(['bindings', 'move', '--help']);
    assert.equal(help.code, 0);
    assert.match(help.stdout, /undo|not copied/);
    assert.match((await runCli(['bindings', '--help'])).stdout, /bindings freeze/);
    assert.doesNotMatch((await runCli(['bindings', '--help'])).stdout, /gateway status/);
  });

  it('understands every line that the README and the help show', () => {
    const readme = readFileSync(findPackageFile('README.md'), 'utf8');
    const lines = [...readme.matchAll(/^(?:#> {2} undo: )?(?:npx )?sticky-gateway (.*)$/gm)].map(
      ([, line = '']) => line,
    );
    assert.ok(lines.length > 8);
    const examples = COMMANDS.flatMap((command) => command.examples).map((line) =>
      line.replace(/^.*sticky-gateway /, ''),
    );
    for (const line of [...lines, ...examples]) {
      const command = line.replace(/\s+(?:#|[<>|]).*$/, '').trim();
      const words = command.match(/"[^"]*"|'[^']*'|\S+/g) ?? [];
      assert.doesNotThrow(() => parseCommandLine(words, COMMANDS), command);
    }
    for (const { name } of COMMANDS) {
      const [group = '', word = ''] = name.split(' ');
      assert.match(readme, new RegExp(`sticky-gateway (?:\\[serve\\]|${group})[^|]*${word}`), name);
    }
  });

  it('exits 2 with the usage on stderr, or with JSON when that was asked for', async () => {
    const plain = await runCli(['bindings', 'move', '42']);
    assert.deepEqual([plain.code, plain.stdout], [2, '']);
    assert.match(plain.stderr, /--node NODE is missing\nusage: sticky-gateway bindings move/);
    const json = await runCli(['bindings', 'move', '42', '--json']);
    assert.deepEqual([json.code, json.stdout], [2, '']);
    assert.deepEqual(json.error(), { error: 'usage', message: '--node NODE is missing' });
    for (const args of [
      [],
      ['bindings'],
      ['bindings', 'import'],
      ['bindings', 'remove'],
      ['bindings', 'remove', '1', '--username', 'x'],
      ['bindings', 'list', '--limit', '0'],
      ['apply'],
      ['status', '--admin', 'ftp://x'],
      ['status', '--admin', 'http://me:secret@x'],
      ['explain', '--user-id', '1', '--username', 'x'],
      ['bindings', 'export', '--format', 'xml'],
    ]) {
      const end = await runCli(args);
      assert.equal(end.code, 2, `${args.join(' ')}: ${end.stderr}`);
      assert.doesNotMatch(end.stderr, /secret/);
    }
  });

  it('tells its version, as JSON too', async () => {
    assert.equal((await runCli(['--version'])).stdout, '1.2.3\n');
    assert.deepEqual((await runCli(['--version', '--json'])).json(), { version: '1.2.3' });
  });
});
