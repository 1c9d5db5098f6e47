import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DEFAULTS } from '../../lib/config/options.ts';
import type { RouteDefinition, Snapshot } from '../../lib/model.ts';
import { buildSnapshot } from '../../lib/registry/snapshot.ts';
import { type ServiceSketch, serviceOf, snapshotOf } from '../balance/services.ts';
import { Seeded } from '../support/seeded.ts';

function serviceAt(id: string, pathPrefix: string | null): ServiceSketch {
  return { id, pathPrefix, nodes: [{ id: `${id}-node` }] };
}

function route(id: string, pathPrefix: string, services: readonly string[]): RouteDefinition {
  const versions = services.map((service, index) => ({ version: `v${index}`, service, weight: 1, enabled: true }));
  return { id, pathPrefix, enabled: true, fallback: false, versions, rules: [] };
}

function withRoutes(services: readonly ServiceSketch[], routes: readonly RouteDefinition[]): Snapshot {
  const { definition } = snapshotOf(...services);
  return buildSnapshot({ services: definition.services, routes }, { version: 7, loadedAtMs: 5, stale: true });
}

const realmAt = (snapshot: Snapshot, path: string) => snapshot.match(path)?.realm;

describe('buildSnapshot', () => {
  it('carries where it comes from, and cannot be changed', () => {
    const snapshot = withRoutes([serviceAt('a', '/a')], [route('r', '/r', ['a'])]);
    assert.deepEqual([snapshot.version, snapshot.loadedAtMs, snapshot.stale], [7, 5, true]);
    for (const part of [
      snapshot,
      ...snapshot.services.values(),
      ...snapshot.routes.values(),
      ...snapshot.nodes.values(),
    ])
      assert.ok(Object.isFrozen(part));
    assert.ok(Object.isFrozen(snapshot.match('/a')));
    assert.ok(Object.isFrozen(snapshot.match('/r')));
  });

  it('indexes nodes by id, over all services and within each', () => {
    const snapshot = snapshotOf(serviceAt('a', '/a'), serviceAt('b', '/b'));
    assert.deepEqual([...snapshot.nodes.keys()], ['a-node', 'b-node']);
    assert.equal(snapshot.nodes.get('b-node'), snapshot.services.get('b')?.nodesById.get('b-node'));
    assert.equal(snapshot.nodes.get('b-node')?.serviceId, 'b');
    assert.equal(snapshot.services.get('a')?.nodesById.has('b-node'), false);
  });

  it('is empty of services without complaint', () => {
    const snapshot = snapshotOf();
    assert.equal(snapshot.match('/'), undefined);
    assert.equal(snapshot.match(''), undefined);
  });

  describe('reads the address of a node', () => {
    const nodeAt = (baseUrl: string, healthPath: string | null = '/health') =>
      serviceOf({ id: 'a', healthPath, nodes: [{ id: 'n', baseUrl }] }).nodes[0]!;

    for (const [baseUrl, protocol, hostname, port, authority] of [
      ['http://10.0.0.1:9001', 'http:', '10.0.0.1', 9001, '10.0.0.1:9001'],
      ['http://node.example', 'http:', 'node.example', 80, 'node.example'],
      ['https://node.example', 'https:', 'node.example', 443, 'node.example'],
      ['https://node.example:8443', 'https:', 'node.example', 8443, 'node.example:8443'],
      ['http://node.example:80', 'http:', 'node.example', 80, 'node.example'],
      ['http://[::1]:9001', 'http:', '::1', 9001, '[::1]:9001'],
      ['https://[2001:DB8::1]', 'https:', '2001:db8::1', 443, '[2001:db8::1]'],
    ] as const) {
      it(baseUrl, () => {
        const node = nodeAt(baseUrl);
        assert.deepEqual(
          [node.protocol, node.hostname, node.port, node.authority],
          [protocol, hostname, port, authority],
        );
      });
    }

    it('and knows its health by address and path, or by address alone', () => {
      assert.equal(nodeAt('http://[::1]:9001').healthKey, 'http://[::1]:9001/health');
      assert.equal(nodeAt('https://node.example').healthKey, 'https://node.example:443/health');
      assert.equal(nodeAt('http://node.example', null).healthKey, 'tcp://node.example:80');
      assert.equal(nodeAt('http://node.example:80').healthKey, nodeAt('http://node.example').healthKey);
    });
  });

  it('makes full login paths of the prefix and each login path', () => {
    const login = { ...DEFAULTS.service.login, also: ['/auth/sms', '/auth/refresh'] };
    const pathsOf = (more: Partial<ServiceSketch>) => [
      ...serviceOf({ id: 'a', nodes: [], loginPath: '/auth/login', login, ...more }).loginPaths,
    ];
    assert.deepEqual(pathsOf({ pathPrefix: '/js/a' }), ['/js/a/auth/login', '/js/a/auth/sms', '/js/a/auth/refresh']);
    assert.deepEqual(pathsOf({ pathPrefix: '/' }), ['/auth/login', '/auth/sms', '/auth/refresh']);
    assert.deepEqual(pathsOf({ pathPrefix: null }), ['/auth/login', '/auth/sms', '/auth/refresh']);
    assert.deepEqual(pathsOf({ loginPath: null }), [], 'without a login path there is no login');
  });

  it('gives a route the services of its versions, and leaves out what is not there', () => {
    const snapshot = withRoutes(
      [serviceAt('v1', null), serviceAt('v2', null)],
      [route('api', '/api', ['v2', 'gone', 'v1'])],
    );
    assert.deepEqual(
      snapshot.routes.get('api')?.services.map((service) => service.id),
      ['v2', 'v1'],
    );
  });
});

