/**
 * Measures how long choosing one of 100 nodes takes, in microseconds of CPU per choice: each selector by itself, and the whole
 * choice of a stateless service with the health of each node asked for. Nothing is asserted.
 *
 *   node --import tsx tests/bench/select.ts [--rounds 7]
 */
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { StatelessBalancer } from '../../lib/balance/balancer.ts';
import { createSelector } from '../../lib/balance/create-selector.ts';
import { DEFAULTS } from '../../lib/config/options.ts';
import { HealthRegistry } from '../../lib/health/health-registry.ts';
import type { Balance, Node, Service } from '../../lib/model.ts';
import { LineLogger } from '../../lib/observe/log.ts';
import { buildSnapshot } from '../../lib/registry/snapshot.ts';
import { systemClock } from '../../lib/support/clock.ts';

const NODES = 100;
/** Of these many are DOWN where it says so. */
const DOWN = 10;
const CHOICES = 50_000;
const BALANCES: readonly Balance[] = ['weighted', 'round-robin', 'random', 'consistent-hash'];

export interface SelectSample {
  readonly what: string;
  readonly balance: Balance;
  /** Median over the rounds. */
  readonly microsPerChoice: number;
}

/** One sample for each balance and kind of choice. `rounds`: 1 or more. */
export function measureSelection(rounds: number): SelectSample[] {
  return BALANCES.flatMap((balance) => [
    { what: 'selector alone', balance, microsPerChoice: median(rounds, () => selectorAlone(balance)) },
    { what: 'with health, all UP', balance, microsPerChoice: median(rounds, wholeChoice(balance, 0)) },
    { what: `with health, ${DOWN} DOWN`, balance, microsPerChoice: median(rounds, wholeChoice(balance, DOWN)) },
  ]);
}

function selectorAlone(balance: Balance): () => void {
  const selector = createSelector<Node>(balance);
  const { nodes } = serviceOf(balance);
  const accepts = () => true;
  return () => {
    for (let choice = 0; choice < CHOICES; choice += 1) selector.next(nodes, accepts, KEYS[choice % KEYS.length]);
  };
}

function wholeChoice(balance: Balance, down: number): () => () => void {
  const service = serviceOf(balance);
  const logger = new LineLogger({ level: 'error', format: 'json' }, { write: () => undefined });
  const health = new HealthRegistry({ suspicion: { flips: 0, windowMs: 0 }, clock: systemClock, logger });
  health.retain(new Map(service.nodes.map((node) => [node.healthKey, { failures: 1 }])));
  service.nodes.forEach((node, index) => {
    health.observe(node.healthKey, index % (NODES / DOWN) !== 0 || index >= down * (NODES / DOWN), 'active');
  });
  const balancer = new StatelessBalancer({
    version: () => health.version,
    stateOf: (healthKey) => health.stateOf(healthKey),
    wasChecked: (healthKey) => health.wasChecked(healthKey),
    probeUnknown: async () => undefined,
  });
  return () => () => {
    for (let choice = 0; choice < CHOICES; choice += 1) balancer.choose(service, KEYS[choice % KEYS.length] ?? '');
  };
}

const KEYS = Array.from({ length: 1_000 }, (_, index) => `10.0.${index >> 8}.${index & 255}`);

function serviceOf(balance: Balance): Service {
  const nodes = Array.from({ length: NODES }, (_, index) => ({
    ...DEFAULTS.node,
    id: `node-${index + 1}`,
    baseUrl: `http://10.1.${index}.1:8080`,
    weight: 1 + (index % 3),
  }));
  const definition = {
    ...DEFAULTS.service,
    id: 's',
    pathPrefix: '/s',
    healthPath: '/health',
    affinity: 'none',
    balance,
    nodes,
  } as const;
  const snapshot = buildSnapshot({ services: [definition], routes: [] }, { version: 1, loadedAtMs: 0, stale: false });
  const service = snapshot.services.get('s');
  if (!service) throw new Error('the service is not in its snapshot');
  return service;
}

function median(rounds: number, prepare: () => () => void): number {
  const run = prepare();
  run();
  const micros = Array.from({ length: rounds }, () => {
    // Not the time on the clock: other programs have their share of that.
    const before = process.cpuUsage();
    run();
    return process.cpuUsage(before).user / CHOICES;
  }).sort((a, b) => a - b);
  return micros[rounds >> 1] ?? 0;
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const { values } = parseArgs({ options: { rounds: { type: 'string', default: '7' } } });
  console.log(`choosing one of ${NODES} nodes, microseconds of CPU per choice`);
  for (const { what, balance, microsPerChoice } of measureSelection(Number(values.rounds))) {
    console.log(`${balance.padEnd(16)} ${what.padEnd(22)} ${microsPerChoice.toFixed(2)}`);
  }
}
