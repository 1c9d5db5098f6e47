/** PostgresRegistry and its last good file: seeding, loading, bad rows, and a PostgreSQL that is away. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { DEFAULTS } from '../../lib/config/options.ts';
import { OperatorError } from '../../lib/errors.ts';
import type { NodeDefinition, RegistryDefinition, RouteDefinition, ServiceDefinition } from '../../lib/model.ts';
import { type Logger, silentLogger } from '../../lib/observe/log.ts';
import { Metrics } from '../../lib/observe/metrics.ts';
import { LastGoodFile } from '../../lib/registry/last-good.ts';
import {
  type DefinitionChecks,
  PostgresRegistry,
  type PostgresRegistryOptions,
  writeRegistry,
} from '../../lib/registry/postgres-registry.ts';
import { PostgresStore } from '../../lib/stores/postgres.ts';
import { StoreUnavailable } from '../../lib/stores/store-unavailable.ts';
import { FakeClock } from '../support/fake-clock.ts';
import { OLDER_TABLES, type OpenedDatabase, openDatabase, postgresOptions } from '../support/postgres-store.ts';

/** Stands for the checks of the configuration: ids, prefixes and base URLs. */
const checks: DefinitionChecks = {
  service: (value) => {
    const service = value as ServiceDefinition;
    if (service.pathPrefix !== null && !/^\/\S*$/.test(service.pathPrefix)) throw new Error('pathPrefix starts with /');
    return service;
  },
  node: (value) => {
    const node = value as NodeDefinition;
    if (!URL.canParse(node.baseUrl)) throw new Error('baseUrl is not a URL');
    return node;
  },
  route: (value) => {
    const route = value as RouteDefinition;
    if (!Array.isArray(route.rules)) throw new Error('rules is a list');
    return route;
  },
};

function node(id: string, changes: Partial<NodeDefinition> = {}): NodeDefinition {
  return { id, baseUrl: `http://127.0.0.1:${9000 + id.length}/`.slice(0, -1), ...DEFAULTS.node, ...changes };
}

function service(id: string, changes: Partial<ServiceDefinition> = {}): ServiceDefinition {
  return { id, pathPrefix: `/${id}`, healthPath: '/health', nodes: [], ...DEFAULTS.service, ...changes };
}

const SEED: RegistryDefinition = {
  services: [
    service('alpha', {
      name: 'Alpha',
      loginPath: '/login',
      defaultNodeId: 'alpha-1',
      affinity: 'none',
      balance: 'consistent-hash',
      placement: 'least-users',
      healthPath: null,
      enabled: false,
      login: {
        also: ['/sms'],
        request: { username: 'name' },
        response: { success: { ok: true, code: 0 }, userId: 'id', username: null, token: null },
      },
      health: {
        intervalMs: 100,
        timeoutMs: null,
        failures: 2,
        jitter: 0.2,
        onDemandMs: 500,
        tiers: { regularMs: 1_000, stableMs: null, degradedMs: 2_000, stableAfter: 3, degradedAfter: null },
      },
      timeouts: { connectMs: 1, responseMs: 2, idleMs: null },
      upstream: { hostHeader: 'node', ca: '/ca.pem', insecure: true },
      nodes: [
        node('alpha-1', { name: 'One', weight: 2.5, maxUsers: 7, draining: true, remark: 'r' }),
        node('alpha-22', { enabled: false, weight: 0 }),
      ],
    }),
    service('beta', { pathPrefix: null, affinity: 'none', nodes: [node('beta-1')] }),
  ],
  routes: [
    {
      id: 'route',
      pathPrefix: '/route',
      enabled: true,
      fallback: true,
      versions: [
        { version: 'v1', service: 'alpha', weight: 90, enabled: true },
        { version: 'v2', service: 'beta', weight: 10, enabled: false },
      ],
      rules: [
        { type: 'header', name: 'X-Version', value: 'v2', version: 'v2' },
        { type: 'weight', value: 10, version: 'v2' },
      ],
    },
  ],
};
const EMPTY: RegistryDefinition = { services: [], routes: [] };

class Target {
  snapshot: { stale: boolean; loadedAtMs: number; definition: RegistryDefinition } | undefined;
  swaps = 0;

  swap(definition: RegistryDefinition, meta: { loadedAtMs: number; stale: boolean }): void {
    this.snapshot = { definition, ...meta };
    this.swaps += 1;
  }

