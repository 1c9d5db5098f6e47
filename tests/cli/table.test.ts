/** Columns, and what must not reach a terminal. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { styleFor } from '../../lib/cli/style.ts';
import { displayWidth, printable, Table } from '../../lib/cli/table.ts';
import { agoText, spanText } from '../../lib/cli/time-text.ts';

describe('a table', () => {
  it('aligns columns, also of wide characters and of colours', () => {
    const { red } = styleFor(true, {});
    assert.deepEqual(
      new Table().lines([
        ['a', 'b', 'c'],
        ['张三', { text: 'x', paint: red }, ''],
        ['abcdef', '', 'y'],
      ]),
      ['a       b  c', '张三    \u001b[31mx\u001b[0m', 'abcdef     y'],
    );
    assert.equal(displayWidth('e\u0301'), 1);
  });

  it('keeps its widths from page to page', () => {
    const table = new Table();
    table.lines([['a long one', 'x']]);
    assert.deepEqual(table.lines([['b', 'y']]), ['b           y']);
  });

  it('shows what a terminal would obey', () => {
    assert.equal(printable('a\u001b[2Jb\n\u202e\u009b'), 'a\\u001b[2Jb\\u000a\\u202e\\u009b');
    assert.deepEqual(new Table().lines([['\u001b]0;x\u0007']]), ['\\u001b]0;x\\u0007']);
  });
});

describe('colours', () => {
  it('are for terminals, unless NO_COLOR or a dumb one says otherwise', () => {
    assert.equal(styleFor(true, {}).red('x'), '\u001b[31mx\u001b[0m');
    for (const style of [styleFor(false, {}), styleFor(true, { NO_COLOR: '1' }), styleFor(true, { TERM: 'dumb' })])
      assert.equal(style.red('x'), 'x');
    assert.equal(styleFor(true, { NO_COLOR: '' }).red('x'), '\u001b[31mx\u001b[0m');
  });
});

describe('spans of time', () => {
  it('have the unit that fits', () => {
    assert.deepEqual([0, 119_000, 120_000, 7_200_000, 172_800_000].map(spanText), [
      '0 s',
      '119 s',
      '2 min',
      '2 h',
      '2 d',
    ]);
    assert.equal(agoText('1970-01-01T00:00:05.000Z', 8_000), '3 s ago');
    assert.equal(agoText(null, 8_000), 'never');
    assert.equal(agoText('1970-01-01T00:00:09.000Z', 8_000), '0 s ago', 'clocks of two machines differ');
  });
});
