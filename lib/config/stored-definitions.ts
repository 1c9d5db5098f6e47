/**
 * The same checks for definitions that come from a store instead of a file: they are put into the form of the file,
 * so that there is one set of rules.
 */
import type { NodeDefinition, RouteDefinition, ServiceDefinition } from '../model.ts';
import { Field, Problems } from './fields.ts';
import { checkNode, checkRoute, checkService, formatPath } from './services.ts';

/** Each returns its value as a complete definition, or throws an Error that names everything wrong with it. */
export const storedChecks = {
  /** `value` has every field of a ServiceDefinition but its nodes, which are checked one by one. */
  service(value: unknown, path: string): ServiceDefinition {
    const stored = value as ServiceDefinition;
    // Whether the default node exists shows only when the nodes are there.
    const checked = run(path, { ...serviceForm(stored), defaultNodeId: null, nodes: [] }, (field) =>
      checkService(field, { healthPath: null, resolvePath: (one) => one }),
    );
    return { ...checked, defaultNodeId: stored.defaultNodeId };
  },
  node(value: unknown, path: string): NodeDefinition {
    return run(path, value, checkNode);
  },
  route(value: unknown, path: string): RouteDefinition {
    return run(path, value, checkRoute);
  },
};

function run<T>(path: string, value: unknown, check: (field: Field) => T): T {
  const problems = new Problems();
  const checked = check(new Field(problems, [path], value));
  if (problems.list.length === 0) return checked;
  throw new Error(problems.list.map((problem) => `${formatPath(problem.path)}: ${problem.message}`).join('; '));
}

/** A definition as it would stand in the file. */
export function serviceForm(service: ServiceDefinition): Record<string, unknown> {
  const { health, timeouts, upstream, ...rest } = service;
  return {
    ...rest,
    health: { interval: durationForm(health.intervalMs), timeout: durationForm(health.timeoutMs), failures: health.failures },
    timeouts: {
      connect: durationForm(timeouts.connectMs),
      response: durationForm(timeouts.responseMs),
      idle: durationForm(timeouts.idleMs),
    },
    ...upstream,
  };
}

/** Anything but a number stays as it is, for the check to name it. */
function durationForm(durationMs: unknown): unknown {
  return typeof durationMs === 'number' ? `${durationMs}ms` : durationMs;
}
