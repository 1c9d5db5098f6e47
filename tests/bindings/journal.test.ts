/** The journal's file: what it survives, what it refuses, and who may have it. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { COMPACTION_FILE, JOURNAL_FILE } from '../../lib/bindings/journal-folder.ts';
import { lockName } from '../../lib/bindings/journal-lock.ts';
import { encodeLine, type RegistryDocument } from '../../lib/bindings/journal-record.ts';
import { OperatorError } from '../../lib/errors.ts';
import { type LogFields, type Logger, silentLogger } from '../../lib/observe/log.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { FailingFileSystem, type FileCall, systemError } from '../support/failing-file-system.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';

const options = { clock: systemClock, logger: silentLogger };
const HEADER = '{"format":"sticky-gateway-journal","version":1}\n';

class RecordingLogger implements Logger {
  readonly events: { event: string; fields: LogFields }[] = [];
  debug(): void {
    // Not looked at by these tests.
  }
  info(event: string, fields: LogFields = {}): void {
    this.events.push({ event, fields });
  }
  warn(event: string, fields: LogFields = {}): void {
    this.events.push({ event, fields });
  }
  error(event: string, fields: LogFields = {}): void {
    this.events.push({ event, fields });
  }
  count(event: string): number {
    return this.events.filter((each) => each.event === event).length;
  }
}

/** Opens, runs and closes. */
async function within<T>(folder: string, run: (store: JournalBindings, journal: Journal) => Promise<T>): Promise<T> {
  const journal = await Journal.open(folder, options);
  try {
    return await run(new JournalBindings(journal), journal);
  } finally {
    await journal.stop();
  }
}

function refused(...parts: string[]): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof OperatorError, String(error));
    for (const part of parts) assert.ok(error.message.includes(part), `${error.message} does not name ${part}`);
    return true;
  };
}

async function fill(folder: string, users: number): Promise<void> {
  await within(folder, async (store) => {
    for (let user = 1; user <= users; user += 1) await store.bindIfAbsent('svc', String(user), `u${user}`, 'node-1');
  });
}

async function users(folder: string): Promise<string[]> {
  return within(folder, async (store) => {
    const { bindings } = await store.list('svc', { limit: 1000 });
    return bindings.map((binding) => binding.userId ?? '?');
  });
}

test('makes the folder and its files for nobody else to read, and leaves nothing but the journal', async (t) => {
  const folder = join(await temporaryFolder(t), 'deep', 'data');
  await within(folder, async (store) => {
    await store.bindIfAbsent('svc', '1', 'a', 'node-1');
    const names = (await readdir(folder)).sort();
    assert.deepEqual(names, [JOURNAL_FILE, lockName(process.pid)]);
    for (const name of names) assert.equal((await stat(join(folder, name))).mode & 0o777, 0o600);
  });
  assert.equal((await stat(folder)).mode & 0o777, 0o700);
  assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
});

test('drops a last record torn at any byte, says so, and goes on writing', async (t) => {
  const folder = await temporaryFolder(t);
  await fill(folder, 3);
  const whole = await readFile(join(folder, JOURNAL_FILE));
  const lastStart = whole.lastIndexOf('\n', whole.length - 2) + 1;
  for (let length = lastStart; length < whole.length; length += 1) {
    await writeFile(join(folder, JOURNAL_FILE), whole.subarray(0, length));
    const logger = new RecordingLogger();
    const journal = await Journal.open(folder, { clock: systemClock, logger });
    const store = new JournalBindings(journal);
    assert.equal(await store.findByUserId('svc', '3'), undefined);
    assert.equal((await store.findByUserId('svc', '2'))?.nodeId, 'node-1');
    assert.equal(logger.count('journal_torn_tail_dropped'), length === lastStart ? 0 : 1);
    await store.bindIfAbsent('svc', '4', 'u4', 'node-4');
    await journal.stop();
    assert.deepEqual(await users(folder), ['1', '2', '4']);
  }
});

