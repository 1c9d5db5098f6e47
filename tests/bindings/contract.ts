/**
 * The contract of BindingStore as tests. It runs against every store: the embedded journal and PostgreSQL. Each test
 * works in a service of its own, so that one database may be shared by all of them.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import type { BindingStore, BindResult } from '../../lib/bindings/binding-store.ts';
import type { Binding } from '../../lib/model.ts';

export interface OpenedStore {
  readonly store: BindingStore;
  /** Puts a row without a user id there, as an import does: no method of the contract makes one. */
  insertUsernameOnly(serviceId: string, username: string, nodeId: string): Promise<void>;
  close(): Promise<void>;
}

/** User ids are digits throughout: they must also fit a bigint column. */
export function bindingStoreContract(name: string, open: () => Promise<OpenedStore>): void {
  describe(`${name} keeps the contract of binding stores`, () => {
    let opened: OpenedStore;
    let store: BindingStore;
    before(async () => {
      opened = await open();
      store = opened.store;
    });
    after(() => opened.close());
    const newService = () => `svc-${randomUUID()}`;

    test('finds nothing where nothing was bound', async () => {
      const service = newService();
      assert.equal(await store.findByUserId(service, '1'), undefined);
      assert.equal(await store.findByUsername(service, 'alice'), undefined);
      assert.equal((await store.countByNode(service)).size, 0);
      assert.deepEqual(await store.list(service, {}), { bindings: [], next: null });
    });

    test('binds a new user and finds the binding by id and by name in any case', async () => {
      const service = newService();
      const result = await store.bindIfAbsent(service, '42', 'Alice', 'node-1');
      assert.equal(result.created, true);
      assert.equal(result.conflict, false);
      assert.deepEqual(result.voided, []);
      assert.ok(Number.isSafeInteger(result.binding.epoch) && result.binding.epoch >= 1);
      const { epoch } = result.binding;
      const expected: Binding = {
        serviceId: service,
        userId: '42',
        username: 'Alice',
        nodeId: 'node-1',
        epoch,
        frozen: false,
      };
      assert.deepEqual(result.binding, expected);
      assert.deepEqual(await store.findByUserId(service, '42'), expected);
      assert.deepEqual(await store.findByUsername(service, 'Alice'), expected);
      assert.deepEqual(await store.findByUsername(service, 'aLICE'), expected);
    });

    test('keeps the first node whatever later logins propose', async () => {
      const service = newService();
      const first = await store.bindIfAbsent(service, '42', 'alice', 'node-1');
      const second = await store.bindIfAbsent(service, '42', 'alice', 'node-2');
      assert.equal(second.created, false);
      assert.equal(second.conflict, false);
      assert.deepEqual(second.binding, first.binding);
      assert.deepEqual(await store.findByUserId(service, '42'), first.binding);
    });

    test('leaves names alone when the login has none', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1', 'alice', 'node-1');
      const again = await store.bindIfAbsent(service, '1', null, 'node-2');
      assert.equal(again.binding.username, 'alice');
      assert.equal((await store.findByUsername(service, 'alice'))?.userId, '1');
      const nameless = await store.bindIfAbsent(service, '2', null, 'node-1');
      assert.equal(nameless.created, true);
      assert.equal(nameless.binding.username, null);
      assert.equal((await store.findByUserId(service, '2'))?.nodeId, 'node-1');
    });

    test('renames a user, keeps the node and says that the old name is void', async () => {
      const service = newService();
      const old = await store.bindIfAbsent(service, '1', 'Alice', 'node-1');
      const renamed = await store.bindIfAbsent(service, '1', 'alicia', 'node-2');
      assert.equal(renamed.created, false);
      assert.equal(renamed.binding.nodeId, 'node-1');
      assert.equal(renamed.binding.username, 'alicia');
      assert.equal(renamed.binding.epoch, old.binding.epoch);
      assertVoided(renamed, service, 'alice');
      assert.equal(await store.findByUsername(service, 'alice'), undefined);
      assert.equal((await store.findByUsername(service, 'ALICIA'))?.userId, '1');
    });

    test('gives a user without a name the name of the login', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1', null, 'node-1');
      const named = await store.bindIfAbsent(service, '1', 'alice', 'node-2');
      assert.equal(named.binding.username, 'alice');
      assert.equal(named.binding.nodeId, 'node-1');
      assert.equal((await store.findByUsername(service, 'alice'))?.userId, '1');
    });

    test('takes another spelling of a name for the same user', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1', 'alice', 'node-1');
      const again = await store.bindIfAbsent(service, '1', 'ALICE', 'node-2');
      assert.equal(again.created, false);
      assert.equal(again.binding.nodeId, 'node-1');
      assert.equal((await store.findByUsername(service, 'alice'))?.userId, '1');
      assert.equal((await store.list(service, {})).bindings.length, 1);
    });

    test('completes a row that has only a username and keeps its node', async () => {
      const service = newService();
      await opened.insertUsernameOnly(service, 'Bob', 'node-3');
      assert.equal((await store.findByUsername(service, 'bob'))?.userId, null);
      const result = await store.bindIfAbsent(service, '7', 'bob', 'node-1');
      assert.equal(result.created, false);
      assert.equal(result.conflict, false);
      assert.equal(result.binding.userId, '7');
      assert.equal(result.binding.nodeId, 'node-3');
      assert.equal((await store.findByUserId(service, '7'))?.nodeId, 'node-3');
      assert.equal((await store.findByUsername(service, 'BOB'))?.userId, '7');
      assert.deepEqual([...(await store.countByNode(service))], [['node-3', 1]]);
    });

    test('takes a username off its old user when it passed to a new one', async () => {
      const service = newService();
      const old = await store.bindIfAbsent(service, '1', 'shared', 'node-1');
      const result = await store.bindIfAbsent(service, '2', 'Shared', 'node-2');
      assert.equal(result.created, true);
      assert.equal(result.conflict, false);
      assert.equal(result.binding.nodeId, 'node-2');
      assertVoided(result, service, 'shared');
      assert.equal((await store.findByUsername(service, 'shared'))?.userId, '2');
      assert.deepEqual(await store.findByUserId(service, '1'), { ...old.binding, username: null });
    });

    test('takes a username off its old user when it passed to a bound one', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1', 'one', 'node-1');
      await store.bindIfAbsent(service, '2', 'two', 'node-2');
      const result = await store.bindIfAbsent(service, '2', 'ONE', 'node-3');
      assert.equal(result.created, false);
      assert.equal(result.conflict, false);
      assert.equal(result.binding.nodeId, 'node-2');
      assert.equal(result.binding.username, 'ONE');
      assertVoided(result, service, 'one');
      assertVoided(result, service, 'two');
      assert.equal((await store.findByUsername(service, 'one'))?.userId, '2');
      assert.equal(await store.findByUsername(service, 'two'), undefined);
      assert.equal((await store.findByUserId(service, '1'))?.username, null);
      assert.equal((await store.findByUserId(service, '1'))?.nodeId, 'node-1');
    });

    test('lets the user-id row win over a username row on another node', async () => {
      const service = newService();
      await opened.insertUsernameOnly(service, 'carol', 'node-9');
      const stray = await store.findByUsername(service, 'carol');
      await store.bindIfAbsent(service, '5', null, 'node-1');
      const result = await store.bindIfAbsent(service, '5', 'Carol', 'node-2');
      assert.equal(result.created, false);
      assert.equal(result.conflict, true);
      assert.ok(stray && result.binding.epoch > stray.epoch);
      assert.equal(result.binding.nodeId, 'node-1');
      assertVoided(result, service, 'carol');
      assert.equal((await store.findByUsername(service, 'carol'))?.nodeId, 'node-1');
      assert.deepEqual([...(await store.countByNode(service))], [['node-1', 1]]);
    });

    test('merges a user-id row and a username row on the same node without a conflict', async () => {
      const service = newService();
      await opened.insertUsernameOnly(service, 'carol', 'node-1');
      await store.bindIfAbsent(service, '5', 'old name', 'node-1');
      const result = await store.bindIfAbsent(service, '5', 'carol', 'node-2');
      assert.equal(result.conflict, false);
      assert.equal(result.binding.username, 'carol');
      assertVoided(result, service, 'old name');
      assert.equal((await store.list(service, {})).bindings.length, 1);
    });

    test('gives 40 logins of one new user at once the same node', async () => {
      const service = newService();
      const results = await Promise.all(
        Array.from({ length: 40 }, (_, index) => store.bindIfAbsent(service, '1', 'alice', `node-${index}`)),
      );
      assert.equal(results.filter((result) => result.created).length, 1);
      assert.equal(new Set(results.map((result) => result.binding.nodeId)).size, 1);
      assert.equal((await store.list(service, {})).bindings.length, 1);
      assert.equal((await store.findByUsername(service, 'alice'))?.nodeId, results[0]?.binding.nodeId);
    });

    test('binds every one of many users who claim one name at once, and gives one of them the name', async () => {
      const service = newService();
      const ids = Array.from({ length: 12 }, (_, index) => String(100 + index));
      const results = await Promise.all(ids.map((id) => store.bindIfAbsent(service, id, 'same', `node-${id}`)));
      for (const [index, id] of ids.entries()) {
        assert.equal(results[index]?.binding.userId, id);
        assert.equal((await store.findByUserId(service, id))?.nodeId, `node-${id}`);
      }
      const { bindings } = await store.list(service, {});
      assert.equal(bindings.length, ids.length);
      const named = bindings.filter((binding) => binding.username !== null);
      assert.equal(named.length, 1);
      assert.equal((await store.findByUsername(service, 'same'))?.userId, named[0]?.userId);
    });

    test('completes a username-only row once when its user logs in many times at once', async () => {
      const service = newService();
      await opened.insertUsernameOnly(service, 'dave', 'node-3');
      const results = await Promise.all(
        Array.from({ length: 10 }, (_, index) => store.bindIfAbsent(service, '8', 'dave', `node-${10 + index}`)),
      );
      assert.ok(results.every((result) => result.binding.nodeId === 'node-3' && !result.created));
      assert.equal((await store.list(service, {})).bindings.length, 1);
    });

    test('tells ids apart that a JavaScript number cannot', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1790000000000000001', 'a', 'node-1');
      await store.bindIfAbsent(service, '1790000000000000002', 'b', 'node-2');
      assert.equal((await store.findByUserId(service, '1790000000000000001'))?.nodeId, 'node-1');
      const second = await store.findByUserId(service, '1790000000000000002');
      assert.equal(second?.nodeId, 'node-2');
      assert.equal(second?.userId, '1790000000000000002');
      assert.equal(await store.findByUserId(service, '1790000000000000003'), undefined);
    });

    test('returns names as they came, whatever characters they hold', async () => {
      const service = newService();
      const names = [
        'ünïcode',
        '张伟',
        `O'Neil "x" \\ \n\t%_`,
        'emoji 😀',
        ' blank ',
        '=1+1',
        '-',
        '日本語'.repeat(20),
      ];
      for (const [index, username] of names.entries()) {
        await store.bindIfAbsent(service, String(index), username, 'node-1');
        assert.equal((await store.findByUserId(service, String(index)))?.username, username);
        assert.equal((await store.findByUsername(service, username))?.userId, String(index));
      }
    });

    test('keeps services apart', async () => {
      const [one, two] = [newService(), newService()];
      await store.bindIfAbsent(one, '1', 'alice', 'node-1');
      await store.bindIfAbsent(two, '1', 'alice', 'node-2');
      assert.equal((await store.findByUserId(one, '1'))?.nodeId, 'node-1');
      assert.equal((await store.findByUsername(two, 'alice'))?.nodeId, 'node-2');
      await store.remove(one, '1');
      assert.equal((await store.findByUserId(two, '1'))?.nodeId, 'node-2');
    });

    test('raises the epoch of a move to another node and only of that', async () => {
      const service = newService();
      const { binding } = await store.bindIfAbsent(service, '1', 'alice', 'node-1');
      assert.deepEqual(await store.move(service, '1', 'node-1'), binding);
      const moved = await store.move(service, '1', 'node-2');
      assert.deepEqual(moved, { ...binding, nodeId: 'node-2', epoch: binding.epoch + 1 });
      assert.deepEqual(await store.findByUserId(service, '1'), moved);
      assert.deepEqual(await store.findByUsername(service, 'alice'), moved);
      assert.deepEqual([...(await store.countByNode(service))], [['node-2', 1]]);
    });

    test('binds an unbound user by a move', async () => {
      const service = newService();
      const binding = await store.move(service, '9', 'node-4');
      assert.equal(binding.userId, '9');
      assert.equal(binding.nodeId, 'node-4');
      assert.ok(binding.epoch >= 1);
      assert.deepEqual(await store.findByUserId(service, '9'), binding);
    });

    test('gives every one of many moves at once an epoch of its own', async () => {
      const service = newService();
      const { binding } = await store.bindIfAbsent(service, '1', 'alice', 'node-0');
      const moves = await Promise.all(
        Array.from({ length: 8 }, (_, index) => store.move(service, '1', `node-${index + 1}`)),
      );
      const epochs = moves.map((move) => move.epoch).sort((a, b) => a - b);
      assert.deepEqual(
        epochs,
        Array.from({ length: 8 }, (_, index) => binding.epoch + index + 1),
      );
      const last = moves.find((move) => move.epoch === epochs.at(-1));
      assert.deepEqual(await store.findByUserId(service, '1'), last);
    });

    test('returns what it removed, once', async () => {
      const service = newService();
      const { binding } = await store.bindIfAbsent(service, '1', 'alice', 'node-1');
      assert.deepEqual(await store.remove(service, '1'), binding);
      assert.equal(await store.findByUserId(service, '1'), undefined);
      assert.equal(await store.findByUsername(service, 'alice'), undefined);
      assert.equal(await store.remove(service, '1'), undefined);
      assert.equal((await store.countByNode(service)).size, 0);
    });

    test('gives a binding made after a removal an epoch above every removed one', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1', 'alice', 'node-0');
      for (let index = 1; index <= 3; index += 1) await store.move(service, '1', `node-${index}`);
      const removed = await store.remove(service, '1');
      assert.ok(removed);
      const again = await store.bindIfAbsent(service, '1', 'alice', 'node-9');
      assert.equal(again.created, true);
      assert.ok(again.binding.epoch > removed.epoch);
      await store.remove(service, '1');
      const byMove = await store.move(service, '1', 'node-1');
      assert.ok(byMove.epoch > again.binding.epoch);
    });

    test('gives the name of a removed user to the next one with a higher epoch', async () => {
      const service = newService();
      await store.bindIfAbsent(service, '1', 'alice', 'node-0');
      const moved = await store.move(service, '1', 'node-1');
      await store.remove(service, '1');
      const next = await store.bindIfAbsent(service, '2', 'alice', 'node-2');
      assert.ok(next.binding.epoch > moved.epoch);
    });

    test('freezes and thaws without a new epoch', async () => {
      const service = newService();
      assert.equal(await store.setFrozen(service, '1', true), undefined);
      const { binding } = await store.bindIfAbsent(service, '1', 'alice', 'node-1');
      const frozen = await store.setFrozen(service, '1', true);
      assert.deepEqual(frozen, { ...binding, frozen: true });
      assert.deepEqual(await store.setFrozen(service, '1', true), frozen);
      assert.deepEqual(await store.findByUserId(service, '1'), frozen);
      assert.equal((await store.bindIfAbsent(service, '1', 'alice', 'node-2')).binding.frozen, true);
      assert.deepEqual(await store.setFrozen(service, '1', false), binding);
    });

    test('counts the users of each node', async () => {
      const service = newService();
      for (let index = 0; index < 7; index += 1) {
        await store.bindIfAbsent(service, String(index), null, index < 5 ? 'node-1' : 'node-2');
      }
      await store.move(service, '0', 'node-2');
      await store.remove(service, '1');
      const counts = await store.countByNode(service);
      assert.deepEqual([...counts].sort(), [
        ['node-1', 3],
        ['node-2', 3],
      ]);
    });

    test('pages through everything once, while rows change', async () => {
      const service = newService();
      for (let index = 0; index < 25; index += 1) {
        await store.bindIfAbsent(service, String(1000 + index), `user-${index}`, `node-${index % 2}`);
      }
      const first = await store.list(service, { limit: 10 });
      assert.equal(first.bindings.length, 10);
      assert.ok(first.next !== null);
      const seenFirst = first.bindings.map((binding) => binding.userId ?? '');
      await store.move(service, seenFirst[0] ?? '', 'node-7');
      await store.remove(service, seenFirst[9] ?? '');
      const second = await store.list(service, { limit: 10, after: first.next });
      assert.equal(second.bindings.length, 10);
      assert.ok(second.next !== null);
      const third = await store.list(service, { limit: 10, after: second.next });
      assert.equal(third.next, null);
      const seen = [...seenFirst, ...second.bindings.map((b) => b.userId), ...third.bindings.map((b) => b.userId)];
      assert.equal(seen.length, 25);
      assert.equal(new Set(seen).size, 25);
    });

    test('ends a list exactly at a page without an empty one behind it', async () => {
      const service = newService();
      for (let index = 0; index < 4; index += 1) await store.bindIfAbsent(service, String(index), null, 'node-1');
      const first = await store.list(service, { limit: 2 });
      assert.ok(first.next !== null);
      const second = await store.list(service, { limit: 2, after: first.next });
      assert.equal(second.bindings.length, 2);
      assert.equal(second.next, null);
    });

    test('lists by node, by user id and by username', async () => {
      const service = newService();
      for (let index = 0; index < 9; index += 1) {
        await store.bindIfAbsent(service, String(index), `User-${index}`, `node-${index % 3}`);
      }
      const byNode = await store.list(service, { nodeId: 'node-1', limit: 2 });
      assert.deepEqual(
        byNode.bindings.map((binding) => binding.userId),
        ['1', '4'],
      );
      assert.ok(byNode.next !== null);
      const rest = await store.list(service, { nodeId: 'node-1', limit: 2, after: byNode.next });
      assert.deepEqual(
        rest.bindings.map((binding) => binding.userId),
        ['7'],
      );
      assert.equal(rest.next, null);
      const byId = await store.list(service, { userId: '4' });
      assert.deepEqual(
        byId.bindings.map((binding) => binding.username),
        ['User-4'],
      );
      const byName = await store.list(service, { username: 'uSER-5' });
      assert.deepEqual(
        byName.bindings.map((binding) => binding.userId),
        ['5'],
      );
      assert.deepEqual((await store.list(service, { userId: '4', nodeId: 'node-0' })).bindings, []);
      assert.deepEqual((await store.list(service, { userId: '4', username: 'user-5' })).bindings, []);
    });
  });
}

function assertVoided(result: BindResult, serviceId: string, username: string): void {
  assert.ok(
    result.voided.some((key) => key.kind === 'name' && key.serviceId === serviceId && key.username === username),
    `expected the name ${username} among ${JSON.stringify(result.voided)}`,
  );
}
