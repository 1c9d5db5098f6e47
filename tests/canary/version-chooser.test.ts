/** Shares by weight: how large they are, that they only grow or shrink, and that every gateway computes the same. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SmoothWeighted } from '../../lib/balance/smooth-weighted.ts';
import { VersionChooser } from '../../lib/canary/version-chooser.ts';
import type { RouteRule } from '../../lib/model.ts';
import { seededRandom } from '../balance/services.ts';
import { type RouteSketch, routeOf, routeSnapshot, userIds } from './routes.ts';

const USERS = userIds(10_000);

function chooserOf(down: ReadonlySet<string> = new Set()): VersionChooser {
  return new VersionChooser({
    turns: () => new SmoothWeighted(),
    isUsable: (healthKey) => !down.has(healthKey),
    random: seededRandom(7),
  });
}

/** Version of each user. */
function divide(sketch: RouteSketch, chooser = chooserOf()): string[] {
  const plan = chooser.planOf(routeOf(sketch));
  return USERS.map((user) => chooser.byWeight(plan, user).id);
}

function countOf(versions: readonly string[], version: string): number {
  return versions.filter((one) => one === version).length;
}

function weightRule(value: number, version = 'v2'): RouteRule {
  return { type: 'weight', value, version };
}

function between(count: number, least: number, most: number): void {
  assert.ok(count >= least && count <= most, `${count} is not from ${least} to ${most}`);
}

describe('weights', () => {
  it('give 10 percent of 10,000 users to a version with weight 10 of 100', () => {
    between(countOf(divide({ weights: { v1: 90, v2: 10 } }), 'v2'), 900, 1_100);
  });

  it('give shares by weight to several versions, whatever the sum', () => {
    const versions = divide({ weights: { v1: 5, v2: 3, v3: 2, v4: 0 } });
    between(countOf(versions, 'v1'), 4_800, 5_200);
    between(countOf(versions, 'v2'), 2_800, 3_200);
    between(countOf(versions, 'v3'), 1_800, 2_200);
    assert.equal(countOf(versions, 'v4'), 0);
  });

  it('only add users when raised, and only remove them when lowered, down to none', () => {
    let before = divide({ weights: { v1: 90, v2: 10 } });
    for (const [weight, raised] of [
      [25, true],
      [50, true],
      [5, false],
      [0, false],
    ] as const) {
      const now = divide({ weights: { v1: 100 - weight, v2: weight } });
      const [from, to] = raised ? [before, now] : [now, before];
      from.forEach((version, index) => {
        if (version === 'v2') assert.equal(to[index], 'v2', `${USERS[index]} at ${weight}`);
      });
      assert.notEqual(countOf(from, 'v2'), countOf(to, 'v2'));
      before = now;
    }
    assert.equal(countOf(before, 'v2'), 0);
  });

  it('move users only to the version that was raised, also among four, and in the middle', () => {
    const weights = { v1: 40, v2: 20, v3: 30, v4: 10 };
    const before = divide({ weights });
    for (const name of ['v1', 'v2', 'v3', 'v4'] as const) {
      const after = divide({ weights: { ...weights, [name]: weights[name] * 2 } });
      let moved = 0;
      after.forEach((version, index) => {
        if (version === before[index]) return;
        moved += 1;
        assert.equal(version, name, `${USERS[index]} came from ${before[index]}`);
      });
      assert.ok(moved > 0);
    }
  });

  it('move nobody but its own users when a version is switched off, or new', () => {
    const weights = { v1: 50, v2: 30, v3: 20 };
    const before = divide({ weights });
    const without = divide({ weights, disabled: ['v2'] });
    assert.equal(countOf(without, 'v2'), 0);
    before.forEach((version, index) => {
      if (version !== 'v2') assert.equal(without[index], version);
    });
  });

  it('are the same on every gateway, in whatever order the file names the versions', () => {
    const here = divide({ weights: { v1: 60, v2: 30, v3: 10 } });
    assert.deepEqual(divide({ weights: { v3: 10, v1: 60, v2: 30 } }), here);
  });

  it('do not drift with the number of requests', () => {
    const chooser = chooserOf();
    const sketch = { weights: { v1: 90, v2: 10 } };
    const first = divide(sketch, chooser);
    const plan = chooser.planOf(routeOf(sketch));
    for (let count = 0; count < 1_000; count += 1) chooser.byWeight(plan, null);
    for (let round = 0; round < 3; round += 1) assert.deepEqual(divide(sketch, chooser), first);
  });

  it('do not choose the same first users for every route', () => {
    const one = divide({ weights: { v1: 90, v2: 10 } });
    const other = divide({ id: 'orders', weights: { v1: 90, v2: 10 } });
    const both = one.filter((version, index) => version === 'v2' && other[index] === 'v2').length;
    between(both, 50, 150);
  });

  it('are not needed where there is one version', () => {
    assert.equal(countOf(divide({ weights: { v1: 0 } }), 'v1'), 10_000);
  });

  it('send nobody to a version with weight 0 because the others are switched off', () => {
    assert.throws(() => divide({ weights: { v1: 100, v2: 0 }, disabled: ['v1'] }), { code: 'no_node_available' });
    assert.throws(() => divide({ weights: { v1: 100, v2: 1 }, disabled: ['v1', 'v2'] }), { code: 'service_disabled' });
  });
});