  get ids(): string[] {
    return this.snapshot?.definition.services.map(({ id }) => id) ?? [];
  }
}

function recordingLogger(): Logger & { readonly lines: string[]; take(): string[] } {
  const lines: string[] = [];
  const record = (event: string, fields?: object) => void lines.push(`${event} ${JSON.stringify(fields ?? {})}`);
  return { lines, take: () => lines.splice(0), debug: record, info: record, warn: record, error: record };
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
}

describe('PostgresRegistry', () => {
  let opened: OpenedDatabase;
  let folder: string;
  const run = (text: string, values?: readonly unknown[]) => opened.postgres.query(text, values);
  const open = (changes: Partial<PostgresRegistryOptions> = {}) => {
    const target = new Target();
    const clock = new FakeClock();
    const logger = recordingLogger();
    const registry = new PostgresRegistry({
      postgres: opened.postgres,
      target,
      seed: EMPTY,
      checks,
      lastGood: new LastGoodFile(folder),
      pollIntervalMs: 10_000,
      clock,
      logger,
      ...changes,
    });
    return { registry, target, clock, logger };
  };
  const openAway = () => {
    const away = new PostgresStore(postgresOptions('postgres://x@127.0.0.1:1/x'), silentLogger);
    away.start();
    return away;
  };

  before(async () => {
    opened = await openDatabase();
  });
  after(() => opened.close());
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'sticky-registry-'));
    await run('TRUNCATE gateway_service, gateway_node, gateway_route');
  });
  afterEach(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));

  test('seeds an empty database and reads back exactly what was written', async () => {
    const { registry, target, logger } = open({ seed: SEED });
    await registry.start();
    assert.deepEqual(target.snapshot?.definition, SEED);
    assert.equal(target.snapshot?.stale, false);
    assert.match(logger.lines.join(), /registry_seeded/);
    registry.stop();
  });

  test('seeds once when several gateways start together, and never a database that has services', async () => {
    const gateways = Array.from({ length: 5 }, () => open({ seed: SEED }));
    await Promise.all(gateways.map(({ registry }) => registry.start()));
    assert.equal(
      gateways.flatMap(({ logger }) => logger.lines).filter((line) => /registry_seeded/.test(line)).length,
      1,
    );
    for (const { target, registry } of gateways) {
      assert.deepEqual(target.ids, ['alpha', 'beta']);
      registry.stop();
    }
    const later = open({ seed: { services: [service('gamma')], routes: [] } });
    await later.registry.start();
    assert.deepEqual(later.target.ids, ['alpha', 'beta']);
    later.registry.stop();
  });

  test('writes a definition over the one that is there', async () => {
    await opened.postgres.transaction((client) => writeRegistry(client, SEED));
    const changed = {
      ...SEED,
      services: [service('alpha', { nodes: [node('alpha-1', { weight: 9 })] })],
      routes: [],
    };
    await opened.postgres.transaction((client) => writeRegistry(client, changed));
    const { registry, target } = open();
    await registry.start();
    assert.equal(target.snapshot?.definition.services[0]?.nodes[0]?.weight, 9);
    assert.equal(target.snapshot?.definition.services[0]?.affinity, 'user');
    registry.stop();
  });

  test('gives rows of an older gateway the defaults', async () => {
    const older = await openDatabase({ prepare: OLDER_TABLES });
    await older.postgres.query("UPDATE gateway_service SET enabled = NULL, login_path = ''");
    await older.postgres.query('UPDATE gateway_node SET enabled = NULL');
    const { registry, target } = open({ postgres: older.postgres });
    await registry.start();
    const expected = service('old', {
      name: 'Old',
      healthPath: null,
      nodes: [node('old-1', { baseUrl: 'http://127.0.0.1:9001' })],
    });
    assert.deepEqual(target.snapshot?.definition, { services: [expected], routes: [] });
    registry.stop();
    await older.close();
  });

  test('fills in what the options of a row do not name', async () => {
    await run(`INSERT INTO gateway_service (id, path_prefix, options) VALUES ('a', '/a',
      '{"affinity": null, "login": {"response": {"token": null}}, "health": {"failures": 9}}')`);
    await run(
      `INSERT INTO gateway_route (id, path_prefix, config) VALUES ('r', '/r', '{"versions": [{"version": "v", "service": "a"}]}')`,
    );
    const { registry, target } = open();
    await registry.start();
    const read = target.snapshot?.definition;
    assert.equal(read?.services[0]?.affinity, 'user');
    assert.deepEqual(read?.services[0]?.login.response, { ...DEFAULTS.service.login.response, token: null });
    assert.deepEqual(read?.services[0]?.health, { ...DEFAULTS.service.health, failures: 9 });
    assert.deepEqual(read?.routes[0]?.versions, [{ weight: 0, enabled: true, version: 'v', service: 'a' }]);
    registry.stop();
  });

  test('leaves out invalid rows by name, logs them once, and serves the others', async () => {
    await opened.postgres.transaction((client) => writeRegistry(client, SEED));
    await run('UPDATE gateway_service SET options = options || \'{"afinity": "none"}\' WHERE id = \'alpha\'');
    await run("INSERT INTO gateway_service (id, path_prefix) VALUES ('bad', 'no-slash'), ('zeta', '/zeta')");
    await run("UPDATE gateway_node SET base_url = 'nonsense' WHERE id = 'alpha-1'");
    await run(`INSERT INTO gateway_route (id, path_prefix, config) VALUES
      ('r-rules', '/1', '{"rules": 1}'), ('r-service', '/2', '{"versions": [{"version": "v", "service": "bad"}]}'),
      ('r-prefix', '/zeta', '{}'), ('zeta', '/3', '{}'),
      ('r-mixed', '/4', '{"versions": [{"version": "v1", "service": "alpha", "weight": 9}, {"version": "v2", "service": "zeta", "weight": 1}]}')`);
    const { registry, target, logger } = open();
    await registry.start();
    assert.deepEqual(target.ids, ['alpha', 'beta', 'zeta']);
    const alpha = target.snapshot?.definition.services[0];
    assert.deepEqual(
      alpha?.nodes.map(({ id }) => id),
      ['alpha-22'],
    );
    assert.equal(alpha?.defaultNodeId, null);
    assert.deepEqual(
      target.snapshot?.definition.routes.map(({ id }) => id),
      ['route'],
    );
    const problems = logger.take().filter((line) => line.startsWith('registry_row_invalid'));
    for (const expected of [
      /options\.afinity is not known/,
      /service bad is left out: pathPrefix/,
      /node alpha-1 is left out: baseUrl/,
      /default node alpha-1 is not among its nodes/,
      /route r-rules is left out/,
      /route r-service is left out: version v: there is no service bad/,
      /route r-prefix is left out: service zeta has the path prefix/,
      /route zeta is left out: a service has this id/,
      /route r-mixed is left out: version v2 has a share by weight and affinity: user, unlike version v1/,
    ]) {
      assert.equal(problems.filter((problem) => expected.test(problem)).length, 1, String(expected));
    }
    assert.equal(problems.length, 9);
    await registry.reload();
    assert.deepEqual(logger.take(), []);
    await run("DELETE FROM gateway_route WHERE id <> 'route'");
    await run("DELETE FROM gateway_service WHERE id = 'bad'");
    await run("UPDATE gateway_service SET options = options - 'afinity'");
    await run("UPDATE gateway_node SET base_url = 'http://127.0.0.1:1' WHERE id = 'alpha-1'");
    await registry.reload();
    assert.match(logger.take().join(), /registry_sound/);
    registry.stop();
  });

  test('names a node whose service does not exist, where no foreign key keeps it from being there', async () => {
    await run('ALTER TABLE gateway_node DROP CONSTRAINT gateway_node_service_id_fkey');
    await run("INSERT INTO gateway_node (id, service_id, base_url) VALUES ('stray', 'nowhere', 'http://127.0.0.1:1')");
    const { registry, logger } = open();
    await registry.start();
    assert.match(logger.lines.join(), /node stray: its service nowhere does not exist/);
    registry.stop();
  });

  test('swaps at a poll when something changed, and only then', async () => {
    const { registry, target, clock } = open({ seed: SEED });
    await registry.start();
    await registry.start();
    const first = registry.loadedAtMs ?? 0;
    clock.advance(10_000);
    await until(() => registry.loadedAtMs === first + 10_000 && clock.pending === 1);
    assert.equal(target.swaps, 1);
    await run("UPDATE gateway_node SET draining = 0 WHERE id = 'alpha-1'");
    clock.advance(10_000);
    await until(() => target.swaps === 2);
    assert.equal(target.snapshot?.definition.services[0]?.nodes[0]?.draining, false);
    registry.stop();
    assert.equal(clock.pending, 0);
  });

  test('lets calls during a load share the next one, which sees what they committed', async () => {
    let reads = 0;
    let held: Promise<void> | undefined;
    const counting = new Proxy(opened.postgres, {
      get: (postgres, name) => {
        const value = Reflect.get(postgres, name);
        if (name !== 'query') return typeof value === 'function' ? value.bind(postgres) : value;
        return async (...args: unknown[]) => {
          reads += 1;
          const answer = await value.apply(postgres, args);
          await held;
          return answer;
        };
      },
    });
    const { registry, target } = open({ postgres: counting });
    await registry.start();
    reads = 0;
    let release: () => void = () => undefined;
    held = new Promise((resolve) => {
      release = resolve;
    });
    const first = registry.reload();
    await until(() => reads === 1);
    await run("INSERT INTO gateway_service (id, path_prefix) VALUES ('new', '/new')");
    const rest = Array.from({ length: 20 }, () => registry.reload());
    release();
    assert.deepEqual(await Promise.all([first, ...rest]), Array(21).fill(true));
    assert.equal(reads, 2);
    assert.deepEqual(target.ids, ['new']);
    registry.stop();
  });

  test('keeps the last snapshot when a load fails, and tells its age', async () => {
    const metrics = new Metrics();
    const postgres = new PostgresStore(opened.options, silentLogger);
    postgres.start();
    const { registry, target, clock, logger } = open({ seed: SEED, metrics, postgres });
    assert.match(metrics.render(), /gateway_snapshot_age_seconds NaN/);
    await registry.start();
    await postgres.stop();
    clock.advance(10_000);
    await until(() => logger.lines.some((line) => line.startsWith('registry_load_failed')));
    await until(() => clock.pending === 1);
    assert.equal(await registry.reload(), false);
    assert.deepEqual(target.ids, ['alpha', 'beta']);
    assert.match(metrics.render(), /gateway_snapshot_age_seconds 10\n/);
    assert.match(metrics.render(), /gateway_registry_loads_total\{result="failed"\} 2/);
    postgres.start();
    assert.equal(await registry.reload(), true);
    assert.match(metrics.render(), /gateway_snapshot_age_seconds 0\n/);
    registry.stop();
    await postgres.stop();
  });

  test('starts from the last good file when PostgreSQL is away, and replaces it when it is back', async () => {
    const earlier = open({ seed: SEED });
    await earlier.registry.start();
    earlier.registry.stop();
    const loadedAtMs = earlier.target.snapshot?.loadedAtMs;
    const postgres = new PostgresStore(opened.options, silentLogger);
    let prepared = 0;
    const prepare = async () => {
      prepared += 1;
      await postgres.query('SELECT 1');
    };
    const { registry, target, clock } = open({ postgres, prepare });
    await registry.start();
    assert.deepEqual(target.snapshot, { definition: SEED, loadedAtMs, stale: true });
    assert.equal(registry.loadedAtMs, loadedAtMs);
    clock.advance(100);
    await until(() => clock.pending === 1);
    assert.equal(target.snapshot?.stale, true);
    postgres.start();
    clock.advance(200);
    await until(() => target.snapshot?.stale === false);
    assert.equal(target.swaps, 2);
    assert.equal(prepared, 3);
    await until(() => clock.pending === 1);
    clock.advance(10_000);
    await until(() => registry.loadedAtMs === clock.now());
    assert.equal(prepared, 3);
    registry.stop();
    await postgres.stop();
  });

  test('starts without a snapshot when there is no last good file, or none that can be read', async () => {
    const away = openAway();
    for (const content of [
      undefined,
      'torn {',
      '[]',
      'null',
      '{"format":1}',
      '{"format":1,"loadedAtMs":1,"definition":{}}',
      '{"format":9,"loadedAtMs":1,"definition":{"services":[],"routes":[]}}',
    ]) {
      if (content !== undefined) writeFileSync(join(folder, 'registry-last-good.json'), content);
      const { registry, target, clock, logger } = open({ postgres: away });
      await registry.start();
      assert.equal(target.snapshot, undefined);
      assert.equal(
        logger.lines.some((line) => /registry_last_good_unreadable/.test(line)),
        content !== undefined,
        content,
      );
      assert.equal(clock.pending, 1);
      registry.stop();
      assert.equal(clock.pending, 0);
    }
    await away.stop();
  });

  test('checks the last good file like the database: it may be of another version', async () => {
    const bad = service('bad', { pathPrefix: 'no-slash' });
    await new LastGoodFile(folder).write({ services: [...SEED.services, bad], routes: SEED.routes }, 5);
    const away = openAway();
    const { registry, target, logger } = open({ postgres: away });
    await registry.start();
    assert.deepEqual(target.ids, ['alpha', 'beta']);
    assert.match(logger.lines.join(), /service bad is left out/);
    registry.stop();
    await away.stop();
  });

  test('does not start on a PostgreSQL that refuses, and says why', async () => {
    const failing = open({ prepare: () => Promise.reject(new OperatorError('no permission')) });
    await assert.rejects(failing.registry.start(), /no permission/);
    assert.equal(failing.clock.pending, 0);
    const bare = await openDatabase();
    await bare.postgres.query('DROP TABLE gateway_route');
    const { registry, clock } = open({ postgres: bare.postgres });
    await assert.rejects(registry.start(), (error: Error) => {
      assert.ok(error instanceof OperatorError);
      assert.match(error.message, /gateway_route/);
      return true;
    });
    assert.equal(clock.pending, 0);
    await bare.close();
  });

  test('keeps trying when PostgreSQL refuses only after it was away', async () => {
    let answer: Error = new StoreUnavailable('postgres', new Error('away'));
    const { registry, clock, logger } = open({ prepare: () => Promise.reject(answer) });
    await registry.start();
    answer = new OperatorError('no permission');
    logger.take();
    clock.advance(5_000);
    await until(() => logger.lines.length > 0);
    assert.match(logger.lines[0] ?? '', /no permission/);
    await until(() => clock.pending === 1);
    registry.stop();
  });

  test('changes nothing once it is stopped, whatever is under way', async () => {
    let proceed = (): void => undefined;
    const held = new Promise<void>((resolve) => (proceed = resolve));
    const { registry, target, clock } = open({ seed: SEED, prepare: () => held });
    const started = registry.start();
    registry.stop();
    proceed();
    await started;
    assert.equal(target.snapshot, undefined);
    assert.equal(clock.pending, 0);
  });

  test('carries on when the last good file cannot be written', async () => {
    const file = join(folder, 'a-file');
    writeFileSync(file, '');
    const { registry, target, logger } = open({ seed: SEED, lastGood: new LastGoodFile(file) });
    await registry.start();
    assert.deepEqual(target.ids, ['alpha', 'beta']);
    assert.match(logger.lines.join(), /registry_last_good_not_written/);
    registry.stop();
  });
});