test('drops a last record with any byte of it changed', async (t) => {
  const folder = await temporaryFolder(t);
  await fill(folder, 2);
  const whole = await readFile(join(folder, JOURNAL_FILE));
  const lastStart = whole.lastIndexOf('\n', whole.length - 2) + 1;
  for (let at = lastStart; at < whole.length; at += 1) {
    const changed = Buffer.from(whole);
    changed[at] = (changed[at] ?? 0) ^ 0x41;
    // A new line in the middle of a line makes two broken ones, which no torn write does.
    if (changed.subarray(0, -1).lastIndexOf('\n') >= lastStart) continue;
    await writeFile(join(folder, JOURNAL_FILE), changed);
    assert.deepEqual(await users(folder), ['1'], `byte ${at}`);
  }
});

test('drops a tail of zeros that a power failure left', async (t) => {
  const folder = await temporaryFolder(t);
  await fill(folder, 2);
  const path = join(folder, JOURNAL_FILE);
  await writeFile(path, Buffer.concat([await readFile(path), Buffer.alloc(3_000_000)]));
  assert.deepEqual(await users(folder), ['1', '2']);
  assert.ok((await stat(path)).size < 1_000);
});

test('refuses a record broken in the middle, with file and line, and leaves the file as it is', async (t) => {
  const folder = await temporaryFolder(t);
  await fill(folder, 4);
  const path = join(folder, JOURNAL_FILE);
  const whole = await readFile(path);
  const damaged = Buffer.from(whole);
  const thirdLine = whole.indexOf('\n', whole.indexOf('\n') + 1) + 1;
  damaged[thirdLine + 20] = 0;
  await writeFile(path, damaged);
  await assert.rejects(Journal.open(folder, options), refused(`${path}:3:`, 'broken', 'backup'));
  assert.deepEqual(await readFile(path), damaged);
  assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
});

test('refuses the journal of a newer version and what is no journal', async (t) => {
  const folder = await temporaryFolder(t);
  const path = join(folder, JOURNAL_FILE);
  const refusals: [content: string, ...parts: string[]][] = [
    [HEADER.replace('1}', '2}'), 'newer version (2)', 'this one reads 1'],
    [HEADER.replace('1}', '0}'), ':1:', 'not a journal'],
    [HEADER.replace('sticky', 'other'), ':1:', 'not a journal'],
    [HEADER.trimEnd(), ':1:', 'not a journal'],
    ['null\n', ':1:', 'not a journal'],
    ['hello\n', ':1:', 'not a journal'],
    ['', ':1:', 'empty'],
  ];
  for (const [content, ...parts] of refusals) {
    await writeFile(path, content);
    await assert.rejects(Journal.open(folder, options), refused(...parts));
    assert.equal(await readFile(path, 'utf8'), content);
  }
});

test('refuses whole records that it cannot read, even at the end', async (t) => {
  const folder = await temporaryFolder(t);
  const path = join(folder, JOURNAL_FILE);
  const records = [
    '["z",1]',
    '5',
    '["b","svc",1.5,"1",null,"n",1,0]',
    '["b","svc",1,1,null,"n",1,0]',
    '["b","svc",1,"1",2,"n",1,0]',
    '["b","svc",1,"1",null,"n",1,true]',
    '["-","svc",1]',
    '["f","svc","1"]',
    '["n",null]',
    '["t","hash","1","soon"]',
    '["x"]',
    '["r",{"fileHash":"h"}]',
    '["r",7]',
    'not json',
  ];
  for (const record of records) {
    await writeFile(path, Buffer.concat([Buffer.from(HEADER), encodeLine([record])]));
    await assert.rejects(Journal.open(folder, options), refused(`${path}:2:`, 'cannot read'), record);
  }
});

test('reads records longer than a read', async (t) => {
  const folder = await temporaryFolder(t);
  const document: RegistryDocument = {
    fileHash: 'x'.repeat(2_500_000),
    definition: { services: [], routes: [] },
  };
  await within(folder, async (store, journal) => {
    await store.bindIfAbsent('svc', '1', null, 'node-1');
    await journal.writeRegistry(document);
    await store.bindIfAbsent('svc', '2', null, 'node-1');
  });
  await within(folder, async (_store, journal) => assert.deepEqual(journal.registry, document));
  assert.deepEqual(await users(folder), ['1', '2']);
});

