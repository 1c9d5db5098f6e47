/** Standard output and error of a command: writes wait for a slow reader and notice one that has left. */
import type { Writable } from 'node:stream';
import { ReaderGone } from './cli-error.ts';

export class Output {
  readonly stream: Writable & { readonly isTTY?: boolean };
  #failure: Error | undefined;
  #waiting: (() => void)[] = [];

  constructor(stream: Writable & { readonly isTTY?: boolean }) {
    this.stream = stream;
    stream.on('drain', () => this.#wake());
    stream.on('close', () => {
      this.#failure ??= new ReaderGone('the output is closed');
      this.#wake();
    });
    stream.on('error', (error: NodeJS.ErrnoException) => {
      this.#failure = error.code === 'EPIPE' ? new ReaderGone('the output is closed', { cause: error }) : error;
      this.#wake();
    });
  }

  get isTerminal(): boolean {
    return this.stream.isTTY === true;
  }

  /** Resolves when there is room for more. Rejects with ReaderGone, or with what else is wrong with the output. */
  async write(chunk: string | Uint8Array): Promise<void> {
    this.#throwFailure();
    if (!this.stream.write(chunk)) {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
      });
    }
    this.#throwFailure();
  }

  line(text = ''): Promise<void> {
    return this.write(`${text}\n`);
  }

  /** For what nobody has to read: work under way must not end because they do not. */
  say(text: string): void {
    if (!this.#failure) this.stream.write(`${text}\n`);
  }

  /** Resolves when all of it has gone out, or never will. */
  async flush(): Promise<void> {
    if (this.#failure || this.stream.writableLength === 0) return;
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      this.stream.write('', () => resolve());
    });
  }

  #throwFailure(): void {
    if (this.#failure) throw this.#failure;
  }

  #wake(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}
