/**
 * The same checks for definitions that come from a store instead of a file: they are put into the form of the file,
 * so that there is one set of rules.
 */
import type { NodeDefinition, RegistryDefinition, RouteDefinition, ServiceDefinition } from '../model.ts';
import { Field, formatPath, isPlainObject, Problems } from './fields.ts';
import { DEFAULTS } from './options.ts';
import { checkNode, checkRoute, checkService, checkTogether } from './services.ts';

export interface DefinitionProblem {
  /** `services[0].nodes[1].id` */
  readonly path: string;
  readonly message: string;
}

export type Checked<T> = { readonly definition: T } | { readonly problems: readonly DefinitionProblem[] };

/** `value`: a service in the form of the file or of the model, with gaps or without. `path`: its place, for messages. */
export function checkServiceDefinition(value: unknown, path: string): Checked<ServiceDefinition> {
  return check(path, isPlainObject(value) ? serviceForm(value) : value, (field) =>
    checkService(field, { healthPath: DEFAULTS.health.path, resolvePath: (one) => one }),
  );
}

export function checkNodeDefinition(value: unknown, path: string): Checked<NodeDefinition> {
  return check(path, value, checkNode);
}

export function checkRouteDefinition(value: unknown, path: string): Checked<RouteDefinition> {
  return check(path, value, checkRoute);
}

/** How sound definitions fit together; empty = they do. A service that nothing reaches yet is no problem here. */
export function checkRegistry(definition: RegistryDefinition): readonly DefinitionProblem[] {
  const problems = new Problems();
  checkTogether(definition, problems);
  return named(problems);
}

/** Each returns its value as a complete definition, or throws an Error that names everything wrong with it. */
export const storedChecks = {
  service: (value: unknown, path: string): ServiceDefinition => required(checkServiceDefinition(value, path)),
  node: (value: unknown, path: string): NodeDefinition => required(checkNodeDefinition(value, path)),
  route: (value: unknown, path: string): RouteDefinition => required(checkRouteDefinition(value, path)),
};

function check<T>(path: string, value: unknown, run: (field: Field) => T): Checked<T> {
  const problems = new Problems();
  // A value that is missing as a whole must not pass for one that is all defaults.
  const definition = run(new Field(problems, path === '' ? [] : [path], value ?? null));
  return problems.list.length === 0 ? { definition } : { problems: named(problems) };
}

function named(problems: Problems): readonly DefinitionProblem[] {
  return problems.list.map(({ path, message }) => ({ path: formatPath(path), message }));
}

function required<T>(checked: Checked<T>): T {
  if ('definition' in checked) return checked.definition;
  throw new Error(checked.problems.map(({ path, message }) => `${path}: ${message}`).join('; '));
}

/** A definition as it would stand in the file; what is there already in that form stays. */
export function serviceForm(service: object): Record<string, unknown> {
  const { health, timeouts, upstream, ...rest } = service as Record<string, unknown>;
  return {
    ...rest,
    ...(health === undefined ? {} : { health: durationsForm(health) }),
    ...(timeouts === undefined ? {} : { timeouts: durationsForm(timeouts) }),
    ...(isPlainObject(upstream) ? upstream : upstream === undefined ? {} : { upstream }),
  };
}

/** `intervalMs: 5000` becomes `interval: 5000ms`; anything but a number stays as it is, for the check to name it. */
function durationsForm(value: unknown): unknown {
  if (!isPlainObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) =>
      // With both forms of one field the second stays, and is refused as unknown.
      key.endsWith('Ms') && !Object.hasOwn(value, key.slice(0, -2))
        ? [key.slice(0, -2), typeof item === 'number' ? `${item}ms` : item]
        : [key, durationsForm(item)],
    ),
  );
}
