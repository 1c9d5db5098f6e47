/** Finds the entry of the table of routes that a method and a path stand for. It knows no handlers. */
import { AdminError, badField } from './admin-error.ts';
import type { Role } from './auth.ts';
import type { CallHandler } from './call.ts';

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

export interface ApiRoute {
  readonly method: Method;
  /** `/api/services/:service`; a segment with a colon takes any text. */
  readonly path: string;
  readonly role: Role;
  /** What the audit calls it; null = it changes nothing. */
  readonly action: string | null;
  /** Query parameters that it knows. */
  readonly query: readonly string[];
  readonly handler: CallHandler;
}

export interface RouteMatch {
  readonly route: ApiRoute;
  readonly params: Readonly<Record<string, string>>;
}

interface Compiled {
  readonly segments: readonly string[];
  readonly routes: Map<string, ApiRoute>;
}

export class Router {
  readonly #paths: readonly Compiled[];

  constructor(routes: readonly ApiRoute[]) {
    this.#paths = [...new Set(routes.map(({ path }) => path))].map((path) => ({
      segments: path.split('/'),
      routes: new Map(routes.filter((route) => route.path === path).map((route) => [route.method, route])),
    }));
  }

  /** Throws AdminError `not_found`, `method_not_allowed`, or `bad_request` for a segment that cannot be decoded. */
  find(method: string, path: string): RouteMatch {
    const segments = path.split('/');
    const wanted = method === 'HEAD' ? 'GET' : method;
    const found = this.#paths.flatMap(({ segments: pattern, routes }) => {
      const params = paramsOf(pattern, segments);
      return params === undefined ? [] : [{ routes, params }];
    });
    if (found.length === 0) throw new AdminError('not_found', 'there is no such call: see /api/openapi.json');
    // A word of the path itself goes before a parameter, but a user may well be called `import`.
    const fitting = found
      .flatMap(({ routes, params }) => {
        const route = routes.get(wanted);
        return route ? [{ route, params }] : [];
      })
      .sort((left, right) => Object.keys(left.params).length - Object.keys(right.params).length)[0];
    if (fitting) return { route: fitting.route, params: decode(fitting.params) };
    const allowed = found
      .flatMap(({ routes }) => [...routes.keys()])
      .flatMap((one) => (one === 'GET' ? ['GET', 'HEAD'] : [one]));
    throw new AdminError('method_not_allowed', `this path knows ${allowed.join(', ')}`, {
      headers: { Allow: allowed.join(', ') },
    });
  }
}

type Params = Record<string, string>;

function paramsOf(pattern: readonly string[], segments: readonly string[]): Params | undefined {
  if (pattern.length !== segments.length) return undefined;
  const params: Params = {};
  for (const [index, part] of pattern.entries()) {
    const segment = segments[index] ?? '';
    if (part.startsWith(':') && segment !== '') params[part.slice(1)] = segment;
    else if (part !== segment) return undefined;
  }
  return params;
}

function decode(params: Params): Params {
  return Object.fromEntries(
    Object.entries(params).map(([name, value]) => {
      try {
        return [name, decodeURIComponent(value)];
      } catch {
        throw badField(name, 'is not encoded properly in the path');
      }
    }),
  );
}
