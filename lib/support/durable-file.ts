/**
 * The few file operations that durable storage needs, as an interface that tests can make fail, and the steps that
 * are easy to get wrong: short writes and the fsync of a folder. What is written is not known here.
 */
import { mkdir, open, readdir, rename, unlink } from 'node:fs/promises';

export interface OpenFile {
  read(buffer: Buffer, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
  write(buffer: Buffer, offset: number, length: number, position: number): Promise<{ bytesWritten: number }>;
  truncate(length: number): Promise<void>;
  datasync(): Promise<void>;
  sync(): Promise<void>;
  close(): Promise<void>;
}

export interface FileSystem {
  mkdir(path: string, options: { recursive: true; mode: number }): Promise<unknown>;
  open(path: string, flags: string, mode?: number): Promise<OpenFile>;
  readdir(path: string): Promise<string[]>;
  rename(from: string, to: string): Promise<void>;
  unlink(path: string): Promise<void>;
}

export const nodeFileSystem: FileSystem = { mkdir, open, readdir: (path) => readdir(path), rename, unlink };

/** Writes all of `bytes` at `position`; a write may take fewer bytes than it was given. */
export async function writeFully(file: OpenFile, bytes: Buffer, position: number): Promise<void> {
  let written = 0;
  while (written < bytes.length) {
    const result = await file.write(bytes, written, bytes.length - written, position + written);
    written += result.bytesWritten;
  }
}

/** Makes the names in a folder durable: a renamed or created file may else be gone after a power failure. */
export async function syncFolder(fileSystem: FileSystem, folder: string): Promise<void> {
  const handle = await fileSystem.open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** The `code` of a system error, or undefined. */
export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}