test('writes registry documents one after the other and takes a failed one back', async (t) => {
  const fileSystem = new FailingFileSystem();
  const journal = await Journal.open(await temporaryFolder(t), { ...options, fileSystem });
  t.after(() => journal.stop());
  const hash = () => journal.registry?.fileHash;
  assert.equal(hash(), undefined);
  const named = (fileHash: string) => ({ fileHash, definition: { services: [], routes: [] } });
  await Promise.all(['a', 'b', 'c'].map((each) => journal.writeRegistry(named(each))));
  assert.equal(hash(), 'c');
  fileSystem.before = failing('datasync', 'EIO');
  await assert.rejects(journal.writeRegistry(named('d')), StoreUnavailable);
  assert.equal(hash(), 'c');
});

test('flushes once for what arrives together', async (t) => {
  const fileSystem = new FailingFileSystem();
  const journal = await Journal.open(await temporaryFolder(t), { ...options, fileSystem });
  t.after(() => journal.stop());
  const store = new JournalBindings(journal);
  let flushes = 0;
  fileSystem.before = (call) => {
    if (call === 'datasync') flushes += 1;
  };
  await Promise.all(Array.from({ length: 500 }, (_, user) => store.bindIfAbsent('svc', `${user}`, null, 'node-1')));
  assert.ok(flushes <= 2, `${flushes} flushes`);
});

for (const code of ['ENOSPC', 'EIO']) {
  for (const call of ['write', 'datasync'] as const) {
    test(`refuses a bind when ${call} fails with ${code}, and binds again once it works`, async (t) => {
      const fileSystem = new FailingFileSystem();
      const logger = new RecordingLogger();
      const folder = await temporaryFolder(t);
      const journal = await Journal.open(folder, { clock: systemClock, logger, fileSystem });
      const store = new JournalBindings(journal);
      await store.bindIfAbsent('svc', '1', 'one', 'node-1');
      // The first write takes 10 bytes and the next one fails: half a line is in the file.
      let writes = 0;
      fileSystem.writeAtMost = call === 'write' ? 10 : Number.POSITIVE_INFINITY;
      fileSystem.before = (each) => {
        if (each === 'write') writes += 1;
        if (each === call && (call === 'datasync' || writes > 1)) throw systemError(code);
      };
      for (const user of ['2', '3']) {
        writes = 0;
        await assert.rejects(
          store.bindIfAbsent('svc', user, `long name of ${user}`, 'node-1'),
          (error: unknown) => error instanceof StoreUnavailable && String(error.cause).includes(code),
        );
      }
      assert.equal(logger.count('journal_write_failed'), 1);
      fileSystem.writeAtMost = Number.POSITIVE_INFINITY;
      fileSystem.before = () => undefined;
      await store.bindIfAbsent('svc', '4', 'x', 'node-1');
      assert.equal(logger.count('journal_recovered'), 1);
      await journal.stop();
      assert.deepEqual(await users(folder), ['1', '4']);
    });
  }
}

test('cuts a failed write off before the next one, even when that failed at first', async (t) => {
  const fileSystem = new FailingFileSystem();
  const logger = new RecordingLogger();
  const folder = await temporaryFolder(t);
  const journal = await Journal.open(folder, { clock: systemClock, logger, fileSystem });
  const store = new JournalBindings(journal);
  fileSystem.before = (call) => {
    if (call === 'datasync' || call === 'truncate') throw systemError('EIO');
  };
  await assert.rejects(store.bindIfAbsent('svc', '1', 'a name that is quite long', 'node-1'), StoreUnavailable);
  assert.equal(logger.count('journal_truncate_failed'), 1);
  await assert.rejects(store.bindIfAbsent('svc', '2', 'b', 'node-1'), StoreUnavailable);
  fileSystem.before = () => undefined;
  await store.bindIfAbsent('svc', '3', 'c', 'node-1');
  await journal.stop();
  assert.deepEqual(await users(folder), ['3']);
});

test('compacts away what no longer counts, by itself, once it is the greater part', async (t) => {
  const folder = await temporaryFolder(t);
  const logger = new RecordingLogger();
  const journal = await Journal.open(folder, { clock: systemClock, logger, compactAboveBytes: 4_000 });
  const store = new JournalBindings(journal);
  for (let step = 0; step < 300; step += 1) await store.move('svc', String(step % 5), `node-${step}`);
  assert.equal(await journal.compact(), true);
  assert.ok(logger.count('journal_compacted') > 1);
  assert.ok(journal.figures.bytes < 1_000 && journal.figures.operations < 20, JSON.stringify(journal.figures));
  assert.equal((await stat(join(folder, JOURNAL_FILE))).size, journal.figures.bytes);
  await journal.stop();
  await within(folder, async (again) => {
    assert.deepEqual(await again.findByUserId('svc', '4'), {
      serviceId: 'svc',
      userId: '4',
      username: null,
      nodeId: 'node-299',
      epoch: 60,
      frozen: false,
    });
  });
});

