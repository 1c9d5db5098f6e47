import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RegistryDefinition, Snapshot } from '../../lib/model.ts';
import { Registry } from '../../lib/registry/registry.ts';
import { snapshotOf } from '../balance/services.ts';

const definition = (id: string): RegistryDefinition => snapshotOf({ id, nodes: [{ id: `${id}-node` }] }).definition;
const FRESH = { loadedAtMs: 1, stale: false };

describe('Registry', () => {
  it('has no snapshot before the first load', () => {
    assert.equal(new Registry().snapshot, undefined);
  });

  it('swaps the snapshot whole; whoever holds the old one keeps it as it was', () => {
    const registry = new Registry();
    registry.swap(definition('a'), { loadedAtMs: 5, stale: true });
    const held = registry.snapshot!;
    registry.swap(definition('b'), { loadedAtMs: 6, stale: false });
    assert.deepEqual([held.version, held.loadedAtMs, held.stale, [...held.services.keys()]], [1, 5, true, ['a']]);
    const now = registry.snapshot!;
    assert.deepEqual([now.version, now.loadedAtMs, now.stale, [...now.services.keys()]], [2, 6, false, ['b']]);
  });

  it('tells every follower of the new and the previous snapshot, when the new one is in force', () => {
    const registry = new Registry();
    const told: [string, Snapshot, Snapshot | undefined][] = [];
    for (const name of ['one', 'two'])
      registry.subscribe((snapshot, previous) => {
        assert.equal(registry.snapshot, snapshot);
        told.push([name, snapshot, previous]);
      });
    assert.deepEqual(told, [], 'there is nothing to tell yet');
    registry.swap(definition('a'), FRESH);
    const first = registry.snapshot!;
    registry.swap(definition('b'), FRESH);
    const second = registry.snapshot!;
    assert.deepEqual(told, [
      ['one', first, undefined],
      ['two', first, undefined],
      ['one', second, first],
      ['two', second, first],
    ]);
  });

  it('tells the others when a follower fails, and of the failure', () => {
    const registry = new Registry();
    const told: string[] = [];
    registry.subscribe(() => {
      throw new Error('its own fault');
    });
    registry.subscribe(() => told.push('after it'));
    assert.throws(() => registry.swap(definition('a'), FRESH), /its own fault/);
    assert.deepEqual(told, ['after it']);
  });

  it('tells a late follower of the snapshot in force at once, and nobody who has left', () => {
    const registry = new Registry();
    registry.swap(definition('a'), FRESH);
    const versions: number[] = [];
    const stop = registry.subscribe((snapshot, previous) => {
      assert.equal(previous, undefined);
      versions.push(snapshot.version);
    });
    assert.deepEqual(versions, [1]);
    stop();
    stop();
    registry.swap(definition('b'), FRESH);
    assert.deepEqual(versions, [1]);
  });

  it('keeps the snapshot in force when a definition cannot be built', () => {
    const registry = new Registry();
    registry.swap(definition('a'), FRESH);
    const before = registry.snapshot;
    registry.subscribe((snapshot) => assert.equal(snapshot, before));
    const broken = snapshotOf({ id: 'b', nodes: [] }).definition;
    const nodes = [
      { ...snapshotOf({ id: 'c', nodes: [{ id: 'n' }] }).definition.services[0]!.nodes[0]!, baseUrl: '?' },
    ];
    const services = broken.services.map((service) => ({ ...service, nodes }));
    assert.throws(() => registry.swap({ services, routes: [] }, FRESH), /Invalid URL/);
    assert.equal(registry.snapshot, before);
  });
});