describe('Snapshot.match', () => {
  const snapshot = withRoutes(
    [serviceAt('js', '/js'), serviceAt('js-a', '/js/a'), serviceAt('hidden', null)],
    [route('api', '/js/a/api', ['hidden'])],
  );

  for (const [path, realm] of [
    ['/js', 'js'],
    ['/js/', 'js'],
    ['/js/b', 'js'],
    ['/js/ab', 'js'],
    ['/js/a', 'js-a'],
    ['/js/a/', 'js-a'],
    ['/js/a//', 'js-a'],
    ['/js/a/apis', 'js-a'],
    ['/js/a/api', 'api'],
    ['/js/a/api/users/7', 'api'],
    ['/jsx', undefined],
    ['/j', undefined],
    ['/JS', undefined],
    ['//js', undefined],
    ['/hidden', undefined],
    ['/', undefined],
    ['', undefined],
    ['*', undefined],
  ] as const) {
    it(`leads ${JSON.stringify(path)} to ${realm ?? 'nobody'}`, () => {
      assert.equal(realmAt(snapshot, path), realm);
    });
  }

  it('says what it found: a service or a route, with the prefix', () => {
    const service = snapshot.match('/js/a/x');
    assert.deepEqual([service?.prefix, service?.service?.id, service?.route], ['/js/a', 'js-a', null]);
    const found = snapshot.match('/js/a/api/x');
    assert.deepEqual([found?.prefix, found?.service, found?.route?.id], ['/js/a/api', null, 'api']);
  });

  it('gives the prefix / every path that no longer prefix takes', () => {
    const all = snapshotOf(serviceAt('root', '/'), serviceAt('a', '/a'));
    assert.deepEqual(
      ['/', '', '/x', '/ab', '/a', '/a/b', '//a', '*'].map((path) => realmAt(all, path)),
      ['root', 'root', 'root', 'root', 'a', 'a', 'root', 'root'],
    );
    assert.equal(all.match('/x')?.prefix, '');
  });

  it('agrees with a search through all prefixes', () => {
    const segments = ['a', 'b', 'ab', ''];
    for (let seed = 0; seed < 300; seed += 1) {
      const random = new Seeded(seed);
      const path = (most: number) =>
        Array.from({ length: 1 + random.below(most) }, () => `/${random.pick(segments)}`).join('');
      const prefixes = [
        ...new Set(Array.from({ length: 4 }, () => path(3)).filter((prefix) => !/\/$/.test(prefix) || prefix === '/')),
      ];
      const built = snapshotOf(...prefixes.map((prefix, index) => serviceAt(`s${index}`, prefix)));
      for (let count = 0; count < 20; count += 1) {
        const asked = path(5);
        const expected = prefixes
          .filter((prefix) => prefix === '/' || asked === prefix || asked.startsWith(`${prefix}/`))
          .sort((a, b) => b.length - a.length)[0];
        const found = built.match(asked)?.service?.pathPrefix;
        assert.equal(found, expected, `seed ${seed}: ${asked} among ${prefixes.join(' ')}`);
      }
    }
  });

  it('costs no more for a path of many slashes than for any other', () => {
    const slow = '/'.repeat(30_000);
    const begin = performance.now();
    for (let count = 0; count < 200; count += 1) assert.equal(snapshot.match(`${slow}${count}`), undefined);
    // Looking up every run of segments takes a quarter of a second for one such path.
    assert.ok(performance.now() - begin < 5_000);
  });
});
