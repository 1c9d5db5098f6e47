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

/** Every import and re-export at the head of a statement, and what is loaded in the middle of one. */
function importsIn(file: string, source: string): Import[] {
  const statement = /^(?:import|export)\s+(type\s+)?((?:[^;'"]|\n)*?\sfrom\s+)?['"]([^'"]+)['"]/gm;
  const dynamic = /\b(?:import|require|resolve)\s*\(\s*['"]([^'"]+)['"]/g;
  const code = withoutComments(source);
  return [
    ...[...code.matchAll(statement)].map(([, type, names = '', to = '']) => ({
      from: file,
      to: resolve(file, to),
      typeOnly: type !== undefined || isTypesOnly(names),
    })),
    ...[...code.matchAll(dynamic)].map(([, to = '']) => ({ from: file, to: resolve(file, to), typeOnly: false })),
  ];
}

function resolve(from: string, to: string): string {
  return to.startsWith('.') ? path.posix.normalize(path.posix.join(path.posix.dirname(from), to)) : to;
}

/** `{ type A, type B } from`: nothing of it is left at run time (but the import of the module itself is). */
function isTypesOnly(names: string): boolean {
  const list = /\{([^}]*)\}/.exec(names)?.[1];
  const parts = list?.split(',').map((part) => part.trim());
  return parts?.filter((part) => part !== '').every((part) => part.startsWith('type ')) ?? false;
}

const IMPORTS = SOURCES.flatMap((file) => importsIn(file, read(file)));

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
  if (['pipeline.ts', 'admin', 'cli', 'process'].includes(folder)) return 6;
  return assert.fail(`${file} lies in no known layer`);
}

const FORBIDDEN = [
  /(?:[:<,|&([]|=>|\b(?:as|extends|keyof|satisfies))\s*any\b(?!\s*[(:.])/,
  /@ts-(?:ignore|expect-error|nocheck)/,
  /\bcatch\s*(?:\([^)]*\))?\s*\{\s*\}/,
  /\b(?:TODO|FIXME|XXX)\b/,
];
const isForbidden = (source: string) => FORBIDDEN.some((pattern) => pattern.test(withoutComments(source)));

/** Where a package of the three may be imported. */
const PACKAGES: Readonly<Record<string, string>> = { pg: 'lib/stores/', ioredis: 'lib/stores/', yaml: 'lib/config/' };

describe('the checks of the program', () => {
  it('see every kind of import', () => {
    const source = `#!/usr/bin/env node
/** import x from './comment.ts' */
import type { A } from './a.ts';
import { type B, type C } from './b.ts';
import { type D, e } from '../support/d.ts';
import type F from "./f.ts";
import {
  g,
  type H,
} from './g.ts';
import * as fs from 'node:fs';
import './side-effect.ts';
export { i } from './i.ts';
export type { J } from './j.ts';
export * from './k.ts';
export const text = 'from './no.ts';
// import './comment.ts';
const late = await import('./late.ts');
const old = require('left-pad');
`;
    const seen = importsIn('lib/bindings/x.ts', source).map(({ to, typeOnly }) => `${to}${typeOnly ? ' (types)' : ''}`);
    const own = (names: string) => names.split(' ').map((name) => `lib/bindings/${name}`);
    assert.deepEqual(seen, [
      ...own('a.ts').map((name) => `${name} (types)`),
      ...own('b.ts').map((name) => `${name} (types)`),
      'lib/support/d.ts',
      ...own('f.ts').map((name) => `${name} (types)`),
      ...own('g.ts'),
      'node:fs',
      ...own('side-effect.ts i.ts'),
      ...own('j.ts').map((name) => `${name} (types)`),
      ...own('k.ts late.ts'),
      'left-pad',
    ]);
  });

  it('see what is forbidden, and nothing else', () => {
    for (const source of [
      'let a: any;',
      'let a: any[] = [];',
      'let a = b as any;',
      'let a: Record<string, any>;',
      'let a: Array<any>;',
      'let a: string | any;',
      'const f = (): any => 1;',
      'let a: any = 1;',
      'type A = () => any;',
      '// @ts-ignore',
      'f(); /* @ts-expect-error later */',
      'try { f() } catch {}',
      'try { f() } catch (error) {\n}',
      'try { f() } catch {\n  // nothing to do\n}',
      '/** TODO: mend */',
      'const a = 1; // FIXME',
    ])
      assert.ok(isForbidden(source), source);
    for (const source of [
      "const text = 'any node';",
      '// any of them',
      'const company: Company = many;',
      '.catch(() => undefined)',
      'try { f() } catch { return undefined; }',
    ])
      assert.ok(!isForbidden(source), source);
  });

  it('look at the whole program', () => {
    assert.ok(SOURCES.length > 80, `${SOURCES.length} files`);
    for (const folder of [...FEATURES, 'support', 'stores', 'proxy', 'middleware'])
      assert.ok(
        SOURCES.some((file) => file.startsWith(`lib/${folder}/`)),
        folder,
      );
    assert.ok(IMPORTS.filter(({ from }) => from === 'bin/compose.ts').length > 40);
    for (const name of Object.keys(PACKAGES))
      assert.ok(
        IMPORTS.some(({ to }) => to === name),
        name,
      );
    for (const { from, to } of IMPORTS) {
      if (to.startsWith('lib/') || to.startsWith('bin/')) assert.ok(SOURCES.includes(to), `${from} -> ${to}`);
    }
  });
});

describe('the program', () => {
  it('imports from lower layers only', () => {
    const wrong = IMPORTS.filter(({ from, to }) => to.endsWith('.ts') && layerOf(to) > layerOf(from));
    assert.deepEqual(
      wrong.map(({ from, to }) => `${from} -> ${to}`),
      [],
    );
  });

  it('has commands that know the gateway only through its admin API', () => {
    const allowed = /^(?:node:|lib\/(?:cli|config|observe|support)\/|lib\/errors\.ts$)/;
    const wrong = IMPORTS.filter(
      ({ from, to, typeOnly }) =>
        from.startsWith('lib/cli/') && !allowed.test(to) && !(typeOnly && to === 'lib/model.ts'),
    );
    assert.ok(IMPORTS.filter(({ from }) => from.startsWith('lib/cli/')).length > 50);
    assert.deepEqual(
      wrong.map(({ from, to }) => `${from} -> ${to}`),
      [],
    );
    const users = IMPORTS.filter(({ from, to }) => to.startsWith('lib/cli/') && !from.startsWith('lib/cli/'));
    assert.deepEqual([...new Set(users.map(({ from }) => from))], ['bin/gateway.ts']);
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
    const lock = JSON.parse(read('package-lock.json')) as { packages: { '': typeof manifest } };
    assert.deepEqual(lock.packages[''].dependencies, manifest.dependencies, 'the lock file is of this manifest');
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
    assert.deepEqual(
      SOURCES.filter((file) => isForbidden(read(file))),
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
