import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { compose, type Middleware } from '../lib/context.ts';
import { contextOf } from './support/stage.ts';

describe('compose', () => {
  const context = contextOf({});

  it('runs the stages from first to last, each around those that follow', async () => {
    const steps: string[] = [];
    const around =
      (name: string): Middleware =>
      async (given, next) => {
        assert.equal(given, context);
        steps.push(`${name} in`);
        await next(given);
        steps.push(`${name} out`);
      };
    await compose([around('a'), around('b'), () => void steps.push('c')])(context);
    assert.deepEqual(steps, ['a in', 'b in', 'c', 'b out', 'a out']);
  });

  it('stays in the tick as long as every stage does', () => {
    let reached = false;
    const pass: Middleware = (given, next) => next(given);
    const result = compose([
      pass,
      pass,
      () => {
        reached = true;
      },
    ])(context);
    assert.equal(reached, true);
    assert.equal(result, undefined);
  });

  it('ends where a stage answers by itself', () => {
    const handler = compose([() => undefined, () => assert.fail('not asked')]);
    assert.equal(handler(context), undefined);
  });

  it('hands a fault to the stages before, whether thrown at once or later', async () => {
    const caught: unknown[] = [];
    const boundary: Middleware = async (given, next) => {
      try {
        await next(given);
      } catch (error) {
        caught.push(error);
      }
    };
    const fault = new Error('no');
    await compose([
      boundary,
      () => {
        throw fault;
      },
    ])(context);
    await compose([boundary, async () => Promise.reject(fault)])(context);
    assert.deepEqual(caught, [fault, fault]);
  });

  it('may be run by several requests, before and after one another', async () => {
    const urls: (string | undefined)[] = [];
    const handler = compose([(given, next) => next(given), (given) => void urls.push(given.request.url)]);
    await Promise.all(['/a', '/b'].map((url) => handler(contextOf({ url }))));
    assert.deepEqual(urls, ['/a', '/b']);
  });

  it('says so when the last stage has nobody to pass on to', () => {
    assert.throws(() => compose([(given, next) => next(given)])(context), /last stage/);
    assert.throws(() => compose([])(context), /last stage/);
  });
});

describe('RequestContext', () => {
  it('begins with nothing decided', () => {
    const context = contextOf({});
    assert.deepEqual(
      [context.node, context.decision, context.userId, context.token, context.epoch, context.attempts, context.login],
      [null, null, null, null, 0, 0, null],
    );
  });

  it('hands a failure to the error boundary, and throws it where there is none yet', () => {
    const context = contextOf({});
    const fault = new Error('no');
    assert.throws(() => context.fail(fault), fault);
    const handled: unknown[] = [];
    context.errorHandler = (given, error) => handled.push(given, error);
    context.fail(fault);
    assert.deepEqual(handled, [context, fault]);
  });
});
