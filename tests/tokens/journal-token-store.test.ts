/** Tokens in the embedded store: found until they expire, durable, and never on disk as they are. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Journal } from '../../lib/bindings/journal.ts';
import { JOURNAL_FILE } from '../../lib/bindings/journal-folder.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { JournalTokenStore } from '../../lib/tokens/journal-token-store.ts';
import { FailingFileSystem, systemError } from '../support/failing-file-system.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';

async function open(t: TestContext) {
  const folder = await temporaryFolder(t);
  const clock = new FakeClock();
  const fileSystem = new FailingFileSystem();
  const start = async () => {
    const journal = await Journal.open(folder, { clock, logger: silentLogger, fileSystem });
    return { journal, store: new JournalTokenStore({ journal, clock }) };
  };
  return { folder, clock, fileSystem, start };
}

test('finds a token in its realm until it expires', async (t) => {
  const { clock, start } = await open(t);
  const { journal, store } = await start();
  t.after(() => journal.stop());
  assert.equal(store.name, 'journal');
  await store.save('svc', 'secret', '1790000000000000001', 10_000);
  assert.equal(await store.find('svc', 'secret'), '1790000000000000001');
  assert.equal(await store.find('other', 'secret'), undefined);
  assert.equal(await store.find('svc', 'secret2'), undefined);
  clock.advance(9_999);
  assert.equal(await store.find('svc', 'secret'), '1790000000000000001');
  clock.advance(1);
  assert.equal(await store.find('svc', 'secret'), undefined);
});

test('gives a token saved again its new user and expiry', async (t) => {
  const { clock, start } = await open(t);
  const { journal, store } = await start();
  t.after(() => journal.stop());
  await Promise.all([store.save('svc', 'a', '1', 1_000), store.save('svc', 'a', '2', 5_000)]);
  assert.equal(await store.find('svc', 'a'), '2');
  clock.advance(2_000);
  assert.equal(await store.find('svc', 'a'), '2');
});

test('forgets a removed token, and minds none that is not there', async (t) => {
  const { start } = await open(t);
  const { journal, store } = await start();
  t.after(() => journal.stop());
  await store.save('svc', 'a', '1', 1_000);
  await Promise.all([store.remove('svc', 'a'), store.remove('svc', 'a'), store.remove('svc', 'b')]);
  assert.equal(await store.find('svc', 'a'), undefined);
});

test('keeps tokens through a restart and a compaction, without those that expired meanwhile', async (t) => {
  const { folder, clock, start } = await open(t);
  let { journal, store } = await start();
  await store.save('svc', 'short', '1', 1_000);
  await store.save('svc', 'long', '2', 60_000);
  await store.save('svc', 'renewed', '3', 60_000);
  await store.save('svc', 'renewed', '3', 500);
  await store.save('svc', 'removed', '4', 60_000);
  await store.remove('svc', 'removed');
  clock.advance(2_000);
  for (const compact of [true, false]) {
    if (compact) assert.equal(await journal.compact(), true);
    await journal.stop();
    ({ journal, store } = await start());
    assert.equal(await store.find('svc', 'long'), '2');
    for (const gone of ['short', 'renewed', 'removed']) assert.equal(await store.find('svc', gone), undefined);
    assert.equal(journal.tokens.size, 1);
  }
  await journal.stop();
  assert.doesNotMatch(await readFile(join(folder, JOURNAL_FILE), 'latin1'), /"3"|"4"/);
});

test('reads no expired token back from a journal that was not compacted', async (t) => {
  const { clock, start } = await open(t);
  const first = await start();
  await first.store.save('svc', 'a', '1', 60_000);
  await first.store.save('svc', 'a', '2', 1_000);
  await first.journal.stop();
  clock.advance(5_000);
  const second = await start();
  t.after(() => second.journal.stop());
  // The later, expired value took the earlier one with it.
  assert.equal(await second.store.find('svc', 'a'), undefined);
  assert.equal(second.journal.tokens.size, 0);
});

test('compacts many tokens', async (t) => {
  const { start } = await open(t);
  const first = await start();
  await Promise.all(
    Array.from({ length: 2_500 }, (_, index) => first.store.save('svc', `t${index}`, `${index}`, 60_000)),
  );
  assert.equal(await first.journal.compact(), true);
  await first.journal.stop();
  const second = await start();
  t.after(() => second.journal.stop());
  for (let index = 0; index < 2_500; index += 1) assert.equal(await second.store.find('svc', `t${index}`), `${index}`);
});

test('writes no token to disk', async (t) => {
  const { folder, start } = await open(t);
  const { journal, store } = await start();
  await store.save('svc', 'a-very-secret-token', '1', 60_000);
  await journal.compact();
  await journal.stop();
  const content = await readFile(join(folder, JOURNAL_FILE), 'latin1');
  assert.match(content, /"t",/);
  assert.doesNotMatch(content, /secret/);
});

test('does not show a token before it is on disk, and takes back one that could not be written', async (t) => {
  const { fileSystem, start } = await open(t);
  const { journal, store } = await start();
  t.after(() => journal.stop());
  await store.save('svc', 'a', '1', 60_000);
  fileSystem.before = async (call) => {
    if (call !== 'datasync') return;
    await new Promise((resolve) => setImmediate(resolve));
    throw systemError('EIO');
  };
  const changes = [store.save('svc', 'a', '2', 60_000), store.save('svc', 'a', '3', 60_000), store.remove('svc', 'a')];
  const found = store.find('svc', 'a');
  for (const change of changes) await assert.rejects(change, StoreUnavailable);
  assert.equal(await found, '1');
  await assert.rejects(store.save('svc', 'new', '9', 60_000), StoreUnavailable);
  assert.equal(await store.find('svc', 'new'), undefined);
  await assert.rejects(store.remove('svc', 'a'), StoreUnavailable);
  assert.equal(await store.find('svc', 'a'), '1');
});

test('forgets expired tokens a few at a time, until it is stopped', async (t) => {
  const { clock, start } = await open(t);
  const { journal, store } = await start();
  t.after(() => journal.stop());
  const saves: Promise<void>[] = [];
  for (let index = 0; index < 5_000; index += 1) saves.push(store.save('svc', `t${index}`, '1', 500));
  saves.push(store.save('svc', 'lasting', '2', 600_000));
  await Promise.all(saves);
  store.start();
  store.start();
  assert.equal(clock.pending, 1);
  clock.advance(1_000);
  assert.equal(journal.tokens.size, 3_001);
  clock.advance(1_000);
  assert.equal(journal.tokens.size, 1_001);
  clock.advance(2_000);
  assert.equal(journal.tokens.size, 1);
  assert.equal(await store.find('svc', 'lasting'), '2');
  store.stop();
  store.stop();
  assert.equal(clock.pending, 0);
  store.start();
  clock.advance(700_000);
  assert.equal(journal.tokens.size, 0);
  store.stop();
});

test('does not forget an expired token while it is being written', async (t) => {
  const { clock, fileSystem, start } = await open(t);
  const { journal, store } = await start();
  t.after(() => journal.stop());
  let release: () => void = () => undefined;
  const disk = new Promise<void>((resolve) => {
    release = resolve;
  });
  fileSystem.before = (call) => (call === 'datasync' ? disk : undefined);
  const save = store.save('svc', 'a', '1', 500);
  await new Promise((resolve) => setImmediate(resolve));
  store.start();
  clock.advance(1_000);
  assert.equal(journal.tokens.size, 1);
  release();
  await save;
  clock.advance(2_000);
  assert.equal(journal.tokens.size, 0);
  store.stop();
});