test('compacts at the start what an earlier run left', async (t) => {
  const folder = await temporaryFolder(t);
  await within(folder, async (store) => {
    for (let step = 0; step < 100; step += 1) await store.move('svc', '1', `node-${step}`);
  });
  const journal = await Journal.open(folder, { ...options, compactAboveBytes: 1_000 });
  assert.equal(await journal.compact(), true);
  assert.equal(journal.figures.operations, 2);
  await journal.stop();
});

test('loses no write that is made while it compacts', async (t) => {
  const folder = await temporaryFolder(t);
  const journal = await Journal.open(folder, options);
  const store = new JournalBindings(journal);
  await store.insertAbsent(
    'svc',
    Array.from({ length: 5_000 }, (_, user) => ({
      userId: `old-${user}`,
      username: `name-${user}`,
      nodeId: 'node-1',
    })),
  );
  let compacting = true;
  const compactions = (async () => {
    for (let round = 0; round < 10; round += 1) assert.equal(await journal.compact(), true);
    compacting = false;
  })();
  const expected = new Map<string, string | undefined>();
  await Promise.all(
    [0, 1, 2, 3].map(async (lane) => {
      for (let step = 0; compacting; step += 1) {
        const moved = `old-${(step * 37 + lane) % 5_000}`;
        const node = `node-${lane}-${step}`;
        // Names go back and forth between users while both are copied.
        if (step % 3 === 0) await store.bindIfAbsent('svc', moved, `name-${(step * 11 + lane) % 5_000}`, node);
        else if (step % 3 === 1) expected.set(moved, (await store.move('svc', moved, node)).nodeId);
        else {
          await store.remove('svc', `old-${4_999 - ((step * 4 + lane) % 2_000)}`);
          await store.bindIfAbsent('svc', `new-${lane}-${step}`, `new-${lane}-${step}`, node);
        }
      }
    }),
  );
  await compactions;
  const before = await everything(store);
  assert.ok(expected.size > 10, `only ${expected.size} moves`);
  await journal.stop();
  await within(folder, async (again) => {
    assert.deepEqual(await everything(again), before);
    for (const binding of before) {
      if (binding.username !== null) assert.deepEqual(await again.findByUsername('svc', binding.username), binding);
      assert.deepEqual(await again.findByUserId('svc', binding.userId ?? ''), binding);
    }
  });
});

async function everything(store: JournalBindings) {
  const all = [];
  for (let after: string | undefined = '0'; after !== undefined; ) {
    const page: Awaited<ReturnType<JournalBindings['list']>> = await store.list('svc', {
      limit: 1000,
      after,
    });
    all.push(...page.bindings);
    after = page.next ?? undefined;
  }
  return all;
}

test('shares one compaction between two callers and refuses one when it is closed', async (t) => {
  const folder = await temporaryFolder(t);
  const logger = new RecordingLogger();
  const journal = await Journal.open(folder, { clock: systemClock, logger });
  assert.deepEqual(await Promise.all([journal.compact(), journal.compact()]), [true, true]);
  assert.equal(logger.count('journal_compacted'), 1);
  await journal.stop();
  assert.equal(await journal.compact(), false);
});

test('gives a compaction up when it is closed and leaves the old file', async (t) => {
  const folder = await temporaryFolder(t);
  const journal = await Journal.open(folder, options);
  const store = new JournalBindings(journal);
  await store.bindIfAbsent('svc', '1', null, 'node-1');
  const compaction = journal.compact();
  await journal.stop();
  assert.equal(await compaction, false);
  assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
  assert.deepEqual(await users(folder), ['1']);
});