describe('LastGoodFile', () => {
  let folder: string;
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'sticky-last-good-'));
  });
  afterEach(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5 }));

  test('reads what was written last, from a folder it makes, for the owner only', async () => {
    const nested = join(folder, 'data', 'deep');
    const file = new LastGoodFile(nested);
    assert.equal(await file.read(), undefined);
    await file.write(EMPTY, 1);
    await file.write(SEED, 2);
    assert.deepEqual(await file.read(), { definition: SEED, loadedAtMs: 2 });
    assert.deepEqual(readdirSync(nested), ['registry-last-good.json']);
    assert.equal(statSync(join(nested, 'registry-last-good.json')).mode & 0o777, 0o600);
  });

  test('takes many writers at once and always holds one whole definition', async () => {
    await Promise.all(Array.from({ length: 20 }, (_, index) => new LastGoodFile(folder).write(SEED, index)));
    assert.deepEqual((await new LastGoodFile(folder).read())?.definition, SEED);
    assert.equal(readdirSync(folder).length, 1);
  });

  test('leaves the old file and no other behind when a write fails', async () => {
    const file = new LastGoodFile(folder);
    await file.write(EMPTY, 1);
    const cyclic = { services: [], routes: [] } as unknown as { services: unknown[]; routes: [] };
    cyclic.services.push(cyclic);
    await assert.rejects(file.write(cyclic as unknown as RegistryDefinition, 2), TypeError);
    assert.equal((await file.read())?.loadedAtMs, 1);
    assert.equal(readdirSync(folder).length, 1);
  });

  test('tells a file that cannot be read from one that is not there', async () => {
    rmSync(folder, { recursive: true });
    writeFileSync(folder, '');
    await assert.rejects(new LastGoodFile(folder).read(), OperatorError);
    rmSync(folder);
    assert.equal(await new LastGoodFile(folder).read(), undefined);
  });
});
