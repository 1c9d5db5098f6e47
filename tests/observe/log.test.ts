import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import type { LogLevel } from '../../lib/config/options.ts';
import { GatewayError } from '../../lib/errors.ts';
import { describeError, LineLogger, maskToken, silentLogger } from '../../lib/observe/log.ts';

describe('LineLogger', () => {
  let lines: string[];

  beforeEach(() => {
    lines = [];
  });

  function make(level: LogLevel, format: 'json' | 'text'): LineLogger {
    return new LineLogger({ level, format }, { write: (line) => void lines.push(line) });
  }

  const parsed = () => lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  /** Text lines without their time. */
  const texts = () => lines.map((line) => line.replace(/^\S+ /, ''));

  it('writes a line of JSON for each event: time, level, event, and the fields', () => {
    const before = Date.now();
    make('debug', 'json').info('listening', { on: ['http://127.0.0.1:80'], admin: undefined, count: 0, none: null });
    assert.equal(lines.length, 1);
    assert.ok(lines[0]?.endsWith('}\n'));
    const [line] = parsed();
    assert.deepEqual(Object.keys(line ?? {}), ['time', 'level', 'event', 'on', 'count', 'none']);
    assert.deepEqual(
      [line?.['level'], line?.['event'], line?.['on'], line?.['count'], line?.['none']],
      ['info', 'listening', ['http://127.0.0.1:80'], 0, null],
    );
    const time = Date.parse(String(line?.['time']));
    assert.ok(time >= before && time <= Date.now());
  });

  it('puts the same fields into every line of a process', () => {
    const sink = { write: (line: string) => void lines.push(line) };
    const logger = new LineLogger({ level: 'info', format: 'json' }, sink, { worker: 2 });
    logger.info('one', { a: 1 });
    logger.infoRendered('two', '"b":2');
    assert.deepEqual(
      parsed().map(({ event, worker, a, b }) => ({ event, worker, a, b })),
      [
        { event: 'one', worker: 2, a: 1, b: undefined },
        { event: 'two', worker: 2, a: undefined, b: 2 },
      ],
    );
    lines.length = 0;
    const text = new LineLogger({ level: 'info', format: 'text' }, sink, { worker: 2 });
    text.info('one', { a: 1 });
    text.infoRendered('two', '"b":2');
    assert.deepEqual(texts(), ['info  one worker=2 a=1\n', 'info  two worker=2 b=2\n']);
  });

  it('stamps every line with its own time', async () => {
    const logger = make('info', 'json');
    logger.info('one');
    await new Promise((resolve) => setTimeout(resolve, 5));
    logger.info('two');
    const [one, two] = parsed().map((line) => Date.parse(String(line['time'])));
    assert.ok((two ?? 0) > (one ?? 0));
  });

  it('leaves out what is below its level', () => {
    const all = (logger: LineLogger) => {
      lines.length = 0;
      for (const level of ['debug', 'info', 'warn', 'error'] as const) logger[level](level);
      logger.infoRendered('rendered', '"a":1');
      return parsed().map((line) => line['event']);
    };
    assert.deepEqual(all(make('debug', 'json')), ['debug', 'info', 'warn', 'error', 'rendered']);
    assert.deepEqual(all(make('info', 'json')), ['info', 'warn', 'error', 'rendered']);
    assert.deepEqual(all(make('warn', 'json')), ['warn', 'error']);
    assert.deepEqual(all(make('error', 'json')), ['error']);
    const logger = make('error', 'json');
    logger.setLevel('info');
    assert.deepEqual(all(logger), ['info', 'warn', 'error', 'rendered']);
  });

  it('keeps a line a line, whatever the values hold', () => {
    for (const format of ['json', 'text'] as const) {
      make('info', format).warn('odd', { path: '/a\nb\r\u2028c', user: '"quoted" and \u001b[31mred' });
      assert.equal(lines.at(-1)?.split('\n').length, 2, format);
      assert.ok(!lines.at(-1)?.includes('\u001b'), format);
    }
  });

  it('takes fields that are rendered already', () => {
    make('info', 'json').infoRendered('access', '"status":200,"path":"/a b"');
    assert.deepEqual([parsed()[0]?.['event'], parsed()[0]?.['level']], ['access', 'info']);
    assert.deepEqual([parsed()[0]?.['status'], parsed()[0]?.['path']], [200, '/a b']);
    make('info', 'text').infoRendered('access', '"status":200,"path":"/a b"');
    assert.equal(texts()[1], 'info  access status=200 path="/a b"\n');
  });

  it('writes text for people, with quotes where a value would not end by itself', () => {
    const logger = make('debug', 'text');
    logger.error('failed', {
      node: 'n1',
      error: 'connect ECONNREFUSED',
      count: 3,
      on: ['a'],
      none: null,
      gone: undefined,
    });
    logger.warn('plain');
    logger.debug('empty', { text: '' });
    assert.deepEqual(texts(), [
      'error failed node=n1 error="connect ECONNREFUSED" count=3 on=["a"] none=null\n',
      'warn  plain\n',
      'debug empty text=""\n',
    ]);
  });

  it('shows a terminal no control character, of either half of the code table', () => {
    make('info', 'text').info('odd', {
      a: '\u0007',
      b: '\u009b31m',
      c: '\u007f',
      d: 'x\u202ey\u{e0001}',
      e: ['\u0085'],
      f: Symbol('s'),
    });
    assert.equal(
      texts()[0],
      'info  odd a="\\u0007" b="\\u009b31m" c="\\u007f" d="x\\u202ey\\udb40\\udc01" e=["\\u0085"] f=Symbol(s)\n',
    );
  });
});