const compactionFailures: [FileCall, string][] = [
  ['open', COMPACTION_FILE],
  ['write', COMPACTION_FILE],
  ['datasync', COMPACTION_FILE],
  ['rename', COMPACTION_FILE],
];
for (const [call, file] of compactionFailures) {
  test(`keeps the old file when ${call} fails in a compaction`, async (t) => {
    const fileSystem = new FailingFileSystem();
    const logger = new RecordingLogger();
    const folder = await temporaryFolder(t);
    await fill(folder, 1);
    const journal = await Journal.open(folder, { clock: systemClock, logger, fileSystem });
    const store = new JournalBindings(journal);
    fileSystem.before = (each, path) => {
      if (each === call && path.endsWith(file)) throw systemError('ENOSPC');
    };
    assert.equal(await journal.compact(), false);
    assert.equal(logger.count('journal_compaction_failed'), 1);
    await store.bindIfAbsent('svc', '2', null, 'node-1');
    fileSystem.before = () => undefined;
    assert.equal(await journal.compact(), true);
    await store.bindIfAbsent('svc', '3', null, 'node-1');
    await journal.stop();
    assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
    assert.deepEqual(await users(folder), ['1', '2', '3']);
  });
}

test('gives a compaction up when a write fails that it may have copied', async (t) => {
  const fileSystem = new FailingFileSystem();
  const logger = new RecordingLogger();
  const folder = await temporaryFolder(t);
  await fill(folder, 1);
  const journal = await Journal.open(folder, { clock: systemClock, logger, fileSystem });
  const store = new JournalBindings(journal);
  fileSystem.before = (call, path) => {
    if (call === 'write' && path.endsWith(JOURNAL_FILE)) throw systemError('EIO');
    // What cannot be cleaned up either is left to the next start.
    if (call === 'unlink' && path.endsWith(COMPACTION_FILE)) throw systemError('EIO');
  };
  const compaction = journal.compact();
  const refusal = assert.rejects(store.bindIfAbsent('svc', '2', null, 'node-1'), StoreUnavailable);
  assert.equal(await compaction, false);
  await refusal;
  assert.equal(logger.count('journal_temporary_left'), 1);
  fileSystem.before = () => undefined;
  await journal.stop();
  assert.deepEqual((await readdir(folder)).sort(), [JOURNAL_FILE, COMPACTION_FILE]);
  assert.deepEqual(await users(folder), ['1']);
  assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
});

test('does not put a compacted file in force while a write that it copied may still fail', async (t) => {
  const fileSystem = new FailingFileSystem();
  const folder = await temporaryFolder(t);
  await fill(folder, 1);
  const journal = await Journal.open(folder, { ...options, fileSystem });
  const store = new JournalBindings(journal);
  let letFirstThrough: () => void = () => undefined;
  const disk = new Promise<void>((resolve) => {
    letFirstThrough = resolve;
  });
  let copied = false;
  fileSystem.before = async (call, path) => {
    if (call !== 'datasync') return;
    if (path.endsWith(COMPACTION_FILE)) copied = true;
    else await disk;
  };
  const first = store.bindIfAbsent('svc', '2', null, 'node-1');
  await until(() => journal.isPending('i:svc:2'));
  await new Promise((resolve) => setImmediate(resolve));
  const second = assert.rejects(store.bindIfAbsent('svc', '3', null, 'node-1'), StoreUnavailable);
  const compaction = journal.compact();
  await until(() => copied);
  await new Promise((resolve) => setTimeout(resolve, 20));
  // The second bind fails, into whichever file it is written; a swap before it may add the first one to the copy.
  let added = 0;
  fileSystem.before = (call, path) => {
    if (call !== 'write') return;
    if (path.endsWith(COMPACTION_FILE)) added += 1;
    if (path.endsWith(JOURNAL_FILE) || added > 1) throw systemError('ENOSPC');
  };
  letFirstThrough();
  await first;
  await second;
  assert.equal(await compaction, false);
  fileSystem.before = () => undefined;
  await journal.stop();
  assert.deepEqual(await users(folder), ['1', '2']);
});

test('acknowledges nothing after a rename until the folder is on disk', async (t) => {
  const fileSystem = new FailingFileSystem();
  const logger = new RecordingLogger();
  const folder = await temporaryFolder(t);
  const journal = await Journal.open(folder, { clock: systemClock, logger, fileSystem });
  const store = new JournalBindings(journal);
  fileSystem.before = failing('sync', 'EIO');
  assert.equal(await journal.compact(), true);
  assert.equal(logger.count('journal_folder_sync_failed'), 1);
  await assert.rejects(store.bindIfAbsent('svc', '1', null, 'node-1'), StoreUnavailable);
  fileSystem.before = () => undefined;
  await store.bindIfAbsent('svc', '2', null, 'node-1');
  await journal.stop();
  assert.deepEqual(await users(folder), ['2']);
});

