import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { LoginCandidates } from '../../lib/bindings/login-candidates.ts';
import type { Node } from '../../lib/model.ts';

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
});
