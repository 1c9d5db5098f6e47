/** The registry of a gateway with the embedded store: the file when it changed, edits when it did not. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { Journal } from '../../lib/bindings/journal.ts';
import { JournalBindings } from '../../lib/bindings/journal-bindings.ts';
import { DEFAULTS } from '../../lib/config/options.ts';
import { OperatorError } from '../../lib/errors.ts';
import type { RegistryDefinition, ServiceDefinition } from '../../lib/model.ts';
import { silentLogger } from '../../lib/observe/log.ts';
import { definitionHash, FileRegistry } from '../../lib/registry/file-registry.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FailingFileSystem, systemError } from '../support/failing-file-system.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { temporaryFolder } from '../support/temporary-folder.ts';

function service(id: string, nodeIds: readonly string[], changes: Partial<ServiceDefinition> = {}): ServiceDefinition {
  return {
    ...DEFAULTS.service,
    id,
    pathPrefix: `/${id}`,
    healthPath: '/health',
    nodes: nodeIds.map((nodeId, index) => ({
      ...DEFAULTS.node,
      id: nodeId,
      baseUrl: `http://127.0.0.1:${9000 + index}`,
    })),
    ...changes,
  };
}

function definition(...services: ServiceDefinition[]): RegistryDefinition {
  return { services, routes: [] };
}

interface Swap {
  readonly definition: RegistryDefinition;
  readonly meta: { loadedAtMs: number; stale: boolean };
}

async function open(t: TestContext) {
  const folder = await temporaryFolder(t);
  const clock = new FakeClock();
  const fileSystem = new FailingFileSystem();
  const warnings: string[] = [];
  const logger = { ...silentLogger, warn: (event: string) => void warnings.push(event) };
  /** Starts a gateway's worth of objects on the folder, with this file. */
  const boot = async (file: RegistryDefinition) => {
    const journal = await Journal.open(folder, { clock, logger: silentLogger, fileSystem });
    const bindings = new JournalBindings(journal);
    const swaps: Swap[] = [];
    const registry = new FileRegistry({
      journal,
      bindings,
      target: { swap: (next, meta) => void swaps.push({ definition: next, meta }) },
      definition: file,
      fileHash: definitionHash(file),
      clock,
      logger,
    });
    return { journal, bindings, registry, swaps };
  };
  return { boot, clock, fileSystem, warnings };
}

test('applies the file at the first start, once', async (t) => {
  const { boot, clock } = await open(t);
  const file = definition(service('a', ['n1']));
  const { journal, registry, swaps } = await boot(file);
  t.after(() => journal.stop());
  await Promise.all([registry.start(), registry.start()]);
  assert.deepEqual(swaps, [{ definition: file, meta: { loadedAtMs: clock.now(), stale: false } }]);
  assert.deepEqual(journal.registry, { fileHash: definitionHash(file), definition: file });
  await registry.stop();
});

test('lets edits stand while the file is unchanged, and takes the file when it changed', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1']));
  const edited = definition(service('a', ['n1', 'n2']), service('b', ['n3']));
  const first = await boot(file);
  await first.registry.start();
  await first.registry.write(edited);
  assert.deepEqual(first.swaps.at(-1)?.definition, edited);
  await first.journal.stop();

  const second = await boot(file);
  await second.registry.start();
  assert.deepEqual(
    second.swaps.map((swap) => swap.definition),
    [edited],
  );
  await second.journal.stop();

  const changed = definition(service('a', ['n1'], { name: 'new name' }));
  const third = await boot(changed);
  t.after(() => third.journal.stop());
  await third.registry.start();
  assert.deepEqual(
    third.swaps.map((swap) => swap.definition),
    [changed],
  );
  assert.deepEqual(third.journal.registry?.definition, changed);
});

test('applies a changed file on reload and leaves an unchanged one alone', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1']));
  const { journal, registry, swaps } = await boot(file);
  t.after(() => journal.stop());
  await registry.start();
  const edited = definition(service('a', ['n1', 'n2']));
  await registry.write(edited);
  assert.equal(await registry.apply(file, definitionHash(file)), false);
  assert.equal(swaps.length, 2);
  const changed = definition(service('a', ['n1']), service('c', ['n9']));
  assert.equal(await registry.apply(changed, definitionHash(changed)), true);
  assert.deepEqual(swaps.at(-1)?.definition, changed);
});

