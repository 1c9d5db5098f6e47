/** Differences of definitions, and the order in which they are pushed. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { planSteps } from '../../lib/cli/apply-plan.ts';
import { describeChange, titleOf } from '../../lib/cli/apply-text.ts';
import { type Definitions, diffDefinitions, type Form } from '../../lib/cli/diff.ts';
import { styleFor } from '../../lib/cli/style.ts';

const PLAIN = styleFor(false, {});

function service(id: string, nodes: readonly Form[], more: Form = {}): Form {
  return {
    id,
    pathPrefix: `/${id}`,
    defaultNodeId: null,
    login: { also: [], response: { userId: 'id', token: 't' } },
    ...more,
    nodes,
  };
}
const node = (id: string, more: Form = {}): Form => ({ id, baseUrl: `http://${id}:80`, weight: 1, ...more });
const route = (id: string, services: readonly string[], more: Form = {}): Form => ({
  id,
  pathPrefix: `/${id}`,
  versions: services.map((one) => ({ version: `v-${one}`, service: one, weight: 1 })),
  rules: [],
  ...more,
});
const all = (services: readonly Form[], routes: readonly Form[] = []): Definitions => ({ services, routes });
const titles = (before: Definitions, after: Definitions) => diffDefinitions(before, after).map(titleOf);
const order = (before: Definitions, after: Definitions) =>
  planSteps(diffDefinitions(before, after)).map(
    ({ change, circular }) => titleOf(change) + (circular ? ' (circular)' : ''),
  );

describe('the difference of two definitions', () => {
  it('is nothing when only the order of things or keys differs', () => {
    const before = all([service('a', [node('n1'), node('n2')]), service('b', [])], [route('r', ['a', 'b'])]);
    const after = all(
      [
        service('b', []),
        {
          nodes: [node('n2'), node('n1')],
          ...Object.fromEntries(
            Object.entries(service('a', []))
              .filter(([key]) => key !== 'nodes')
              .reverse(),
          ),
        } as Form,
      ],
      [route('r', ['a', 'b'])],
    );
    assert.deepEqual(diffDefinitions(before, after), []);
  });

  it('names fields down to the one that changed, with both values', () => {
    const before = all([service('a', [node('n1')])], [route('r', ['a', 'b'])]);
    const after = all(
      [
        service('a', [node('n1', { weight: 2 })], {
          login: { also: ['/sms'], response: { userId: 'id', token: null } },
        }),
      ],
      [
        route('r', ['a', 'b'], {
          versions: [
            { version: 'v-a', service: 'a', weight: 9 },
            { version: 'v-b', service: 'b', weight: 1 },
          ],
        }),
      ],
    );
    const changes = diffDefinitions(before, after);
    assert.deepEqual(
      changes.map(({ fields }) => fields),
      [
        [
          { field: 'login.also', before: [], after: ['/sms'] },
          { field: 'login.response.token', before: 't', after: null },
        ],
        [{ field: 'weight', before: 1, after: 2 }],
        [{ field: 'versions.v-a.weight', before: 1, after: 9 }],
      ],
    );
    const text = changes.flatMap((change) => describeChange(change, new Map(), PLAIN));
    assert.deepEqual(text, [
      '~ service a',
      '    login.also: [] -> ["/sms"]',
      '    login.response.token: t -> null',
      '~ node n1 of service a',
      '    weight: 1 -> 2',
      '~ route r',
      '    versions.v-a.weight: 1 -> 9',
    ]);
  });

  it('sees versions in another order', () => {
    const [change] = diffDefinitions(all([], [route('r', ['a', 'b'])]), all([], [route('r', ['b', 'a'])]));
    assert.deepEqual(change?.fields, [{ field: 'versions', before: ['v-a', 'v-b'], after: ['v-b', 'v-a'] }]);
  });

  it('has services that come or go as a whole, and says who is bound where something goes', () => {
    const changes = diffDefinitions(
      all([service('old', [node('o1'), node('o2')]), service('a', [node('n1')])]),
      all([service('new', [node('w1')]), service('a', [])]),
    );
    assert.deepEqual(changes.map(titleOf), ['add service new', 'remove node n1 of service a', 'remove service old']);
    const text = changes.flatMap((change) =>
      describeChange(
        change,
        new Map([
          ['o1', 2],
          ['o2', 3],
          ['n1', 1],
        ]),
        PLAIN,
      ),
    );
    assert.deepEqual(text, [
      '+ service new /new',
      '    + node w1 http://w1:80',
      '- node n1 of service a: 1 user is bound there, so the gateway will refuse it',
      '- service old: 5 users are bound there, so the gateway will refuse it',
    ]);
  });

  it('tells a terminal nothing but text', () => {
    const changes = diffDefinitions(all([]), all([service('a', [], { pathPrefix: '/\u001b[2J' })]));
    assert.deepEqual(
      changes.flatMap((change) => describeChange(change, new Map(), PLAIN)),
      ['+ service a /\\u001b[2J'],
    );
  });
});

describe('the order of steps', () => {
  it('puts what comes before what goes', () => {
    const before = all(
      [service('a', [node('n1'), node('n2')], { defaultNodeId: 'n1' }), service('old', [])],
      [route('r', ['old']), route('gone', ['old'])],
    );
    const after = all(
      [service('a', [node('n2', { weight: 3 }), node('n3')], { defaultNodeId: 'n3' }), service('new', [])],
      [route('r', ['new'])],
    );
    assert.deepEqual(order(before, after), [
      'add service new',
      'add node n3 of service a',
      'change node n2 of service a',
      'change service a',
      'change route r',
      'remove route gone',
      'remove node n1 of service a',
      'remove service old',
    ]);
  });

  it('lets go of a prefix, an id or an address first where another thing takes it', () => {
    const prefix = order(
      all([service('old', [], { pathPrefix: '/x' })]),
      all([service('new', [], { pathPrefix: '/x' })]),
    );
    assert.deepEqual(prefix, ['remove service old', 'add service new']);
    const moved = order(
      all([service('a', [node('n1'), node('n2')]), service('b', [])]),
      all([service('a', [node('n2')]), service('b', [node('n1')])]),
    );
    assert.deepEqual(moved, ['remove node n1 of service a', 'add node n1 of service b']);
    const renamed = order(
      all([service('a', [node('n1')])]),
      all([service('a', [node('n9', { baseUrl: 'http://n1:80' })])]),
    );
    assert.deepEqual(renamed, ['remove node n1 of service a', 'add node n9 of service a']);
    const handed = order(
      all([service('a', [], { pathPrefix: '/x' }), service('b', [])]),
      all([service('a', [], { pathPrefix: '/y' }), service('b', [], { pathPrefix: '/x' })]),
    );
    assert.deepEqual(handed, ['change service a', 'change service b']);
    const toRoute = order(
      all([service('a', [], { pathPrefix: '/x' })]),
      all([service('a', [], { pathPrefix: null })], [route('r', ['a'], { pathPrefix: '/x' })]),
    );
    assert.deepEqual(toRoute, ['change service a', 'add route r']);
  });

  it('knows a swap for what it is', () => {
    const swapped = order(
      all([service('a', [], { pathPrefix: '/x' }), service('b', [], { pathPrefix: '/y' })]),
      all([service('a', [], { pathPrefix: '/y' }), service('b', [], { pathPrefix: '/x' })]),
    );
    assert.deepEqual(swapped, ['change service a (circular)', 'change service b']);
  });

  it('has calls that leave the nodes of a changed service alone', () => {
    const before = all([service('a', [node('n1')])]);
    const after = all([service('a', [node('n1'), node('n/2')], { pathPrefix: '/z' })]);
    const steps = planSteps(diffDefinitions(before, after));
    assert.deepEqual(
      steps.map(({ method, path }) => `${method} ${path}`),
      ['POST /api/services/a/nodes', 'PUT /api/services/a'],
    );
    assert.equal(steps[1]?.body && 'nodes' in steps[1].body, false);
    const [removal] = planSteps(diffDefinitions(after, before)).filter(({ method }) => method === 'DELETE');
    assert.equal(removal?.path, '/api/services/a/nodes/n%2F2');
  });

  it('does nothing for what stays', () => {
    assert.deepEqual(titles(all([service('a', [node('n1')])]), all([service('a', [node('n1')])])), []);
  });
});
