/** A node's state in a few words, for status and explain. */
import type { Json } from './admin-client.ts';
import type { Style } from './style.ts';
import { spanText } from './time-text.ts';

/** The one word that counts first: a disabled node refuses its users whatever its health. */
export function nodeState(node: Json): string {
  if (node['enabled'] === false) return 'disabled';
  const state = String((node['health'] as Json)['state']);
  return node['draining'] === true ? `${state}, draining` : state;
}

export function isUsable(node: Json): boolean {
  return node['enabled'] === true && (node['health'] as Json)['state'] !== 'DOWN';
}

export function stateStyle(node: Json, style: Style): (text: string) => string {
  if (!isUsable(node)) return style.red;
  return node['draining'] === true || (node['health'] as Json)['state'] === 'UNKNOWN' ? style.yellow : style.green;
}

/** `for 12 s: connect ECONNREFUSED`; empty = there is nothing to say. */
export function healthNote(node: Json, nowMs: number): string {
  const { state, since, lastError } = node['health'] as Json;
  const error = state !== 'UP' && typeof lastError === 'string' ? `: ${lastError}` : '';
  return typeof since === 'string' ? `for ${spanText(nowMs - Date.parse(since))}${error}` : error.slice(2);
}