test('refuses a file that removes nodes or services with users, by name and number, and changes nothing', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1', 'n2']), service('b', ['n3']), service('c', ['n4']));
  const { journal, bindings, registry, swaps } = await boot(file);
  await registry.start();
  await bindings.bindIfAbsent('a', '1', null, 'n2');
  await bindings.bindIfAbsent('b', '1', null, 'n3');
  await bindings.bindIfAbsent('b', '2', null, 'n3');
  const smaller = definition(service('a', ['n1']));
  const isRefusal = (error: unknown) => {
    assert.ok(error instanceof OperatorError);
    assert.match(error.message, /node n2 of service a \(1 user\), node n3 of service b \(2 users\)/);
    return true;
  };
  await assert.rejects(registry.apply(smaller, definitionHash(smaller)), isRefusal);
  assert.equal(swaps.length, 1);
  assert.deepEqual(journal.registry?.definition, file);
  await journal.stop();

  const again = await boot(smaller);
  await assert.rejects(again.registry.start(), isRefusal);
  assert.equal(again.swaps.length, 0);
  await again.bindings.remove('a', '1');
  for (const user of ['1', '2']) await again.bindings.remove('b', user);
  assert.equal(await again.registry.apply(smaller, definitionHash(smaller)), true);
  assert.deepEqual(
    again.swaps.map((swap) => swap.definition),
    [smaller],
  );
  await again.journal.stop();
});

test('refuses a file that moves a node with users to another service', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1', 'n2']), service('b', []));
  const { journal, bindings, registry } = await boot(file);
  t.after(() => journal.stop());
  await registry.start();
  await bindings.bindIfAbsent('a', '1', null, 'n2');
  const moved = definition(service('a', ['n1']), service('b', ['n2']));
  await assert.rejects(registry.apply(moved, definitionHash(moved)), /n2 of service a \(1 user\)/);
});

test('does not hold bindings against a file that were left on a node long gone, unless their service goes', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1']));
  const { journal, bindings, registry } = await boot(file);
  t.after(() => journal.stop());
  await registry.start();
  await bindings.bindIfAbsent('a', '1', null, 'gone');
  const changed = definition(service('a', ['n1', 'n2']));
  assert.equal(await registry.apply(changed, definitionHash(changed)), true);
  const without = definition(service('b', ['n5']));
  await assert.rejects(registry.apply(without, definitionHash(without)), /node gone of service a \(1 user\)/);
});

test('checks a file against the edit that was under way before it', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1']));
  const { journal, bindings, registry, swaps } = await boot(file);
  t.after(() => journal.stop());
  await registry.start();
  await bindings.bindIfAbsent('a', '1', null, 'n2');
  const changed = definition(service('a', ['n1'], { name: 'x' }));
  const edit = registry.write(definition(service('a', ['n1', 'n2'])));
  const apply = registry.apply(changed, definitionHash(changed));
  await edit;
  await assert.rejects(apply, /node n2 of service a/);
  assert.equal(swaps.length, 2);
});

test('warns of a user who was bound to a removed node between check and swap', async (t) => {
  const { boot, fileSystem, warnings } = await open(t);
  const file = definition(service('a', ['n1', 'n2']));
  const { journal, bindings, registry, swaps } = await boot(file);
  t.after(() => journal.stop());
  await registry.start();
  const smaller = definition(service('a', ['n1']));
  let late: Promise<unknown> | undefined;
  fileSystem.before = (call) => {
    if (call === 'datasync') late ??= bindings.bindIfAbsent('a', '1', null, 'n2');
  };
  await registry.apply(smaller, definitionHash(smaller));
  await late;
  assert.equal(swaps.length, 2);
  assert.deepEqual(warnings, ['registry_users_on_removed_node']);
});

test('keeps the definition in force when the new one cannot be made durable', async (t) => {
  const { boot, fileSystem } = await open(t);
  const file = definition(service('a', ['n1']));
  const { journal, registry, swaps } = await boot(file);
  t.after(() => journal.stop());
  await registry.start();
  fileSystem.before = (call) => {
    if (call === 'write') throw systemError('ENOSPC');
  };
  const changed = definition(service('a', ['n1', 'n2']));
  await assert.rejects(registry.apply(changed, definitionHash(changed)), StoreUnavailable);
  await assert.rejects(registry.write(changed), StoreUnavailable);
  assert.equal(swaps.length, 1);
  assert.deepEqual(journal.registry?.definition, file);
  fileSystem.before = () => undefined;
  await registry.write(changed);
  assert.equal(swaps.length, 2);
  await registry.stop();
});

test('takes an edit before the first start for one of the file given', async (t) => {
  const { boot } = await open(t);
  const file = definition(service('a', ['n1']));
  const { journal, registry, swaps } = await boot(file);
  t.after(() => journal.stop());
  const edited = definition(service('a', ['n1', 'n2']));
  await registry.write(edited);
  await registry.start();
  assert.deepEqual(
    swaps.map((swap) => swap.definition),
    [edited, edited],
  );
});

test('gives a definition the same hash whatever the order of its keys, and another one for another order of rules', () => {
  const one = service('a', ['n1', 'n2']);
  const turned = Object.fromEntries(Object.entries(one).reverse()) as unknown as ServiceDefinition;
  assert.notEqual(JSON.stringify(one), JSON.stringify(turned));
  assert.equal(definitionHash(definition(one)), definitionHash(definition(turned)));
  assert.match(definitionHash(definition(one)), /^[0-9a-f]{64}$/);
  const reversed = service('a', ['n1', 'n2'], { nodes: [...one.nodes].reverse() });
  assert.notEqual(definitionHash(definition(one)), definitionHash(definition(reversed)));
});
