/** Reads counters out of a gateway's metrics text, as a scraper would. */
import type { GatewayFixture } from './gateway-fixture.ts';

/** The value of one series, named as in the text: `name{label="value"}`; 0 when it is not there. */
export function counterOf(gateway: GatewayFixture, series: string): number {
  const line = gateway.gateway.metrics
    .render()
    .split('\n')
    .find((text) => text.startsWith(`${series} `));
  return line === undefined ? 0 : Number(line.slice(series.length));
}
