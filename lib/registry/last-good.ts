/**
 * The last registry definition that was read from PostgreSQL, as a file, so that a gateway can start while PostgreSQL
 * is away. Whether its content is sound is checked by the reader.
 */
import { randomUUID } from 'node:crypto';
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { OperatorError } from '../errors.ts';
import type { RegistryDefinition } from '../model.ts';

const FORMAT = 1;

export interface LastGood {
  /** As it was written; not checked. */
  readonly definition: { readonly services: readonly unknown[]; readonly routes: readonly unknown[] };
  /** When it was read from PostgreSQL, epoch milliseconds. */
  readonly loadedAtMs: number;
}

export class LastGoodFile {
  readonly #folder: string;
  readonly #path: string;

  constructor(dataDir: string) {
    this.#folder = dataDir;
    this.#path = join(dataDir, 'registry-last-good.json');
  }

  /** Undefined = there is none. Rejects with OperatorError for a file that cannot be read. */
  async read(): Promise<LastGood | undefined> {
    let text: string;
    try {
      text = await readFile(this.#path, 'utf8');
    } catch (error) {
      if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
      throw new OperatorError(`${this.#path} cannot be read`, { cause: error });
    }
    const content = parse(text);
    if (!content) throw new OperatorError(`${this.#path} is damaged`);
    return content;
  }

  /** Replaces the file whole: a crash leaves the old or the new one. Mode 0600, as base URLs are nobody's business. */
  async write(definition: RegistryDefinition, loadedAtMs: number): Promise<void> {
    await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    // Several workers share the folder, so each writes a file of its own before the rename.
    const temporary = `${this.#path}.${process.pid}-${randomUUID()}`;
    try {
      const file = await open(temporary, 'wx', 0o600);
      try {
        await file.writeFile(JSON.stringify({ format: FORMAT, loadedAtMs, definition }));
        await file.sync();
      } finally {
        await file.close();
      }
      await rename(temporary, this.#path);
    } catch (error) {
      await rm(temporary, { force: true });
      throw error;
    }
  }
}

function parse(text: string): LastGood | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  if (typeof value !== 'object' || value === null) return undefined;
  const { format, loadedAtMs, definition } = value as Readonly<Record<string, unknown>>;
  if (format !== FORMAT || typeof loadedAtMs !== 'number' || typeof definition !== 'object' || definition === null) {
    return undefined;
  }
  const { services, routes } = definition as Readonly<Record<string, unknown>>;
  return Array.isArray(services) && Array.isArray(routes)
    ? { loadedAtMs, definition: { services, routes } }
    : undefined;
}
