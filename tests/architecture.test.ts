/** The shape of the program: which way imports point, which packages there are, what stands at the top level. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { describe, it } from 'node:test';
import { findPackageFile } from '../lib/process/package-file.ts';

const ROOT = path.dirname(findPackageFile('package.json'));

interface Import {
  /** Relative to the root, with '/'. */
  readonly from: string;
  /** A file relative to the root, or the name of a package. */
  readonly to: string;
  readonly typeOnly: boolean;
}

function sourcesIn(folder: string): string[] {
  return fs
    .readdirSync(path.join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !file.endsWith('.d.ts'))
    .map((file) => path.posix.join(folder, file.replaceAll(path.sep, '/')));
}

const SOURCES = [...sourcesIn('lib'), ...sourcesIn('bin')];
const read = (file: string) => fs.readFileSync(path.join(ROOT, file), 'utf8');

/** Every import and re-export, at the head of a statement. */
function importsOf(file: string): Import[] {
  const statement = /^(?:import|export)\s+(type\s+)?((?:[^;'"]|\n)*?\sfrom\s+)?'([^']+)'/gm;
  return [...read(file).matchAll(statement)].map(([, type, names = '', to = '']) => ({
    from: file,
    to: to.startsWith('.') ? path.posix.normalize(path.posix.join(path.posix.dirname(file), to)) : to,
    typeOnly: type !== undefined || isTypesOnly(names),
  }));
}

/** `{ type A, type B } from`: nothing of it is left at run time (but the import of the module itself is). */
function isTypesOnly(names: string): boolean {
  const list = /\{([^}]*)\}/.exec(names)?.[1];
  const parts = list?.split(',').map((part) => part.trim());
  return parts?.filter((part) => part !== '').every((part) => part.startsWith('type ')) ?? false;
}

const IMPORTS = SOURCES.flatMap(importsOf);

/** Prose may say any word; but a promise to mend something later counts wherever it stands. */
function withoutComments(source: string): string {
  return source.replaceAll(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, (comment) =>
    /TODO|FIXME|XXX|@ts-/.test(comment) ? comment : '',
  );
}

const FEATURES = ['registry', 'health', 'balance', 'canary', 'bindings', 'tokens'];

/** Lower layers know nothing of higher ones. */
function layerOf(file: string): number {
  const [top, folder = ''] = file.split('/');
  if (top === 'bin') return 7;
  if (folder === 'support') return 0;
  if (['model.ts', 'errors.ts', 'context.ts', 'config', 'observe'].includes(folder)) return 1;
  if (folder === 'stores') return 2;
  if (FEATURES.includes(folder)) return 3;
  if (folder === 'proxy') return 4;
  if (folder === 'middleware') return 5;
  if (['pipeline.ts', 'admin', 'process'].includes(folder)) return 6;
  return assert.fail(`${file} lies in no known layer`);
}

/** Where a package of the three may be imported. */
const PACKAGES: Readonly<Record<string, string>> = { pg: 'lib/stores/', ioredis: 'lib/stores/', yaml: 'lib/config/' };

describe('the program', () => {
  it('imports from lower layers only', () => {
    const wrong = IMPORTS.filter(({ from, to }) => to.endsWith('.ts') && layerOf(to) > layerOf(from));
    assert.deepEqual(
      wrong.map(({ from, to }) => `${from} -> ${to}`),
      [],
    );
  });

  it('has features that know each other only as types', () => {
    const wrong = IMPORTS.filter(({ from, to, typeOnly }) => {
      const [, own = ''] = from.split('/');
      const [, other = ''] = to.split('/');
      return !typeOnly && FEATURES.includes(own) && FEATURES.includes(other) && own !== other;
    });
    assert.deepEqual(
      wrong.map(({ from, to }) => `${from} -> ${to}`),
      [],
    );
  });

  it('has no cycle of imports at run time', () => {
    const next = new Map<string, string[]>();
    for (const { from, to, typeOnly } of IMPORTS) if (!typeOnly) next.set(from, [...(next.get(from) ?? []), to]);
    const done = new Set<string>();
    const visit = (file: string, trail: readonly string[]): void => {
      assert.ok(!trail.includes(file), `a cycle: ${[...trail, file].join(' -> ')}`);
      if (done.has(file)) return;
      for (const to of next.get(file) ?? []) visit(to, [...trail, file]);
      done.add(file);
    };
    for (const file of SOURCES) visit(file, []);
  });

  it('uses three packages, each in its place, and Node', () => {
    for (const { from, to } of IMPORTS) {
      if (to.endsWith('.ts') || to.startsWith('node:')) continue;
      const place = PACKAGES[to];
      assert.ok(place, `${from} imports ${to}`);
      assert.ok(from.startsWith(place), `${from} imports ${to}, which belongs to ${place}`);
    }
    const manifest = JSON.parse(read('package.json')) as { dependencies: Record<string, string> };
    assert.deepEqual(Object.keys(manifest.dependencies).sort(), ['ioredis', 'pg', 'yaml']);
    assert.ok(!read('package-lock.json').includes('"resolved"'), 'the lock file names no registry');
  });

  it('has support code that needs nothing but Node', () => {
    const wrong = IMPORTS.filter(
      ({ from, to }) => from.startsWith('lib/support/') && !to.startsWith('node:') && !to.startsWith('lib/support/'),
    );
    assert.deepEqual(
      wrong.map(({ from, to }) => `${from} -> ${to}`),
      [],
    );
  });

  it('begins every file with a word on its duty', () => {
    const silent = SOURCES.filter((file) => !/^(?:#!.*\n)?\/\*\*/.test(read(file)));
    assert.deepEqual(silent, []);
  });

  it('has no any, no silenced compiler, no empty catch and no loose ends', () => {
    const forbidden =
      /: any\b|\bas any\b|@ts-ignore|@ts-expect-error|catch *(\([^)]*\))? *\{\s*\}|\bTODO\b|\bFIXME\b|\bXXX\b/;
    assert.deepEqual(
      SOURCES.filter((file) => forbidden.test(withoutComments(read(file)))),
      [],
    );
  });

  it('has at its top level what belongs there', () => {
    const allowed = new Set([
      'package.json',
      'package-lock.json',
      'tsconfig.json',
      'biome.json',
      'lib',
      'bin',
      'schema',
      'tests',
      'examples',
      'LICENSE',
      'README.md',
      'README.zh-CN.md',
      'CHANGELOG.md',
    ]);
    const files = execFileSync('git', ['ls-files'], { cwd: ROOT, encoding: 'utf8' }).split('\n');
    const top = new Set(files.filter((file) => file !== '').map((file) => file.split('/')[0] ?? ''));
    assert.deepEqual(
      [...top].filter((name) => !name.startsWith('.') && !allowed.has(name)),
      [],
    );
  });
});
