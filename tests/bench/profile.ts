/**
 * Reads what `node --cpu-prof` wrote, and prints where the time went: by itself, and with all that was called. It is
 * time on the clock: a write that wakes another process on a busy core also gets the time that process takes, so on a
 * machine of few cores the shares of writes are too large. What costs CPU, the tables of the run say.
 */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';
import { text } from './report.ts';

/** As V8 writes it: https://chromedevtools.github.io/devtools-protocol/tot/Profiler/#type-Profile */
interface CpuProfile {
  readonly nodes: readonly ProfileNode[];
  /** Node ids, and the microseconds before each sample. */
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

interface ProfileNode {
  readonly id: number;
  readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
  readonly children?: readonly number[];
}

interface Times {
  readonly self: ReadonlyMap<string, number>;
  readonly inclusive: ReadonlyMap<string, number>;
  readonly byOrigin: ReadonlyMap<string, number>;
  /** All but idle. */
  readonly busy: number;
}

const TOP = 30;

/** `root`: the folder of the compiled program; what lies in it is called ours. */
export function printProfile(file: string, root: string): void {
  const times = readTimes(JSON.parse(fs.readFileSync(file, 'utf8')) as CpuProfile, root);
  console.log(
    `\nprofile: ${path.relative(process.cwd(), file)}, shares of ${text(times.busy / 1e6)} s that were not idle`,
  );
  printShares('by origin', times.byOrigin, times.busy);
  printShares(`all functions, time in themselves, top ${TOP}`, times.self, times.busy);
  printShares(`our own functions, with what they call, top ${TOP}`, times.inclusive, times.busy);
}

function readTimes({ nodes, samples, timeDeltas }: CpuProfile, root: string): Times {
  const spent = new Map<number, number>();
  for (const [index, id] of samples.entries()) add(spent, id, Math.max(0, timeDeltas[index] ?? 0));
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const self = new Map<string, number>();
  const inclusive = new Map<string, number>();
  const byOrigin = new Map<string, number>();
  let busy = 0;
  /** `open`: our functions on the stack, each of which gets the time once however often it is on it. */
  const visit = (node: ProfileNode, open: ReadonlySet<string>): void => {
    const micros = spent.get(node.id) ?? 0;
    const origin = originOf(node, root);
    const name = origin === OURS ? nameOf(node, root) : null;
    const stack = name === null || open.has(name) ? open : new Set([...open, name]);
    if (origin !== null) {
      busy += micros;
      add(byOrigin, origin, micros);
      add(self, name ?? placeOf(node), micros);
      for (const one of stack) add(inclusive, one, micros);
    }
    for (const id of node.children ?? []) {
      const child = byId.get(id);
      if (child) visit(child, stack);
    }
  };
  const called = new Set(nodes.flatMap((node) => node.children ?? []));
  for (const node of nodes) if (!called.has(node.id)) visit(node, new Set());
  return { self, inclusive, byOrigin, busy };
}
const OURS = 'our code';

/** Null = idle, which is no work. */
function originOf({ callFrame: { functionName, url } }: ProfileNode, root: string): string | null {
  if (functionName === '(idle)') return null;
  if (url.startsWith('file:') && !url.includes('/node_modules/') && fileURLToPath(url).startsWith(root)) return OURS;
  if (url.startsWith('node:')) return url.replace(/^node:internal\//, 'node:').replace(/^(node:\w+).*/, '$1');
  if (url !== '') return 'packages';
  return functionName.startsWith('(') ? functionName : 'native functions';
}

/** Of what is not ours; natives have no place. */
function placeOf({ callFrame: { functionName, url, lineNumber } }: ProfileNode): string {
  return `${functionName || '(anonymous)'} ${url === '' ? '(native)' : `${url}:${lineNumber + 1}`}`;
}

function nameOf({ callFrame: { functionName, url, lineNumber } }: ProfileNode, root: string): string {
  return `${functionName || '(anonymous)'} ${path.relative(root, fileURLToPath(url))}:${lineNumber + 1}`;
}

function printShares(title: string, times: ReadonlyMap<string, number>, busy: number): void {
  console.log(`\n${title}`);
  const sorted = [...times].sort(([, left], [, right]) => right - left).slice(0, TOP);
  for (const [name, micros] of sorted) console.log(`${text((100 * micros) / busy).padStart(6)} %  ${name}`);
}

function add<K>(sums: Map<K, number>, key: K, by: number): void {
  sums.set(key, (sums.get(key) ?? 0) + by);
}
