import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LoginCandidates } from '../../lib/bindings/login-candidates.ts';
import type { Node } from '../../lib/model.ts';
import { Seeded } from '../support/seeded.ts';

const NODES = ['n1', 'n2'].map((id) => ({ id }) as Node);
const always = () => true;

function setUp() {
  const released: string[] = [];
  return { released, candidates: new LoginCandidates((node) => released.push(node.id)) };
}

describe('LoginCandidates', () => {
  it('gives the overlapping logins of one user one node, and its place back after the last', async () => {
    const { released, candidates } = setUp();
    let chosen = 0;
    const choose = () => NODES[chosen++]!;
    const [one, two] = [candidates.join('s', 'alice'), candidates.join('s', 'alice')];
    const both = await Promise.all([one.choose(choose, always), two.choose(choose, always)]);
    assert.deepEqual(both, [NODES[0], NODES[0]]);
    one.leave();
    assert.deepEqual(released, []);
    two.leave();
    assert.deepEqual(released, ['n1']);
    assert.equal(candidates.size, 0);
  });

  it('keeps users and services apart', async () => {
    const { candidates } = setUp();
    let chosen = 0;
    const choose = () => NODES[chosen++]!;
    const first = await candidates.join('s', 'alice').choose(choose, always);
    assert.notEqual(await candidates.join('s', 'bob').choose(choose, always), first);
    assert.equal(candidates.size, 2);
    candidates.join('t', 'alice');
    assert.equal(candidates.size, 3);
  });

  it('chooses anew, once for all, when the first choice is not acceptable any more', async () => {
    const { released, candidates } = setUp();
    const seats = [1, 2, 3].map(() => candidates.join('s', 'alice'));
    await seats[0]!.choose(() => NODES[0]!, always);
    let choices = 0;
    const choose = () => {
      choices += 1;
      return NODES[1]!;
    };
    const later = seats.slice(1).map((seat) => seat.choose(choose, (node) => node.id !== 'n1'));
    assert.deepEqual(await Promise.all(later), [NODES[1], NODES[1]]);
    assert.equal(choices, 1);
    for (const seat of seats) seat.leave();
    assert.deepEqual(released.sort(), ['n1', 'n2']);
  });

  it('lets the next login choose when the first could not', async () => {
    const { candidates } = setUp();
    const [one, two] = [candidates.join('s', 'alice'), candidates.join('s', 'alice')];
    const failing = one.choose(() => Promise.reject(new Error('none')), always);
    const next = two.choose(() => NODES[1]!, always);
    await assert.rejects(failing, /none/);
    assert.equal(await next, NODES[1]);
  });

  it('gives a place back at once when everybody left while it was being chosen', async () => {
    const { released, candidates } = setUp();
    const seat = candidates.join('s', 'alice');
    let resolve: (node: Node) => void = () => undefined;
    const choice = seat.choose(() => new Promise<Node>((done) => (resolve = done)), always);
    await Promise.resolve();
    seat.leave();
    const next = candidates.join('s', 'alice');
    resolve(NODES[0]!);
    assert.equal(await choice, NODES[0]);
    assert.deepEqual(released, ['n1']);
    assert.equal(candidates.size, 1, 'the next group stays');
    assert.equal(await next.choose(() => NODES[1]!, always), NODES[1]);
    next.leave();
    assert.deepEqual(released, ['n1', 'n2']);
    assert.equal(candidates.size, 0);
  });

  it('chooses once for a hundred logins that overlap, also while the choice takes its time', async () => {
    const { released, candidates } = setUp();
    let choices = 0;
    let resolve: (node: Node) => void = () => undefined;
    const choose = () => {
      choices += 1;
      return new Promise<Node>((done) => (resolve = done));
    };
    const seats = Array.from({ length: 100 }, () => candidates.join('s', 'alice'));
    const all = Promise.all(seats.map((seat) => seat.choose(choose, always)));
    await new Promise(setImmediate);
    resolve(NODES[0]!);
    assert.deepEqual(new Set(await all), new Set([NODES[0]]));
    assert.equal(choices, 1);
    for (const [index, seat] of seats.entries()) {
      assert.equal(released.length, 0, `released before login ${index} was over`);
      seat.leave();
    }
    assert.deepEqual(released, ['n1']);
    assert.equal(candidates.size, 0);
  });

  it('lets a hundred logins share the second choice when the first fails, whether it throws or rejects', async () => {
    for (const fail of [() => Promise.reject(new Error('none')), () => assert.fail('none')]) {
      const { released, candidates } = setUp();
      let choices = 0;
      const choose = () => {
        choices += 1;
        return choices === 1 ? fail() : NODES[1]!;
      };
      const seats = Array.from({ length: 100 }, () => candidates.join('s', 'alice'));
      const results = await Promise.allSettled(seats.map((seat) => seat.choose(choose, always)));
      assert.equal(
        results.filter((result) => result.status === 'rejected').length,
        1,
        'only the one whose choice it was',
      );
      assert.equal(choices, 2);
      for (const seat of seats) seat.leave();
      assert.deepEqual(released, ['n2']);
      assert.equal(candidates.size, 0);
    }
  });

  it('leaves nothing behind when no choice succeeds or none is made', async () => {
    const { released, candidates } = setUp();
    const seats = [1, 2, 3].map(() => candidates.join('s', 'alice'));
    const choose = () => Promise.reject(new Error('none'));
    const results = await Promise.allSettled(seats.slice(1).map((seat) => seat.choose(choose, always)));
    assert.ok(results.every((result) => result.status === 'rejected'));
    for (const seat of seats) seat.leave();
    assert.deepEqual(released, []);
    assert.equal(candidates.size, 0);
  });

  it('counts what holds a seat beyond its login', async () => {
    const { released, candidates } = setUp();
    const seat = candidates.join('s', 'alice');
    await seat.choose(() => NODES[0]!, always);
    seat.hold();
    seat.leave();
    assert.equal(await candidates.join('s', 'alice').choose(() => NODES[1]!, always), NODES[0]);
    assert.deepEqual(released, []);
    seat.leave();
    assert.equal(candidates.size, 1, 'the second login is still there');
  });

  it('passes on a fault of the caller and stays usable', async () => {
    const { candidates } = setUp();
    const [one, two] = [candidates.join('s', 'alice'), candidates.join('s', 'alice')];
    await one.choose(() => NODES[0]!, always);
    await assert.rejects(
      two.choose(
        () => NODES[1]!,
        () => assert.fail('cannot say'),
      ),
      /cannot say/,
    );
    assert.equal(await two.choose(() => NODES[1]!, always), NODES[0]);
  });

  it('gives back every place exactly once, whatever the order of joining, choosing, failing and leaving', async () => {
    for (let seed = 0; seed < 300; seed += 1) {
      const random = new Seeded(seed);
      const reserved = new Map<Node, number>();
      const candidates = new LoginCandidates((node) => {
        const left = (reserved.get(node) ?? 0) - 1;
        assert.ok(left >= 0, `seed ${seed}: ${node.id} was given back once too often`);
        reserved.set(node, left);
      });
      const login = async () => {
        const seat = candidates.join('s', random.pick(['alice', 'bob']));
        const goesEarly = random.oneIn(4);
        const chosen = seat.choose(
          async () => {
            for (let turn = random.below(4); turn > 0; turn -= 1) await new Promise(setImmediate);
            if (random.oneIn(3)) throw new Error('none');
            const node = random.pick(NODES);
            reserved.set(node, (reserved.get(node) ?? 0) + 1);
            return node;
          },
          () => !random.oneIn(4),
        );
        if (goesEarly) seat.leave();
        await chosen.catch(() => undefined);
        for (let turn = random.below(4); turn > 0; turn -= 1) await new Promise(setImmediate);
        if (!goesEarly) seat.leave();
      };
      const logins: Promise<void>[] = [];
      for (let count = 0; count < 12; count += 1) {
        logins.push(login());
        if (random.oneIn(2)) await new Promise(setImmediate);
      }
      await Promise.all(logins);
      assert.deepEqual(
        [...reserved.values()].filter((count) => count !== 0),
        [],
        `seed ${seed}`,
      );
      assert.equal(candidates.size, 0, `seed ${seed}`);
    }
  });
});