test('reads the journal that a kill between any two steps of a compaction leaves', async (t) => {
  const folder = await temporaryFolder(t);
  await fill(folder, 3);
  const whole = await readFile(join(folder, JOURNAL_FILE));
  for (const left of [Buffer.alloc(0), whole.subarray(0, 60), whole]) {
    await writeFile(join(folder, COMPACTION_FILE), left);
    assert.deepEqual(await users(folder), ['1', '2', '3']);
    assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
  }
});

const openFailures: [FileCall, string, ...string[]][] = [
  ['mkdir', 'EACCES', 'right to read and write'],
  ['open', 'EACCES', 'right to read and write'],
  ['open', 'EROFS', 'read-only'],
  ['open', 'ENOSPC', 'make room'],
  ['readdir', 'EIO', 'look at the disk'],
  ['unlink', 'EPERM', 'right to read and write'],
  ['write', 'ENOSPC', 'make room'],
  ['read', 'EIO', 'look at the disk'],
  ['datasync', 'EIO', 'look at the disk'],
  ['rename', 'EDQUOT', 'make room'],
  ['sync', 'EIO', 'look at the disk'],
];
for (const [call, code, fix] of openFailures) {
  test(`refuses to start with path and remedy when ${call} fails with ${code}`, async (t) => {
    const folder = await temporaryFolder(t);
    const fileSystem = new FailingFileSystem();
    fileSystem.before = failing(call, code, call === 'unlink' ? COMPACTION_FILE : '');
    await assert.rejects(
      Journal.open(folder, { ...options, fileSystem }),
      refused(folder, code, fix ?? '', 'store.dataDir'),
    );
    await fill(folder, 1);
    fileSystem.before = failing(call, code, call === 'unlink' ? COMPACTION_FILE : '');
    // Nothing is written to a journal that is there and sound.
    if (call === 'write' || call === 'rename') return;
    await assert.rejects(Journal.open(folder, { ...options, fileSystem }), refused(folder, code));
    assert.deepEqual(await users(folder), ['1']);
  });
}

test('refuses a path that is no folder, and one where none can be made', async (t) => {
  const folder = await temporaryFolder(t);
  const file = join(folder, 'file');
  await writeFile(file, '');
  await assert.rejects(Journal.open(file, options), refused(file, 'must be a folder'));
  await assert.rejects(Journal.open(join(file, 'below'), options), refused(file, 'must be a folder'));
  await symlink(join(folder, 'nowhere', 'else'), join(folder, 'dangling'));
  await assert.rejects(Journal.open(join(folder, 'dangling'), options), refused('dangling'));
});

test('refuses a journal that another process has, by its pid', async (t) => {
  const folder = await temporaryFolder(t);
  const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000); console.log("up")'], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  const pid = child.pid ?? 0;
  await writeFile(join(folder, lockName(pid)), '');
  await assert.rejects(Journal.open(folder, options), refused(folder, `process ${pid}`));
  assert.deepEqual(await readdir(folder), [lockName(pid)]);
  const lock = lockName(pid);
  child.kill('SIGKILL');
  await once(child, 'close');
  await fill(folder, 1);
  assert.ok(!(await readdir(folder)).includes(lock));
});

test('refuses a journal that this process has already', async (t) => {
  const folder = await temporaryFolder(t);
  await within(folder, () => assert.rejects(Journal.open(folder, options), refused(folder, `process ${process.pid}`)));
  await fill(folder, 1);
});

test('takes over the locks of reused pids and of before a restart of the machine', async (t) => {
  const folder = await temporaryFolder(t);
  const [, , pid = '', , boot = ''] = lockName(process.ppid).split('.');
  const stale = [`gateway.lock.${pid}.1.${boot}`, `gateway.lock.${pid}.${'9'.repeat(7)}.deadbeef`];
  for (const name of stale) await writeFile(join(folder, name), '');
  await fill(folder, 1);
  assert.deepEqual(await readdir(folder), [JOURNAL_FILE]);
});

