/** `bindings export`: streams all bindings of a service to a file or to standard output, as fast as that takes them. */
import * as fs from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { FORMAT_OPTION, readFormat } from './bindings-import.ts';
import { chooseService, SERVICE_OPTION, servicePath } from './choose-service.ts';
import { CommandFailure, ReaderGone } from './cli-error.ts';
import type { Command } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { Output } from './output.ts';
import { grouped, PROGRESS_OPTION, Progress } from './progress.ts';

export const bindingsExport: Command = {
  name: 'bindings export',
  summary: 'Write all bindings as CSV or NDJSON, in the form that import reads',
  usage: '[--output FILE] [--format csv|ndjson]',
  options: {
    ...FORMAT_OPTION,
    output: { type: 'string', short: 'o', value: 'FILE', help: 'where to; else standard output' },
    ...PROGRESS_OPTION,
    ...SERVICE_OPTION,
    ...CONNECT_OPTIONS_AND_TOKEN,
  },
  mostWords: 0,
  notes: [
    'FILE appears, or is replaced, when all of it is there: an export that breaks off leaves no half of one.',
    'With --json the format is ndjson unless another one is given.',
  ],
  examples: [
    'sticky-gateway bindings export --output bindings.csv',
    'sticky-gateway bindings export --format ndjson | gzip > bindings.ndjson.gz',
  ],
  run: (invocation) =>
    withClient(invocation, async (client) => {
      const file = invocation.text('output');
      const format = readFormat(invocation, file);
      const service = await chooseService(invocation, client, false);
      // On a terminal the rows themselves are to be seen.
      const progress = new Progress(invocation, 'received', file === undefined && invocation.out.isTerminal);
      const target = file === undefined ? null : await openTarget(file);
      const output = target?.output ?? invocation.out;
      let body: IncomingMessage | null = null;
      try {
        body = await client.download(servicePath(service, 'bindings', 'export'), { format });
        for await (const chunk of body as AsyncIterable<Buffer>) {
          await output.write(chunk);
          progress.take(chunk);
        }
        await target?.keep();
      } catch (error) {
        await target?.drop();
        // The answer's own failure; that of the output tells what it is by itself.
        if (error instanceof ReaderGone || !body?.errored) throw error;
        throw new CommandFailure({
          code: 'broke_off',
          message: `${client.address} broke the export off after ${grouped(progress.rows)} lines: it is not complete`,
          hint: 'the gateway stopped, lost its store, or waited more than a minute for whoever reads this output',
          cause: error,
        });
      } finally {
        body?.destroy();
        progress.end();
      }
      if (file === undefined) return 0;
      const lines = progress.rows;
      if (invocation.json) await invocation.out.line(JSON.stringify({ file, format, lines }));
      // FILE may be stdout by another name.
      else invocation.err.say(`${file}: ${grouped(lines)} lines`);
      return 0;
    }),
};

interface Target {
  readonly output: Output;
  /** All of it is there. */
  keep(): Promise<void>;
  /** It broke off. */
  drop(): Promise<void>;
}

/** A file beside the one that it becomes; but a device or a pipe is written to as it is, and never replaced. */
async function openTarget(file: string): Promise<Target> {
  const found = await fs.promises.stat(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return null;
    throw error;
  });
  const isPlain = found === null || found.isFile();
  // A link stays one.
  const path = found?.isFile() ? await fs.promises.realpath(file) : file;
  const written = isPlain ? `${path}.partial` : path;
  // Who uses a system is nobody else's business.
  const handle = await fs.promises.open(written, 'w', found ? found.mode & 0o777 : 0o600);
  const stream = handle.createWriteStream();
  const output = new Output(stream);
  return {
    output,
    keep: async () => {
      await new Promise<void>((resolve, reject) => {
        stream.end((error?: Error | null) => (error ? reject(stream.errored ?? error) : resolve()));
      });
      if (isPlain) await fs.promises.rename(written, path);
    },
    drop: async () => {
      if (!stream.closed) {
        const closed = new Promise<void>((resolve) => stream.once('close', () => resolve()));
        stream.destroy();
        await closed;
      }
      if (isPlain) await fs.promises.rm(written, { force: true });
    },
  };
}
