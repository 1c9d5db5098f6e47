/**
 * The explicit rules of a route: whether a request's header, cookie or query has the value that asks for a version.
 * Which rule comes first and what follows from it is not decided here.
 *
 * Choices: a value must be equal, letter by letter. The first one counts where a name is repeated, be it a header line
 * (as with tokens), a cookie (browsers send the most specific first) or a parameter. Several Cookie lines are one list
 * (RFC 9113 section 8.2.3). Names and values of parameters are decoded as forms encode them, cookies are not decoded.
 */
import type { RouteRule } from '../model.ts';
import { readCookie } from '../support/cookies.ts';
import { firstQueryValue } from '../support/query.ts';

/** What rules look at. */
export interface RuledRequest {
  readonly rawHeaders: readonly string[];
  /** Origin form, as sent. */
  readonly target: string;
}

export type RuleTest = (request: RuledRequest) => boolean;

/** The test of a rule that names what it looks for; weight rules have none. */
export function compileRule(rule: Exclude<RouteRule, { readonly type: 'weight' }>): RuleTest {
  const { name, value } = rule;
  if (rule.type === 'query') return ({ target }) => firstQueryValue(target, name) === value;
  // Node hands header bytes over as latin1, whatever they are; the configuration is UTF-8.
  const bytes = Buffer.from(value, 'utf8').toString('latin1');
  const lower = name.toLowerCase();
  return rule.type === 'header'
    ? ({ rawHeaders }) => firstField(rawHeaders, lower) === bytes
    : ({ rawHeaders }) => readCookie(cookieLines(rawHeaders), name) === bytes;
}

function firstField(raw: readonly string[], lower: string): string | undefined {
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index];
    if (name?.length === lower.length && name.toLowerCase() === lower) return raw[index + 1];
  }
  return undefined;
}

function cookieLines(raw: readonly string[]): string {
  let joined = '';
  for (let index = 0; index + 1 < raw.length; index += 2) {
    const name = raw[index];
    if (name?.length !== 6 || name.toLowerCase() !== 'cookie') continue;
    joined = joined === '' ? (raw[index + 1] ?? '') : `${joined}; ${raw[index + 1]}`;
  }
  return joined;
}
