/** The configuration in force as it may be shown: every secret masked. Services and routes have calls of their own. */
import type { GatewayOptions } from '../config/options.ts';

const MASK = '***';
/** Keys whose text is a secret wherever they stand. */
const SECRET_KEYS = new Set(['secret', 'password', 'publicKey']);

/** The options without services and routes. */
export function viewConfig(options: GatewayOptions): Record<string, unknown> {
  const { registryDefinition: _registry, admin, ...rest } = options;
  return {
    ...(masked(rest) as Record<string, unknown>),
    admin: {
      listen: admin.listen,
      allow: admin.allow,
      tokens: admin.tokens.map(({ name, role }) => ({ name, role, token: MASK })),
    },
  };
}

function masked(value: unknown): unknown {
  if (typeof value === 'string') return value.includes('://') ? maskUrl(value) : value;
  if (Array.isArray(value)) return value.map(masked);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [
      key,
      SECRET_KEYS.has(key) && typeof item === 'string' ? MASK : masked(item),
    ]),
  );
}

/** User information and parameters may hold passwords; scheme, host, port and path tell which store it is. */
function maskUrl(text: string): string {
  if (!URL.canParse(text)) return MASK;
  const url = new URL(text);
  const user = url.username === '' && url.password === '' ? '' : `${MASK}@`;
  return `${url.protocol}//${user}${url.host}${url.pathname}${url.search === '' ? '' : `?${MASK}`}`;
}
