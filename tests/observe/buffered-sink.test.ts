import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import fsModule, * as fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import * as os from 'node:os';
import * as path from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { BufferedSink } from '../../lib/observe/buffered-sink.ts';
import { FakeClock } from '../support/fake-clock.ts';

describe('BufferedSink', () => {
  let folder: string;
  let file: string;
  let descriptor: number;
  let clock: FakeClock;
  let sink: BufferedSink;

  beforeEach(() => {
    folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sink-'));
    file = path.join(folder, 'log');
    descriptor = fs.openSync(file, 'w');
    clock = new FakeClock();
    sink = new BufferedSink(descriptor, clock);
  });

  afterEach(() => {
    fs.closeSync(descriptor);
    fs.rmSync(folder, { recursive: true, force: true });
  });

  const written = () => fs.readFileSync(file, 'utf8');

  it('gathers lines for 20 ms and writes them in their order', () => {
    sink.write('one\n');
    clock.advance(10);
    sink.write('two\n');
    clock.advance(9);
    assert.equal(written(), '');
    clock.advance(1);
    assert.equal(written(), 'one\ntwo\n');
    assert.equal(clock.pending, 0);
    sink.write('three\n');
    assert.equal(clock.pending, 1);
    clock.advance(20);
    assert.equal(written(), 'one\ntwo\nthree\n');
  });

  it('writes at once what is more than 64 KB, and keeps no timer for it', () => {
    sink.write('begin\n');
    const line = `${'x'.repeat(65_536)}\n`;
    sink.write(line);
    assert.equal(written(), `begin\n${line}`);
    assert.equal(clock.pending, 0);
    sink.write('end\n');
    clock.advance(20);
    assert.equal(written(), `begin\n${line}end\n`);
  });

  it('writes what is pending on request, and nothing twice', () => {
    sink.flush();
    sink.write('ä 张\n');
    sink.flush();
    sink.flush();
    clock.advance(20);
    assert.equal(written(), 'ä 张\n');
    assert.equal(sink.lost, 0);
  });

  it('counts the lines it cannot write, and goes on', () => {
    const readOnly = fs.openSync(file, 'r');
    const failing = new BufferedSink(readOnly, clock);
    failing.write('one\n');
    failing.write('two\n');
    failing.flush();
    assert.equal(failing.lost, 2);
    failing.write('three\n');
    clock.advance(20);
    assert.equal(failing.lost, 3);
    fs.closeSync(readOnly);
    assert.equal(written(), '');
  });

  it('writes whole lines, no more at a time than a pipe takes in one piece', (t) => {
    const pieces: string[] = [];
    const { mock } = t.mock.method(fsModule, 'writeSync', (_descriptor: number, bytes: Buffer) => {
      pieces.push(bytes.toString());
      return bytes.length;
    });
    syncBuiltinESMExports();
    t.after(() => {
      mock.restore();
      syncBuiltinESMExports();
    });
    const shared = new BufferedSink(-1, clock, 100);
    const lines = [30, 30, 30, 30, 250, 99, 1, 100].map((length) => `${'x'.repeat(length - 1)}\n`);
    for (const line of lines) shared.write(line);
    shared.flush();
    assert.deepEqual(
      pieces.map((piece) => piece.length),
      [90, 30, 250, 100, 100],
    );
    assert.equal(pieces.join(''), lines.join(''));
    pieces.length = 0;
    shared.write('x'.repeat(200));
    shared.flush();
    assert.deepEqual(pieces, ['x'.repeat(200)]);
  });

  it('waits for the slow reader of a pipe instead of losing lines', async () => {
    const { writeEnd, read } = await openPipe(folder, 'sleep 0.05');
    const slow = new BufferedSink(writeEnd, clock);
    // More than a pipe holds: the rest has to wait for the reader.
    const lines = Array.from({ length: 3_000 }, (_, index) => `${index} ${'x'.repeat(60)}\n`);
    for (const line of lines) slow.write(line);
    slow.flush();
    fs.closeSync(writeEnd);
    assert.equal(await read, lines.join(''));
    assert.equal(slow.lost, 0);
  });

  it('does not wait for ever for a reader that never reads', async () => {
    const { writeEnd, read, begin } = await openPipe(folder, 'head -c 1');
    const stuck = new BufferedSink(writeEnd, clock);
    const line = `${'x'.repeat(199)}\n`;
    for (let count = 0; count < 1_000; count += 1) stuck.write(line);
    stuck.flush();
    fs.closeSync(writeEnd);
    begin();
    const received = await read;
    assert.ok(stuck.lost > 0 && stuck.lost < 1_000);
    assert.ok(Math.abs(1_000 - stuck.lost - received.length / line.length) < 3, 'every line is counted once');
  });
});

interface Pipe {
  readonly writeEnd: number;
  readonly read: Promise<string>;
  /** Lets a reader begin that waits for a byte. */
  begin(): void;
}

/** A pipe whose write end does not block, with a reader that begins to read when the command `first` is over. */
async function openPipe(folder: string, first: string): Promise<Pipe> {
  const pipe = path.join(folder, 'pipe');
  await promisify(execFile)('mkfifo', [pipe]);
  const reader = spawn('sh', ['-c', `exec 3<'${pipe}'; ${first} >&2; exec cat <&3`], {
    stdio: ['pipe', 'pipe', 'ignore'],
  });
  const chunks: Buffer[] = [];
  reader.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));
  const read = new Promise<string>((resolve, reject) => {
    reader.once('error', reject);
    reader.once('close', () => resolve(Buffer.concat(chunks).toString()));
  });
  return { writeEnd: await openWriteEnd(pipe), read, begin: () => void reader.stdin.end('.') };
}

/** Without a reader, opening for writing fails with ENXIO instead of waiting. */
async function openWriteEnd(pipe: string): Promise<number> {
  for (;;) {
    try {
      return fs.openSync(pipe, fs.constants.O_WRONLY | fs.constants.O_NONBLOCK);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENXIO') throw error;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}
