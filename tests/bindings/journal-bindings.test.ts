/** The embedded store against the contract of all binding stores, and what only it does. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { GatewayError } from '../../lib/errors.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { systemClock } from '../../lib/support/clock.ts';
import { FailingFileSystem, systemError } from '../support/failing-file-system.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';
import { bindingStoreContract } from './contract.ts';

const options = { clock: systemClock, logger: silentLogger };

bindingStoreContract('the embedded journal', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
  const journal = await Journal.open(folder, options);
  const store = new JournalBindings(journal);
  return {
    store,
    async insertUsernameOnly(serviceId, username, nodeId) {
      assert.equal(await store.insertAbsent(serviceId, [{ userId: null, username, nodeId }]), 1);
    },
    async close() {
      await journal.stop();
      await rm(folder, { recursive: true });
    },
  };
});

// The same promises, kept by a store that was closed, compacted and read again before each answer.
test('answers the same after a restart and after a compaction', async (t) => {
  const folder = await temporaryFolder(t);
  let journal = await Journal.open(folder, options);
  let store = new JournalBindings(journal);
  await store.bindIfAbsent('svc', '1', 'Alice', 'node-1');
  await store.move('svc', '1', 'node-2');
  await store.setFrozen('svc', '1', true);
  await store.bindIfAbsent('svc', '2', 'bob', 'node-1');
  await store.bindIfAbsent('svc', '3', 'bob', 'node-3');
  await store.bindIfAbsent('other', '1', null, 'node-9');
  for (let index = 0; index < 4; index += 1) await store.move('svc', '4', `node-${index}`);
  const removed = await store.remove('svc', '4');
  const before = await look(store);
  const firstPage = await store.list('svc', { limit: 1 });
  for (const compact of [false, true, false]) {
    if (compact) assert.equal(await journal.compact(), true);
    await journal.stop();
    journal = await Journal.open(folder, options);
    store = new JournalBindings(journal);
    assert.deepEqual(await look(store), before);
    const rest = await store.list('svc', { after: firstPage.next ?? '' });
    assert.deepEqual(
      rest.bindings.map((binding) => binding.userId),
      ['2', '3'],
    );
  }
  const again = await store.bindIfAbsent('svc', '4', null, 'node-1');
  assert.ok(removed && again.binding.epoch > removed.epoch);
  await journal.stop();
});

async function look(store: JournalBindings): Promise<unknown> {
  return [
    await store.findByUserId('svc', '1'),
    await store.findByUsername('svc', 'ALICE'),
    await store.findByUsername('svc', 'bob'),
    await store.findByUserId('svc', '2'),
    await store.findByUserId('svc', '4'),
    [...(await store.countByNode('svc'))].sort(),
    await store.list('svc', {}),
    await store.list('other', {}),
  ];
}

test('imports rows that are absent and leaves the others alone', async (t) => {
  const journal = await Journal.open(await temporaryFolder(t), options);
  t.after(() => journal.stop());
  const store = new JournalBindings(journal);
  await store.bindIfAbsent('svc', '1', 'alice', 'node-1');
  const made = await store.insertAbsent('svc', [
    { userId: '1', username: null, nodeId: 'node-9' },
    { userId: null, username: 'ALICE', nodeId: 'node-9' },
    { userId: '2', username: 'bob', nodeId: 'node-2' },
    { userId: '2', username: 'bobby', nodeId: 'node-3' },
    { userId: '3', username: 'Bob', nodeId: 'node-3' },
    { userId: null, username: 'carol', nodeId: 'node-3' },
  ]);
  assert.equal(made, 2);
  assert.deepEqual([...(await store.countByNode('svc'))].sort(), [
    ['node-1', 1],
    ['node-2', 1],
    ['node-3', 1],
  ]);
  assert.equal(await store.insertAbsent('svc', [{ userId: '2', username: null, nodeId: 'node-9' }]), 0);
});

test('refuses a page position that no page gave', async (t) => {
  const journal = await Journal.open(await temporaryFolder(t), options);
  t.after(() => journal.stop());
  const store = new JournalBindings(journal);
  for (const after of ['x', '-1', '', '1.5', '9'.repeat(16)]) {
    await assert.rejects(
      store.list('svc', { after }),
      (error: unknown) => error instanceof GatewayError && error.code === 'bad_request',
    );
  }
});

test('scans a large service for the users of one node in several turns', async (t) => {
  const journal = await Journal.open(await temporaryFolder(t), options);
  t.after(() => journal.stop());
  const store = new JournalBindings(journal);
  const rows = Array.from({ length: 45_000 }, (_, index) => ({
    userId: String(index),
    username: null,
    nodeId: index % 15_000 === 14_999 ? 'rare' : 'common',
  }));
  await store.insertAbsent('svc', rows);
  let turns = 0;
  const count = () => {
    turns += 1;
    immediate = setImmediate(count);
  };
  let immediate = setImmediate(count);
  const page = await store.list('svc', { nodeId: 'rare', limit: 10 });
  clearImmediate(immediate);
  assert.deepEqual(
    page.bindings.map((binding) => binding.userId),
    ['14999', '29999', '44999'],
  );
  assert.equal(page.next, null);
  assert.ok(turns >= 2, `the event loop turned ${turns} times`);
});

test('shows nobody a binding before it is on disk', async (t) => {
  const fileSystem = new FailingFileSystem();
  const journal = await Journal.open(await temporaryFolder(t), { ...options, fileSystem });
  t.after(() => journal.stop());
  const store = new JournalBindings(journal);
  const disk = gate();
  fileSystem.before = (call) => (call === 'datasync' ? disk.promise : undefined);
  const settled: string[] = [];
  const note = (what: string) => () => void settled.push(what);
  const all = [
    store.bindIfAbsent('svc', '1', 'alice', 'node-1').then(note('winner')),
    store.bindIfAbsent('svc', '1', 'alice', 'node-2').then(note('loser')),
    store.bindIfAbsent('svc', '1', 'ALICE', 'node-3').then(note('loser')),
    store.findByUserId('svc', '1').then(note('reader by id')),
    store.findByUsername('svc', 'Alice').then(note('reader by name')),
    store.list('svc', {}).then(note('lister')),
    store.findByUserId('svc', '2').then(note('reader of another')),
  ];
  await turns(10);
  assert.deepEqual(settled, ['reader of another']);
  disk.open();
  await Promise.all(all);
  assert.equal(settled.length, all.length);
});

test('fails the losers of a race with the winner, and shows readers the state of before', async (t) => {
  const fileSystem = new FailingFileSystem();
  const journal = await Journal.open(await temporaryFolder(t), { ...options, fileSystem });
  t.after(() => journal.stop());
  const store = new JournalBindings(journal);
  fileSystem.before = (call) => {
    if (call === 'write') throw systemError('ENOSPC');
  };
  const binds = ['node-1', 'node-2', 'node-3'].map((node) => store.bindIfAbsent('svc', '1', 'alice', node));
  const read = store.findByUserId('svc', '1');
  for (const bind of binds) await assert.rejects(bind, isUnavailable('ENOSPC'));
  assert.equal(await read, undefined);
  assert.equal((await store.countByNode('svc')).size, 0);
  fileSystem.before = () => undefined;
  const result = await store.bindIfAbsent('svc', '1', 'alice', 'node-4');
  assert.equal(result.created, true);
  assert.equal(result.binding.nodeId, 'node-4');
});

test('takes back every kind of change that could not be written', async (t) => {
  const fileSystem = new FailingFileSystem();
  const folder = await temporaryFolder(t);
  const journal = await Journal.open(folder, { ...options, fileSystem });
  const store = new JournalBindings(journal);
  await store.bindIfAbsent('svc', '1', 'alice', 'node-1');
  await store.bindIfAbsent('svc', '2', 'bob', 'node-2');
  await store.insertAbsent('svc', [{ userId: null, username: 'carol', nodeId: 'node-3' }]);
  const before = await look(store);
  fileSystem.before = (call) => {
    if (call === 'datasync') throw systemError('EIO');
  };
  const changes: (() => Promise<unknown>)[] = [
    () => store.move('svc', '1', 'node-5'),
    () => store.move('svc', '9', 'node-5'),
    () => store.remove('svc', '1'),
    () => store.setFrozen('svc', '2', true),
    () => store.bindIfAbsent('svc', '1', 'bob', 'node-5'),
    () => store.bindIfAbsent('svc', '7', 'bob', 'node-5'),
    () => store.bindIfAbsent('svc', '1', 'carol', 'node-5'),
    () => store.bindIfAbsent('svc', '8', 'carol', 'node-5'),
    () => store.insertAbsent('svc', [{ userId: '11', username: 'x', nodeId: 'node-5' }]),
  ];
  for (const change of changes) {
    await assert.rejects(change(), isUnavailable('EIO'));
    assert.deepEqual(await look(store), before);
  }
  fileSystem.before = () => undefined;
  await journal.stop();
  const reopened = await Journal.open(folder, options);
  t.after(() => reopened.stop());
  assert.deepEqual(await look(new JournalBindings(reopened)), before);
});

test('refuses changes once it is closed and still does not take unknown for absent', async (t) => {
  const journal = await Journal.open(await temporaryFolder(t), options);
  const store = new JournalBindings(journal);
  const last = store.bindIfAbsent('svc', '1', null, 'node-1');
  await turns(1);
  await Promise.all([journal.stop(), journal.stop()]);
  assert.equal((await last).created, true);
  await assert.rejects(store.bindIfAbsent('svc', '2', null, 'node-1'), isUnavailable('closed'));
});

function isUnavailable(cause: string): (error: unknown) => boolean {
  return (error) =>
    error instanceof StoreUnavailable && error.store === 'journal' && String(error.cause).includes(cause);
}

function gate(): { promise: Promise<void>; open: () => void } {
  let open: () => void = () => undefined;
  const promise = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { promise, open };
}

async function turns(count: number): Promise<void> {
  for (let index = 0; index < count; index += 1) await new Promise((resolve) => setImmediate(resolve));
}
