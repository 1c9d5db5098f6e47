/** Definitions from elsewhere than a file: rows and bodies, in the form of the model or of the file. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DEFAULTS } from '../../lib/config/options.ts';
import {
  checkNodeDefinition,
  checkRegistry,
  checkRouteDefinition,
  checkServiceDefinition,
  storedChecks,
} from '../../lib/config/stored-definitions.ts';
import type { NodeDefinition, RouteDefinition, ServiceDefinition } from '../../lib/model.ts';

function definitionOf<T>(checked: { definition: T } | { problems: readonly unknown[] }): T {
  if ('definition' in checked) return checked.definition;
  throw new Error(JSON.stringify(checked.problems));
}

const node = (id: string, baseUrl: string): NodeDefinition => definitionOf(checkNodeDefinition({ id, baseUrl }, id));
const service = (id: string, more: object = {}): ServiceDefinition =>
  definitionOf(checkServiceDefinition({ id, pathPrefix: `/${id}`, nodes: [], ...more }, id));
const route = (id: string, more: object = {}): RouteDefinition =>
  definitionOf(
    checkRouteDefinition({ id, pathPrefix: `/${id}`, versions: [{ version: 'v1', service: 'a' }], ...more }, id),
  );

describe('a service from a store', () => {
  it('may leave gaps, which take the defaults', () => {
    assert.deepEqual(service('a'), {
      ...DEFAULTS.service,
      id: 'a',
      name: 'a',
      pathPrefix: '/a',
      healthPath: '/health',
      nodes: [],
    });
  });

  it('is read in the form of the model and in that of the file, to the same end', () => {
    const ofModel = service('a', {
      health: { intervalMs: 5_000, timeoutMs: null },
      timeouts: { idleMs: 1 },
      upstream: { hostHeader: 'node' },
    });
    const ofFile = service('a', {
      health: { interval: '5s', timeout: null },
      timeouts: { idle: '1ms' },
      hostHeader: 'node',
    });
    assert.deepEqual(ofModel, ofFile);
    assert.deepEqual(ofModel.health, { ...DEFAULTS.service.health, intervalMs: 5_000 });
    assert.deepEqual(definitionOf(checkServiceDefinition(ofModel, 'a')), ofModel, 'and again from what came out');
  });

  const refused: readonly (readonly [string, unknown, string])[] = [
    ['nothing', undefined, 'x: must be a mapping with keys such as id, name, pathPrefix, not null'],
    ['a list', [], 'x: must be a mapping with keys such as id, name, pathPrefix, not a list'],
    [
      'health that is text',
      { id: 'a', health: 'soon' },
      'x.health: must be a mapping with keys such as interval, timeout, failures, not text',
    ],
    ['an upstream that is text', { id: 'a', upstream: 'no' }, 'x.upstream: unknown key'],
    [
      'an unknown setting of the upstream',
      { id: 'a', upstream: { insecur: true } },
      'x.insecur: unknown key (did you mean insecure?)',
    ],
    [
      'a duration in both forms',
      { id: 'a', health: { interval: '5s', intervalMs: 6_000 } },
      'x.health.intervalMs: unknown key (did you mean interval?)',
    ],
    [
      'a negative duration',
      { id: 'a', timeouts: { idleMs: -1 } },
      "x.timeouts.idle: must be a duration such as 250ms, 5s, 2m or 24h, not '-1ms'",
    ],
    [
      'a default node that is no text',
      { id: 'a', defaultNodeId: 7 },
      'x.defaultNodeId: must be text, not 7 (quote it: "7")',
    ],
  ];
  for (const [title, value, problem] of refused) {
    it(`is refused with its place: ${title}`, () => {
      const checked = checkServiceDefinition(value, 'x');
      assert.ok('problems' in checked, 'it is refused');
      assert.deepEqual(
        checked.problems.map(({ path, message }) => `${path}: ${message}`),
        [problem],
      );
      assert.throws(() => storedChecks.service(value, 'x'), { message: problem });
    });
  }
});

describe('definitions put together', () => {
  it('have no problem when they fit, be it a service that no route names yet', () => {
    const services = [
      service('a', { defaultNodeId: 'n1', nodes: [node('n1', 'http://h:1')] }),
      service('b', { pathPrefix: null }),
    ];
    assert.deepEqual(checkRegistry({ services, routes: [route('r')] }), []);
  });

  it('are reported for every clash and every reference that leads nowhere', () => {
    const services = [
      service('a', { defaultNodeId: 'n9', nodes: [node('n1', 'http://h:80'), node('n2', 'http://H')] }),
      service('b', { pathPrefix: '/a', nodes: [node('n1', 'http://h:3')] }),
      service('a', { pathPrefix: '/c' }),
    ];
    const routes = [route('b', { pathPrefix: '/' }), route('r', { versions: [{ version: 'v1', service: 'zz' }] })];
    assert.deepEqual(
      checkRegistry({ services, routes })
        .map(({ path, message }) => `${path}: ${message}`)
        .sort(),
      [
        "routes[0].id: 'b' is the id of services[1] already",
        "routes[1].versions[0].service: names no service: 'zz'",
        "services[0].defaultNodeId: names no node of this service: 'n9'",
        'services[0].nodes[1].baseUrl: is the address of services[0].nodes[0] already',
        "services[1].nodes[0].id: 'n1' is the id of services[0].nodes[0] already: node ids are unique across services",
        "services[1].pathPrefix: '/a' is the prefix of services[0] already",
        "services[2].id: 'a' is the id of services[0] already",
      ],
    );
  });
});