describe('silentLogger', () => {
  it('takes everything and says nothing', () => {
    for (const level of ['debug', 'info', 'warn', 'error'] as const)
      assert.equal(silentLogger[level]('event', { a: 1 }), undefined);
  });
});

describe('maskToken', () => {
  it('shows six characters at most, and of a short token less than half', () => {
    assert.equal(maskToken('0123456789abcdef0123456789abcdef'), '012345…');
    assert.equal(maskToken('0123456789ab'), '0123…');
    assert.equal(maskToken('abc'), 'a…');
    assert.equal(maskToken('ab'), '…');
    assert.equal(maskToken(''), '…');
    for (let length = 1; length < 40; length += 1) {
      const shown = maskToken('x'.repeat(length)).length - 1;
      assert.ok(shown <= 6 && shown < length / 2, `${length} characters`);
    }
  });
});

describe('describeError', () => {
  for (const [what, error, text] of [
    ['an error by its message', new Error('no'), 'no'],
    ['one without a message by its name', new TypeError(''), 'TypeError'],
    [
      'a system error with its code',
      Object.assign(new Error('refused'), { code: 'ECONNREFUSED' }),
      'refused (ECONNREFUSED)',
    ],
    ['one whose code is no text without it', Object.assign(new Error('odd'), { code: 7 }), 'odd'],
    ['the chain of causes', new Error('a', { cause: new Error('b', { cause: 'c' }) }), 'a: b: c'],
    ['a cause that is null', new Error('a', { cause: null }), 'a: null'],
    ['a gateway error with its code', new GatewayError('node_down', 'away'), 'away (node_down)'],
    ['the parts of several errors', new AggregateError([new Error('a'), 'b']), 'a; b'],
    [
      'several errors by their message, if there is one',
      new AggregateError([new Error('a')], 'all failed'),
      'all failed',
    ],
    ['several errors of which there are none', new AggregateError([]), 'AggregateError'],
    ['what is no error', 'text', 'text'],
    ['nothing', undefined, 'undefined'],
  ] as const) {
    it(`describes ${what}`, () => {
      assert.equal(describeError(error), text);
    });
  }

  it('comes to an end with causes that go round in a circle', () => {
    const first = new Error('a');
    first.cause = new AggregateError([first], 'b', { cause: first });
    assert.match(describeError(first), /^a: b: a: b: .*…$/);
  });
});
