/**
 * Keeps other web sites' pages in an operator's browser away from the API. Tokens are the real guard; this one
 * matters most where there are none.
 */
import { isIP } from 'node:net';
import { AdminError } from './admin-error.ts';

interface Fields {
  readonly host?: string | undefined;
  readonly origin?: string | undefined;
  readonly 'sec-fetch-site'?: string | string[] | undefined;
}

/**
 * Throws AdminError `foreign_origin` for a request that another site's page made. `anyHost` false = besides, Host has
 * to be an address or localhost: a name that an attacker points to this machine (DNS rebinding) is same-origin for
 * their page, and without tokens nothing else would stop it.
 */
export function refuseForeignOrigin(fields: Fields, scheme: 'http' | 'https', anyHost: boolean): void {
  const { host = '', origin } = fields;
  const site = fields['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') throw foreign('this page');
  if (origin !== undefined && origin.toLowerCase() !== `${scheme}://${host}`.toLowerCase())
    throw foreign('this origin');
  if (!anyHost && !isLocalName(host)) {
    throw new AdminError('foreign_origin', 'without admin.tokens Host must be an address or localhost');
  }
}

function foreign(what: string): AdminError {
  return new AdminError('foreign_origin', `${what} may not use the admin API`);
}

function isLocalName(host: string): boolean {
  const name = host.replace(/:\d{1,5}$/, '').toLowerCase();
  if (name === 'localhost' || name.endsWith('.localhost')) return true;
  return isIP(name.startsWith('[') && name.endsWith(']') ? name.slice(1, -1) : name) !== 0;
}
