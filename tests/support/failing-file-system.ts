/** The real file system, with failures put in front of chosen calls. */
import { type FileSystem, nodeFileSystem, type OpenFile } from '../../lib/support/durable-file.ts';

export type FileCall =
  | 'mkdir'
  | 'open'
  | 'readdir'
  | 'rename'
  | 'unlink'
  | 'read'
  | 'write'
  | 'truncate'
  | 'datasync'
  | 'sync'
  | 'close';

/** Called before each call; what it throws is the call's failure, what it returns awaited first. */
export type Interception = (call: FileCall, path: string) => void | Promise<void>;

export class FailingFileSystem implements FileSystem {
  before: Interception = () => undefined;
  /** Bytes that a write still takes before it stops short; the next one then fails through `before`. */
  writeAtMost = Number.POSITIVE_INFINITY;

  async mkdir(path: string, options: { recursive: true; mode: number }): Promise<unknown> {
    await this.before('mkdir', path);
    return nodeFileSystem.mkdir(path, options);
  }

  async open(path: string, flags: string, mode?: number): Promise<OpenFile> {
    await this.before('open', path);
    return this.#wrap(await nodeFileSystem.open(path, flags, mode), path);
  }

  async readdir(path: string): Promise<string[]> {
    await this.before('readdir', path);
    return nodeFileSystem.readdir(path);
  }

  async rename(from: string, to: string): Promise<void> {
    await this.before('rename', from);
    return nodeFileSystem.rename(from, to);
  }

  async unlink(path: string): Promise<void> {
    await this.before('unlink', path);
    return nodeFileSystem.unlink(path);
  }

  #wrap(file: OpenFile, path: string): OpenFile {
    return {
      read: async (...args) => {
        await this.before('read', path);
        return file.read(...args);
      },
      write: async (buffer, offset, length, position) => {
        await this.before('write', path);
        return file.write(buffer, offset, Math.min(length, this.writeAtMost), position);
      },
      truncate: async (length) => {
        await this.before('truncate', path);
        return file.truncate(length);
      },
      datasync: async () => {
        await this.before('datasync', path);
        return file.datasync();
      },
      sync: async () => {
        await this.before('sync', path);
        return file.sync();
      },
      close: async () => {
        // Closed in any case: a test must not leak what it made fail.
        await file.close();
        await this.before('close', path);
      },
    };
  }
}

export function systemError(code: string): Error {
  return Object.assign(new Error(`${code}: made to fail`), { code });
}