describe('a weight rule', () => {
  it('takes its percentage of the users first, and the weight of its version does not add to it', () => {
    const versions = divide({ weights: { v1: 90, v2: 10 }, rules: [weightRule(10)] });
    between(countOf(versions, 'v2'), 900, 1_100);
    between(countOf(versions, 'v1'), 8_900, 9_100);
  });

  it('only adds users when raised, and only removes them when lowered: 10, 25, 50, 5, 0, 100', () => {
    const at = (value: number) => divide({ weights: { v1: 80, v2: 10, v3: 10 }, rules: [weightRule(value)] });
    const steps = [10, 25, 50, 5, 0, 100];
    const results = steps.map(at);
    steps.forEach((value, index) => {
      const now = results[index] ?? [];
      between(countOf(now, 'v2'), value * 100 - 150, value * 100 + 150);
      const next = results[index + 1];
      if (!next) return;
      const [few, many] = value < (steps[index + 1] ?? 0) ? [now, next] : [next, now];
      few.forEach((version, user) => {
        if (version === 'v2') assert.equal(many[user], 'v2');
        // Whoever is not taken stays where the weights have put them.
        else if (many[user] !== 'v2') assert.equal(many[user], version);
      });
    });
    assert.equal(countOf(at(0), 'v2'), 0);
    assert.equal(countOf(at(100), 'v2'), 10_000);
  });

  it('is one after the other: the second takes its percentage of those left', () => {
    const versions = divide({ weights: { v1: 1, v2: 0, v3: 0 }, rules: [weightRule(20), weightRule(50, 'v3')] });
    between(countOf(versions, 'v2'), 1_900, 2_100);
    between(countOf(versions, 'v3'), 3_850, 4_150);
  });

  it('does not take the same first users on every route', () => {
    const sketch = { weights: { v1: 1, v2: 0 }, rules: [weightRule(10)] };
    const other = divide({ ...sketch, id: 'orders' });
    const both = divide(sketch).filter((version, index) => version === 'v2' && other[index] === 'v2').length;
    between(both, 50, 150);
  });

  it('is left out when its version is switched off', () => {
    const versions = divide({ weights: { v1: 90, v2: 10 }, rules: [weightRule(10)], disabled: ['v2'] });
    assert.equal(countOf(versions, 'v1'), 10_000);
  });

  it('leaves the rest to its own version only when nobody else is there', () => {
    const versions = divide({ weights: { v1: 90, v2: 10 }, rules: [weightRule(10)], disabled: ['v1'] });
    assert.equal(countOf(versions, 'v2'), 10_000);
  });
});

