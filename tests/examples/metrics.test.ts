/** What the README says of the metrics, what a gateway really shows, and what the dashboard and the alerts ask for. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { parse } from 'yaml';
import { findPackageFile } from '../../lib/process/package-file.ts';
import { BackendNode } from '../support/backend-node.ts';
import { type GatewayFixture, openStores, type StoreSetup, startGateway } from '../support/gateway-fixture.ts';
import { call, postJson } from '../support/http-client.ts';

const ROOT = path.dirname(findPackageFile('package.json'));
const read = (name: string) => readFileSync(path.join(ROOT, name), 'utf8');

interface Documented {
  readonly type: string;
  readonly labels: readonly string[];
}

/** The table of the README, by name. */
function documented(): Map<string, Documented> {
  const table = new Map<string, Documented>();
  const rows = read('README.md').matchAll(
    /^\| (`(?:gateway|process|nodejs)_.*?) \| (counter|gauge|histogram) \| (.*?) ?\|/gm,
  );
  for (const [, names = '', type = '', labels = ''] of rows) {
    for (const [, name = ''] of names.matchAll(/`([a-z_]+)`/g)) {
      table.set(name, { type, labels: labels === '' ? [] : labels.split(', ') });
    }
  }
  return table;
}

const ONLY_WITH_SEVERAL_WORKERS = ['gateway_workers', 'gateway_worker_restarts_total'];
/** Made when it happens first: ten nodes that go down at once. */
const RARE = ['gateway_health_suspicions_total'];

describe('the metrics', () => {
  const node = new BackendNode('n1');
  let stores: StoreSetup;
  let gateway: GatewayFixture;
  let text: string;
  /** Type and label names, by name. */
  const shown = new Map<string, { type: string; labels: Set<string> }>();

  before(async () => {
    await node.start();
    node.handler = (_, response) => response.end();
    stores = await openStores('postgres+redis');
    const nodes = `nodes: [{ id: n1, baseUrl: "${node.baseUrl}" }]`;
    gateway = await startGateway({
      stores,
      nodes: [],
      config: 'health: { interval: 50ms }',
      services: [
        'services:',
        `  - { id: demo, pathPrefix: /js/a, loginPath: /auth/login, ${nodes} }`,
        `  - { id: web, pathPrefix: null, affinity: none, ${nodes.replace('id: n1', 'id: w1')} }`,
        'routes:',
        '  - { id: r, pathPrefix: /web, versions: [{ version: v1, service: web, weight: 1 }] }',
      ].join('\n'),
    });
    const token = await gateway.tokenOf('alice-in-no-label');
    await gateway.get('/js/a/x', token);
    await gateway.get('/web/x');
    await gateway.get('/nowhere');
    await postJson(gateway.port, '/js/a/auth/login', {});
    text = (await call(gateway.adminPort, '/metrics')).text;
    for (const [, name = '', type = ''] of text.matchAll(/^# TYPE (\S+) (\S+)$/gm)) {
      shown.set(name, { type, labels: new Set() });
    }
    for (const [, series = '', labels = ''] of text.matchAll(/^([a-z_]+)(?:\{(.*)\})? \S+$/gm)) {
      const family = shown.get(series) ?? shown.get(series.replace(/_(bucket|sum|count)$/, ''));
      assert.ok(family, series);
      for (const [, label = ''] of labels.matchAll(/([a-z_]+)="/g)) if (label !== 'le') family.labels.add(label);
    }
  });
  after(async () => {
    await gateway?.stop();
    await stores?.close();
    await node.stop();
  });

  it('are those of the README, with the types and labels it names', () => {
    const table = documented();
    assert.ok(table.size > 20, 'the table is found');
    for (const [name, { type, labels }] of shown) {
      const row = table.get(name);
      assert.ok(row, `the README does not have ${name}`);
      assert.equal(row.type, type, name);
      for (const label of labels)
        assert.ok(row.labels.includes(label), `the README lacks the label ${label} of ${name}`);
    }
    for (const [name, { labels }] of table) {
      if (ONLY_WITH_SEVERAL_WORKERS.includes(name) || RARE.includes(name)) continue;
      const family = shown.get(name);
      assert.ok(family, `the gateway does not show ${name}`);
      if (family.labels.size > 0) assert.deepEqual([...family.labels].sort(), [...labels].sort(), name);
    }
  });

  it('name no user and no token', () => {
    assert.doesNotMatch(text, /alice|tok-/);
  });

  it('have a help and a type each, once, and totals that end in _total', () => {
    for (const kind of ['HELP', 'TYPE']) {
      const names = [...text.matchAll(new RegExp(`^# ${kind} (\\S+) \\S`, 'gm'))].map(([, name]) => name);
      assert.deepEqual([...new Set(names)], names, kind);
      assert.equal(names.length, shown.size);
    }
    for (const [name, { type }] of shown) assert.equal(name.endsWith('_total'), type === 'counter', name);
  });

  it('are what the dashboard and the alerts ask for, by labels that there are', () => {
    const table = documented();
    const { panels } = JSON.parse(read('examples/grafana-dashboard.json')) as {
      panels: { targets: { expr: string }[] }[];
    };
    const { groups } = parse(read('examples/alerts.yaml')) as { groups: { rules: { expr: string }[] }[] };
    const expressions = [
      ...panels.flatMap(({ targets }) => targets.map(({ expr }) => expr)),
      ...groups.flatMap(({ rules }) => rules.map(({ expr }) => expr)),
    ];
    assert.ok(expressions.length > 20);
    for (const expression of expressions) {
      const names = [...expression.matchAll(/\b((?:gateway|process|nodejs)_[a-z_]+)/g)].map(([, name = '']) => name);
      assert.ok(names.length > 0, expression);
      const labels = new Set(['le', 'instance']);
      for (const name of names) {
        const row = table.get(name) ?? table.get(name.replace(/_(bucket|sum|count)$/, ''));
        assert.ok(row, `${name} in ${expression}`);
        for (const label of row.labels) labels.add(label);
      }
      const used = [
        ...[...expression.matchAll(/by \(([a-z, ]+)\)/g)].flatMap(([, list = '']) => list.split(', ')),
        ...[...expression.matchAll(/[{,]\s*([a-z_]+)=~?"/g)].map(([, label = '']) => label),
      ];
      for (const label of used) assert.ok(labels.has(label), `${label} in ${expression}`);
    }
  });
});
