/**
 * From the text of a configuration file to complete options, or to the list of everything that is wrong with it, each
 * with its position. Nothing is opened or connected here.
 */
import * as fs from 'node:fs/promises';
import * as path from 'node:path';
import {
  type Document,
  isMap,
  isNode,
  isPair,
  isScalar,
  isSeq,
  LineCounter,
  parseDocument,
  type Node as YamlNode,
} from 'yaml';
import { OperatorError } from '../errors.ts';
import { substitute } from './environment.ts';
import { Field, formatPath, type Problem, Problems } from './fields.ts';
import { checkFile } from './file.ts';
import type { GatewayOptions } from './options.ts';
import { explainYaml, readYaml } from './yaml-checks.ts';

export interface ConfigProblem {
  readonly file: string;
  /** From 1; 0 = the file could not be read. */
  readonly line: number;
  /** From 1; 0 with line 0. */
  readonly column: number;
  /** `services[0].nodes[1].weight`; empty for the file as a whole. */
  readonly path: string;
  readonly message: string;
}

/** `file:line:column: path: what is wrong`; without line and column when there are none. */
export function formatProblem({ file, line, column, path: place, message }: ConfigProblem): string {
  return `${file}${line === 0 ? '' : `:${line}:${column}`}: ${place === '' ? '' : `${place}: `}${message}`;
}

/** All mistakes of a file, one on a line. */
export class ConfigError extends OperatorError {
  readonly problems: readonly ConfigProblem[];

  constructor(problems: readonly ConfigProblem[]) {
    super(problems.map(formatProblem).join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

export type LoadResult = { readonly options: GatewayOptions } | { readonly problems: readonly ConfigProblem[] };

/** Checks `text`; relative paths in it are taken from the folder of `fileName`. */
export function loadConfig(
  text: string,
  fileName: string,
  environment: Readonly<Record<string, string | undefined>>,
): LoadResult {
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: false });
  const at = (offset: number) => {
    const { line, col } = lines.linePos(offset);
    return { file: fileName, line: Math.max(1, line), column: Math.max(1, col) };
  };
  const faults = [...document.errors, ...document.warnings];
  if (faults.length > 0) {
    return {
      problems: faults.map((fault) => ({ ...at(fault.pos[0]), path: '', message: explainYaml(fault) })),
    };
  }
  const found = readYaml(document);
  if (!found.readable)
    return { problems: found.problems.map(({ offset, ...problem }) => ({ ...at(offset), ...problem })) };
  const problems = new Problems();
  const substituted = substitute(found.value ?? {}, environment, problems);
  const folder = path.dirname(path.resolve(fileName));
  const options = checkFile(new Field(problems, [], substituted), (relative) => path.resolve(folder, relative));
  if (problems.list.length === 0 && found.problems.length === 0) return { options };
  const located = [
    ...found.problems,
    ...firstOfEachPlace(problems.list).map((problem) => ({
      offset: offsetOf(document, problem),
      path: formatPath(problem.path),
      message: problem.message,
    })),
  ].sort((left, right) => left.offset - right.offset);
  return { problems: located.map(({ offset, ...problem }) => ({ ...at(offset), ...problem })) };
}

/** Reads and checks a file. Rejects with ConfigError. */
export async function readConfigFile(
  file: string,
  environment: Readonly<Record<string, string | undefined>>,
): Promise<GatewayOptions> {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await fs.readFile(file));
  } catch (error) {
    throw new ConfigError([{ file, line: 0, column: 0, path: '', message: `cannot be read: ${unreadable(error)}` }]);
  }
  const loaded = loadConfig(text, file, environment);
  if ('problems' in loaded) throw new ConfigError(loaded.problems);
  return loaded.options;
}

function unreadable(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ERR_ENCODING_INVALID_ENCODED_DATA') return 'it is not UTF-8';
  return code === 'ENOENT' ? 'there is no such file' : code === 'EISDIR' ? 'this is a folder' : message;
}

/** A stand-in for a bad value can fail a later check at the same place; the first fault is the true one. */
function firstOfEachPlace(problems: readonly Problem[]): Problem[] {
  const seen = new Set<string>();
  return problems.filter((problem) => {
    const place = formatPath(problem.path);
    if (seen.has(place)) return false;
    seen.add(place);
    return true;
  });
}

/** Where a problem's key or value begins; that of the nearest parent when it is not in the file. */
function offsetOf(document: Document, problem: Problem): number {
  let node: unknown = document.contents;
  let offset = startOf(node) ?? 0;
  for (const [index, part] of problem.path.entries()) {
    const last = index === problem.path.length - 1;
    const next = stepInto(node, part);
    if (!next) return offset;
    node = next.value;
    const value = startOf(next.value);
    offset = last && problem.at === 'key' ? (next.key ?? offset) : (value ?? next.key ?? offset);
  }
  return offset;
}

function stepInto(node: unknown, part: string | number): { key?: number; value: unknown } | undefined {
  if (isSeq(node) && typeof part === 'number')
    return part < node.items.length ? { value: node.items[part] } : undefined;
  if (!isMap(node)) return undefined;
  // Of two equal keys the last one counts.
  const pair = node.items.findLast(
    (item) => isPair(item) && isScalar(item.key) && String(item.key.value) === String(part),
  );
  if (!pair) return undefined;
  const key = startOf(pair.key);
  return { ...(key === undefined ? {} : { key }), value: pair.value };
}

function startOf(node: unknown): number | undefined {
  return isNode(node) ? (node as YamlNode).range?.[0] : undefined;
}