describe('requests of nobody', () => {
  const draw = (chooser: VersionChooser, sketch: RouteSketch, times: number): string[] => {
    const plan = chooser.planOf(routeOf(sketch));
    return Array.from({ length: times }, () => chooser.byWeight(plan, null).id);
  };

  it('take turns by weight: 3 to 1 is A A B A', () => {
    assert.equal(draw(chooserOf(), { weights: { A: 3, B: 1 } }, 8).join(''), 'AABAAABA');
  });

  it('draw within 2 percent of a weight rule, 100,000 times', () => {
    const drawn = draw(chooserOf(), { weights: { v1: 90, v2: 10 }, rules: [weightRule(10)] }, 100_000);
    between(countOf(drawn, 'v2'), 9_800, 10_200);
    between(countOf(drawn, 'v1'), 89_800, 90_200);
  });

  it('keep their turns over a change that leaves the route alone, and lose them with it', () => {
    const sketch = { weights: { A: 3, B: 1 } };
    const chooser = chooserOf();
    assert.equal(draw(chooser, sketch, 2).join(''), 'AA');
    chooser.update(routeSnapshot(sketch));
    assert.equal(draw(chooser, sketch, 2).join(''), 'BA');
    assert.equal(draw(chooser, sketch, 2).join(''), 'AA');
    chooser.update(routeSnapshot({ id: 'other', weights: { A: 1 } }));
    assert.equal(draw(chooser, sketch, 2).join(''), 'AA', 'from the beginning');
  });
});

describe('a version without a usable node', () => {
  const down = new Set(['http://n-v2:80/health']);
  const sketch = { weights: { v1: 50, v2: 40, v3: 10 } };

  it('keeps its users', () => {
    assert.deepEqual(divide(sketch, chooserOf(down)), divide(sketch));
  });

  it('gives them to the others with fallback, and everybody else stays', () => {
    const before = divide(sketch);
    const versions = divide({ ...sketch, fallback: true }, chooserOf(down));
    assert.equal(countOf(versions, 'v2'), 0);
    before.forEach((version, index) => {
      if (version !== 'v2') assert.equal(versions[index], version);
    });
  });

  it('is stood in for by the version of a weight rule, but never by one that gets nobody', () => {
    const rule = { weights: { v1: 90, v2: 0, v3: 0 }, rules: [weightRule(10, 'v3')], fallback: true };
    assert.equal(countOf(divide(rule, chooserOf(new Set(['http://n-v1:80/health']))), 'v3'), 10_000);
    const all = new Set(['http://n-v1:80/health', 'http://n-v3:80/health']);
    assert.deepEqual(divide(rule, chooserOf(all)), divide({ ...rule, fallback: false }), 'v2 has no share');
  });
});

describe('the plan of a route', () => {
  it('knows a version that everybody gets, so that nobody needs to be known', () => {
    const only = (sketch: RouteSketch) => chooserOf().planOf(routeOf(sketch)).only?.id;
    assert.equal(only({ weights: { v1: 0 } }), 'v1');
    assert.equal(only({ weights: { v1: 1, v2: 1 }, disabled: ['v2'] }), 'v1');
    assert.equal(only({ weights: { v1: 1, v2: 0 }, affinity: 'none' }), 'v1');
    assert.equal(only({ weights: { v1: 1, v2: 0 } }), undefined, 'users may be bound in v2');
    assert.equal(only({ weights: { v1: 1, v2: 0 }, affinity: 'none', fallback: true }), undefined);
    assert.equal(only({ weights: { v1: 1, v2: 0 }, affinity: 'none', rules: [weightRule(1)] }), undefined);
    assert.equal(only({ weights: { v1: 0, v2: 1 }, disabled: ['v2'] }), undefined, 'weight 0 gets nothing');
  });

  it('has the rules in order, without those of versions that are switched off', () => {
    const rule = (value: string, version: string): RouteRule => ({ type: 'header', name: 'X', value, version });
    const chooser = chooserOf();
    const route = routeOf({
      weights: { v1: 1, v2: 1, v3: 1 },
      disabled: ['v3'],
      rules: [rule('a', 'v3'), rule('a', 'v2'), rule('a', 'v1'), rule('b', 'v1')],
    });
    const byRule = (value: string) =>
      chooser.byRule(chooser.planOf(route), { rawHeaders: ['X', value], target: '/' })?.id;
    assert.deepEqual([byRule('a'), byRule('b'), byRule('c')], ['v2', 'v1', undefined]);
  });
});