test('judges a lock without a start time by whether the process lives', async (t) => {
  const folder = await temporaryFolder(t);
  const boot = lockName(process.pid).split('.').at(-1) ?? '';
  await writeFile(join(folder, `gateway.lock.${process.ppid}.0.${boot}`), '');
  await assert.rejects(Journal.open(folder, options), refused(`process ${process.ppid}`));
  const ended = spawn(process.execPath, ['-e', '']);
  await once(ended, 'close');
  const other = await temporaryFolder(t);
  await writeFile(join(other, `gateway.lock.${ended.pid}.0.${boot}`), '');
  await fill(other, 1);
  assert.deepEqual(await readdir(other), [JOURNAL_FILE]);
});

test('minds no file in the folder that is not its own', async (t) => {
  const folder = await temporaryFolder(t);
  await mkdir(join(folder, 'backup'));
  await writeFile(join(folder, 'gateway.lock.old'), '');
  await fill(folder, 1);
  assert.deepEqual((await readdir(folder)).sort(), ['backup', JOURNAL_FILE, 'gateway.lock.old']);
});

test('lets exactly one of several processes in that start together over a stale lock', {
  timeout: 60_000,
}, async (t) => {
  const folder = await temporaryFolder(t);
  const extension = import.meta.url.endsWith('.ts') ? 'ts' : 'js';
  const lockModule = new URL(`../../lib/bindings/journal-lock.${extension}`, import.meta.url).href;
  const diskModule = new URL(`../../lib/support/durable-file.${extension}`, import.meta.url).href;
  const script = `
    const { lockFolder } = await import(${JSON.stringify(lockModule)});
    const { nodeFileSystem } = await import(${JSON.stringify(diskModule)});
    process.stdout.write('ready ');
    await new Promise((resolve) => process.stdin.once('data', resolve));
    const outcome = await lockFolder(${JSON.stringify(folder)}, nodeFileSystem).then(() => 'in', () => 'out');
    process.stdout.write(outcome);
    if (outcome === 'in') await new Promise((resolve) => process.stdin.once('data', resolve));
    process.exit();
  `;
  for (let round = 0; round < 5; round += 1) {
    // The winner of the round before was killed and left its lock.
    const starters = Array.from({ length: 4 }, () => {
      const loader = extension === 'ts' ? ['--import', 'tsx'] : [];
      const child = spawn(process.execPath, [...loader, '--input-type=module', '-e', script], {
        stdio: ['pipe', 'pipe', 'inherit'],
      });
      return { child, output: '' };
    });
    for (const starter of starters) starter.child.stdout.on('data', (text) => (starter.output += text));
    await until(() => starters.every(({ output }) => output.startsWith('ready')));
    for (const { child } of starters) child.stdin.write('go');
    await until(() => starters.every(({ output }) => /in|out/.test(output)));
    const inside = starters.filter(({ output }) => output.endsWith('in'));
    const closed = starters.map(({ child }) => (child.exitCode === null ? once(child, 'close') : null));
    for (const { child } of inside) child.kill('SIGKILL');
    await Promise.all(closed);
    assert.equal(inside.length, 1, starters.map(({ output }) => output).join(', '));
    assert.equal((await readdir(folder)).length, 1);
  }
});

test('closes all the same when the lock cannot be removed', async (t) => {
  const fileSystem = new FailingFileSystem();
  const logger = new RecordingLogger();
  const journal = await Journal.open(await temporaryFolder(t), { clock: systemClock, logger, fileSystem });
  fileSystem.before = failing('unlink', 'EIO');
  await journal.stop();
  assert.equal(logger.count('journal_lock_left'), 1);
});

test('leaves a stale lock to the starter that was faster', async (t) => {
  const folder = await temporaryFolder(t);
  const stale = 'gateway.lock.1.1.deadbeef';
  await writeFile(join(folder, stale), '');
  const fileSystem = new FailingFileSystem();
  fileSystem.before = (call, path) => {
    if (call === 'unlink' && path.endsWith(stale)) throw systemError('ENOENT');
  };
  const journal = await Journal.open(folder, { ...options, fileSystem });
  await journal.stop();
  fileSystem.before = (call, path) => {
    if (call === 'unlink' && path.endsWith(stale)) throw systemError('EIO');
  };
  await assert.rejects(Journal.open(folder, { ...options, fileSystem }), refused(folder, 'EIO'));
});

function failing(call: FileCall, code: string, file = ''): (each: FileCall, path: string) => void {
  return (each, path) => {
    if (each === call && path.endsWith(file)) throw systemError(code);
  };
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}
