/** `bindings import`: streams a file of bindings into a service, all of it or nothing. The gateway reads and checks it. */
import * as fs from 'node:fs';
import { type Readable, Transform } from 'node:stream';
import { WRITE_OPTIONS } from './bindings-set.ts';
import { chooseService, SERVICE_OPTION, servicePath } from './choose-service.ts';
import { CommandFailure, UsageError } from './cli-error.ts';
import { type Command, type CommandOptions, type Invocation, show } from './command.ts';
import { CONNECT_OPTIONS_AND_TOKEN, withClient } from './connect.ts';
import { grouped, PROGRESS_OPTION, Progress } from './progress.ts';

export type FileFormat = 'csv' | 'ndjson';

export const FORMAT_OPTION: CommandOptions = {
  format: { type: 'string', short: 'f', value: 'csv|ndjson', help: "else by the file's name, else csv" },
};

const MEDIA_TYPES: Readonly<Record<FileFormat, string>> = { csv: 'text/csv', ndjson: 'application/x-ndjson' };

export const bindingsImport: Command = {
  name: 'bindings import',
  summary: 'Bind the users of a file who are not bound yet',
  usage: '(FILE | -) [--node NODE] [--dry-run]',
  options: {
    ...FORMAT_OPTION,
    node: {
      type: 'string',
      short: 'n',
      value: 'NODE',
      help: "for rows without a node; else the service's default node",
    },
    ...WRITE_OPTIONS,
    ...PROGRESS_OPTION,
    ...SERVICE_OPTION,
    ...CONNECT_OPTIONS_AND_TOKEN,
  },
  mostWords: 1,
  notes: [
    'CSV: user_id,username[,node_id], or columns in the order of a first line that names them.',
    'NDJSON: {"userId","username","nodeId"} a line. - reads standard input.',
    'All of the file or nothing. Users who are bound already keep their node, so it may be repeated.',
    'Faults are told as FILE:LINE: what is wrong; exit code 1.',
  ],
  examples: [
    'sticky-gateway bindings import users.csv --dry-run',
    'sticky-gateway bindings import users.csv --node node-1 --reason "take-over"',
    "psql -c 'COPY (SELECT user_id, user_name FROM sys_user) TO STDOUT CSV' | sticky-gateway bindings import - --node node-1",
  ],
  run: (invocation) => {
    const [file] = invocation.words;
    if (file === undefined) throw new UsageError('which file? Give FILE, or - for standard input', invocation.command);
    const format = readFormat(invocation, file);
    return withClient(invocation, async (client) => {
      const source = file === '-' ? invocation.stdin : await openFile(file);
      const progress = new Progress(invocation, 'sent');
      // From the first moment on: it may break while the service is looked up.
      const counted = count(source, progress);
      const { text, flag } = invocation;
      const query = { dryRun: flag('dry-run') ? '1' : undefined, nodeId: text('node'), reason: text('reason') };
      try {
        const service = await chooseService(invocation, client);
        const path = servicePath(service, 'bindings', 'import');
        const body = await client.upload(path, query, MEDIA_TYPES[format], counted);
        progress.end();
        await show(invocation, body, () => [tell(body, service.id)]);
        return 0;
      } catch (error) {
        progress.end();
        throw withLines(error, file === '-' ? 'stdin' : file);
      } finally {
        source.destroy();
      }
    });
  },
};

export function readFormat({ text, json, command }: Invocation, file: string | undefined): FileFormat {
  const format = text('format');
  if (format === 'csv' || format === 'ndjson') return format;
  if (format !== undefined) throw new UsageError(`--format must be csv or ndjson, not '${format}'`, command);
  if (file !== undefined && /\.(ndjson|jsonl)$/i.test(file)) return 'ndjson';
  return json && file === undefined ? 'ndjson' : 'csv';
}

/** Rejects before anything is sent for a file that is not there. */
async function openFile(file: string): Promise<Readable> {
  try {
    const handle = await fs.promises.open(file);
    if ((await handle.stat()).isDirectory()) {
      await handle.close();
      throw Object.assign(new Error('it is a folder'), { code: 'EISDIR' });
    }
    return handle.createReadStream();
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why = code === 'ENOENT' ? 'there is no such file' : code === 'EACCES' ? 'this user may not read it' : message;
    throw new CommandFailure({ code: 'file_unreadable', message: `${file}: ${why}`, cause: error });
  }
}

function count(source: Readable, progress: Progress): Readable {
  const counter = new Transform({
    transform: (chunk: Buffer, _encoding, done) => {
      progress.take(chunk);
      done(null, chunk);
    },
  });
  // A plain pipe would leave the counter open for ever, and pipeline() would end stdin's errors in two places.
  source.on('error', (error) => counter.destroy(error));
  counter.on('close', () => source.unpipe(counter));
  // Kept for the upload, which asks whether there was one.
  counter.on('error', () => undefined);
  return source.pipe(counter);
}

function tell(body: Readonly<Record<string, unknown>>, service: string): string {
  const [rows, inserted, unchanged] = ['rows', 'inserted', 'unchanged'].map((key) => grouped(Number(body[key])));
  const would = body['dryRun'] === true ? 'would be ' : '';
  return `${rows} rows: ${inserted} ${would}bound in service ${service}, ${unchanged} bound already and left alone${would ? ' (dry run)' : ''}`;
}

/** Faults in the form of compilers. */
function withLines(error: unknown, file: string): unknown {
  if (!(error instanceof CommandFailure) || error.code !== 'import_refused') return error;
  const faults = (error.details['errors'] ?? []) as readonly { line: number; message: string }[];
  const total = Number(error.details['errorCount'] ?? faults.length);
  const hidden = total - faults.length;
  return new CommandFailure({
    code: error.code,
    message: `${grouped(total)} ${total === 1 ? 'fault' : 'faults'} in ${file}, nothing was imported`,
    lines: [
      ...faults.map(({ line, message }) => `${file}:${line}: ${message}`),
      ...(hidden > 0 ? [`… and ${grouped(hidden)} more`] : []),
    ],
    details: error.details,
  });
}
