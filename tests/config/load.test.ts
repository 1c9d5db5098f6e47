/** What a sound file becomes: defaults, units, the environment, and the examples. */
import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { describe, it } from 'node:test';
import { loadConfig } from '../../lib/config/load.ts';
import { DEFAULTS, type GatewayOptions } from '../../lib/config/options.ts';
import { serviceForm, storedChecks } from '../../lib/config/stored-definitions.ts';
import { findPackageFile } from '../../lib/process/package-file.ts';

const LEAST = 'services: [{ id: a, pathPrefix: /a, nodes: [{ id: n1, baseUrl: "http://h:1" }] }]';

function load(text: string, environment: Record<string, string> = {}): GatewayOptions {
  const loaded = loadConfig(text, '/etc/gateway/g.yaml', environment);
  if ('problems' in loaded) throw new Error(JSON.stringify(loaded.problems, null, 1));
  return loaded.options;
}

describe('a configuration', () => {
  it('needs services alone, and everything else has its default', () => {
    const options = load(LEAST);
    const { dataDir, ...store } = options.store;
    assert.equal(dataDir, '/etc/gateway/gateway-data', 'from the folder of the file');
    assert.deepEqual(store, { postgres: null, redis: null });
    const same = [
      'listen',
      'workers',
      'trustedProxies',
      'allow',
      'cache',
      'identity',
      'registry',
      'health',
      'timeouts',
      'limits',
      'cors',
      'via',
      'log',
      'admin',
      'shutdown',
    ] as const;
    for (const key of same) assert.deepEqual(options[key], DEFAULTS[key], key);
    const [service] = options.registryDefinition.services;
    assert.deepEqual(service, {
      ...DEFAULTS.service,
      id: 'a',
      name: 'a',
      pathPrefix: '/a',
      healthPath: '/health',
      nodes: [{ ...DEFAULTS.node, id: 'n1', baseUrl: 'http://h:1' }],
    });
  });

  it('reads durations and sizes in every unit', () => {
    const options = load(`${LEAST}
timeouts: { connect: 250ms, response: 5s, idle: 2m, requestHead: 1.5s, keepAlive: 24h }
limits: { loginRequest: 1B, loginResponse: 64KB, header: 10MB, body: 1GB }
`);
    assert.deepEqual(options.timeouts, {
      connectMs: 250,
      responseMs: 5_000,
      idleMs: 120_000,
      requestHeadMs: 1_500,
      keepAliveMs: 86_400_000,
    });
    assert.deepEqual(options.limits, {
      loginRequestBytes: 1,
      loginResponseBytes: 65_536,
      headerBytes: 10_485_760,
      bodyBytes: 1_073_741_824,
      connectionsPerNode: null,
    });
  });

  it('keeps a zero where zero means something, and does not take it for "not set"', () => {
    const options = load(
      `${LEAST}\ncache: { ttl: 0s, staleIfError: 0s }\nshutdown: { grace: 0s }\nhealth: { jitter: 0 }\n`,
    );
    assert.deepEqual(
      [options.cache.ttlMs, options.cache.staleIfErrorMs, options.shutdown.graceMs, options.health.jitter],
      [0, 0, 0, 0],
    );
  });

  it('reads every form of a listen address', () => {
    const { listen } = load(
      `${LEAST}\nlisten: [":80", "127.0.0.1:0", "[::1]:8443", { host: h, port: 1, tls: { cert: c.pem, key: /k.pem } }]`,
    );
    assert.deepEqual(listen, [
      { host: '0.0.0.0', port: 80, tls: null },
      { host: '127.0.0.1', port: 0, tls: null },
      { host: '::1', port: 8443, tls: null },
      { host: 'h', port: 1, tls: { cert: '/etc/gateway/c.pem', key: '/k.pem' } },
    ]);
  });

  it('takes values from the environment, as values and never as structure', () => {
    const options = load(
      `${LEAST}\nvia: "\${VIA}"\nworkers: "\${WORKERS:-1}"\nlog: { access: "\${ACCESS}", level: "\${LEVEL:-debug}" }\nstore: { dataDir: "$\${plain}" }`,
      {
        VIA: 'edge',
        ACCESS: 'false',
        LEVEL: '',
      },
    );
    assert.equal(options.via, 'edge');
    assert.equal(options.workers, 1);
    assert.deepEqual(options.log, { level: 'debug', access: false, format: 'json' });
    assert.equal(options.store.dataDir, '/etc/gateway/${plain}');
    const tricky = load(`${LEAST}\nstore: { redis: { url: "\${URL}" } }`, { URL: 'redis://h/0#}, x: {' });
    assert.deepEqual(tricky.store.redis?.target, { kind: 'single', url: 'redis://h/0#}, x: {' });
  });

  it('lets a probe have a query, for all services and for one', () => {
    const { health, registryDefinition } = load(
      `health: { path: "/h?a=1" }\n${LEAST.replace('pathPrefix', 'healthPath: "/h?b=1", pathPrefix')}`,
    );
    assert.deepEqual([health.path, registryDefinition.services[0]?.healthPath], ['/h?a=1', '/h?b=1']);
  });

  it('keeps the admin listener on the loopback when only its port is given', () => {
    assert.deepEqual(load(`${LEAST}\nadmin: { listen: { port: 9999 } }`).admin.listen, {
      host: '127.0.0.1',
      port: 9999,
      tls: null,
    });
  });

  it('takes an anchor and its aliases for the same value', () => {
    const { registryDefinition } = load(`services:
  - { id: a, pathPrefix: /a, loginPath: /l, login: &login { response: { success: { ok: true } } }, nodes: [] }
  - { id: b, pathPrefix: /b, loginPath: /l, login: *login, nodes: [] }`);
    assert.deepEqual(registryDefinition.services[1]?.login, registryDefinition.services[0]?.login);
  });

  it('reads PostgreSQL, and Redis in its three forms', () => {
    const single = load(
      `${LEAST}\nstore: { postgres: { url: "postgres://h/d", poolSize: 3 }, redis: { url: "rediss://h", timeout: 1s } }`,
    );
    assert.deepEqual(single.store.postgres, { ...DEFAULTS.postgres, url: 'postgres://h/d', poolSize: 3 });
    assert.deepEqual(single.store.redis, { target: { kind: 'single', url: 'rediss://h' }, timeoutMs: 1_000 });
    const cluster = load(`${LEAST}\nstore: { redis: { cluster: ["redis://a", "redis://b"] } }`);
    assert.deepEqual(cluster.store.redis?.target, { kind: 'cluster', nodes: ['redis://a', 'redis://b'] });
    const sentinel = load(`${LEAST}\nstore: { redis: { sentinels: ["redis://a"], name: m } }`);
    assert.deepEqual(sentinel.store.redis?.target, { kind: 'sentinel', sentinels: ['redis://a'], name: 'm' });
  });

  it('reads the resolvers, and gives Sa-Token the name of the header', () => {
    const { identity } = load(`${LEAST}
store: { redis: { url: "redis://h" } }
identity:
  token: { header: Authorization, prefix: Bearer }
  resolvers:
    - saToken: { loginTypes: [login, admin], activeTimeout: 30m, codec: json }
    - jwt: { secret: s, saToken: { loginType: login } }
    - jwt: { publicKey: key.pem, algorithms: [ES256], issuer: i, audience: a, leeway: 5s, claim: user.id }
    - redis: { redis: { url: "redis://other" }, key: "sess:{token}", jsonPath: passport.user }
`);
    assert.deepEqual(identity.resolvers, [
      {
        type: 'saToken',
        redis: null,
        tokenName: 'Authorization',
        loginTypes: ['login', 'admin'],
        keyPrefix: '',
        codec: 'json',
        activeTimeoutSeconds: 1_800,
        dynamicActiveTimeout: false,
      },
      {
        type: 'jwt',
        secret: 's',
        publicKey: null,
        jwksFile: null,
        algorithms: ['HS256'],
        claim: 'sub',
        issuer: null,
        audience: null,
        leewayMs: 0,
        saToken: { loginType: 'login' },
      },
      {
        type: 'jwt',
        secret: null,
        publicKey: '/etc/gateway/key.pem',
        jwksFile: null,
        algorithms: ['ES256'],
        claim: 'user.id',
        issuer: 'i',
        audience: 'a',
        leewayMs: 5_000,
        saToken: null,
      },
      {
        type: 'redis',
        redis: { target: { kind: 'single', url: 'redis://other' }, timeoutMs: 100 },
        key: 'sess:{token}',
        field: null,
        jsonPath: 'passport.user',
      },
    ]);
  });

  it('reads a whole service and a route', () => {
    const { registryDefinition } = load(`
health: { path: null }
services:
  - id: a
    name: A
    loginPath: /login
    defaultNodeId: n1
    login: { also: [/sms], request: { username: user.name }, response: { success: { ok: true, code: "0" }, userId: id, username: null, token: "cookie:SID" } }
    health: { interval: 1s, timeout: 2s, failures: 4, jitter: 0.3, onDemand: 2s, tiers: { regular: 20s, stable: 1m, degraded: 3m, stableAfter: 4, degradedAfter: 2 } }
    timeouts: { connect: 1s, response: 2s, idle: 3s }
    hostHeader: node
    ca: ca.pem
    insecure: true
    placement: least-users
    nodes: [{ id: n1, baseUrl: "https://h/", name: N, enabled: false, draining: true, weight: 0.5, maxUsers: 10, remark: r }]
routes:
  - id: r
    pathPrefix: /
    fallback: true
    versions: [{ version: v1, service: a, weight: 90, enabled: false }]
    rules: [{ type: header, name: X, value: y, version: v1 }, { type: weight, value: 10, version: v1 }]
`);
    const [service] = registryDefinition.services;
    assert.ok(service, 'the service is there');
    assert.equal(service.pathPrefix, null);
    assert.equal(service.healthPath, null, 'a TCP connect, from the global path');
    assert.deepEqual(service.login, {
      also: ['/sms'],
      request: { username: 'user.name' },
      response: { success: { ok: true, code: '0' }, userId: 'id', username: null, token: 'cookie:SID' },
    });
    assert.deepEqual(service.health, {
      intervalMs: 1_000,
      timeoutMs: 2_000,
      failures: 4,
      jitter: 0.3,
      onDemandMs: 2_000,
      tiers: { regularMs: 20_000, stableMs: 60_000, degradedMs: 180_000, stableAfter: 4, degradedAfter: 2 },
    });
    assert.deepEqual(service.timeouts, { connectMs: 1_000, responseMs: 2_000, idleMs: 3_000 });
    assert.deepEqual(service.upstream, { hostHeader: 'node', ca: '/etc/gateway/ca.pem', insecure: true });
    assert.deepEqual(service.nodes, [
      {
        id: 'n1',
        name: 'N',
        baseUrl: 'https://h',
        enabled: false,
        draining: true,
        weight: 0.5,
        maxUsers: 10,
        remark: 'r',
      },
    ]);
    assert.deepEqual(registryDefinition.routes, [
      {
        id: 'r',
        pathPrefix: '/',
        enabled: true,
        fallback: true,
        versions: [{ version: 'v1', service: 'a', weight: 90, enabled: false }],
        rules: [
          { type: 'header', name: 'X', value: 'y', version: 'v1' },
          { type: 'weight', value: 10, version: 'v1' },
        ],
      },
    ]);
    assert.deepEqual(
      storedChecks.service({ ...service, nodes: [] }, 'services.a'),
      { ...service, nodes: [] },
      'and is the same when it comes back from a store',
    );
    assert.deepEqual(storedChecks.node(service.nodes[0], 'node'), service.nodes[0]);
    assert.deepEqual(storedChecks.route(registryDefinition.routes[0], 'route'), registryDefinition.routes[0]);
    assert.throws(
      () =>
        storedChecks.service(
          { ...service, pathPrefix: 'x', health: { ...service.health, intervalMs: 'soon' } },
          'services.a',
        ),
      /services\.a\.pathPrefix: must start with '\/'.*services\.a\.health\.interval: must be a duration/,
    );
    assert.deepEqual(serviceForm(service)['timeouts'], {
      connect: '1000ms',
      response: '2000ms',
      idle: '3000ms',
    });
  });

  for (const name of ['quickstart.yaml', 'production.yaml', 'canary.yaml']) {
    it(`in examples/${name} has no mistakes`, () => {
      const file = findPackageFile(path.join('examples', name));
      const environment = {
        DATABASE_URL: 'postgres://h/d',
        REDIS_URL: 'redis://h',
        ADMIN_TOKEN: '0123456789abcdef',
      };
      const loaded = loadConfig(fs.readFileSync(file, 'utf8'), file, environment);
      assert.deepEqual('problems' in loaded ? loaded.problems : [], []);
    });
  }
});
