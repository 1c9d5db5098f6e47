/** Tries every file that a configuration names, without starting anything. */
import * as fs from 'node:fs';
import * as tls from 'node:tls';
import type { GatewayOptions } from '../config/options.ts';
import { systemClock } from '../support/clock.ts';
import { JwtResolver } from '../tokens/jwt.ts';
import { readTlsFiles } from './tls-files.ts';

/** What is wrong with the files: certificates, keys and authorities; empty = all can be used. */
export function checkFiles(options: GatewayOptions): string[] {
  const problems: string[] = [];
  const attempt = (use: () => unknown) => {
    try {
      use();
    } catch (error) {
      problems.push((error as Error).message);
    }
  };
  const listens = options.admin.listen ? [...options.listen, options.admin.listen] : options.listen;
  for (const { tls: files } of listens) if (files) attempt(() => readTlsFiles(files));
  for (const resolver of options.identity.resolvers) {
    if (resolver.type === 'jwt') attempt(() => new JwtResolver(resolver, systemClock));
  }
  for (const { id, upstream } of options.registryDefinition.services) {
    const { ca } = upstream;
    if (ca === null) continue;
    attempt(() => {
      try {
        tls.createSecureContext({ ca: fs.readFileSync(ca) });
      } catch (error) {
        throw new Error(`services: ca ${ca} of '${id}' cannot be used: ${(error as Error).message}`);
      }
    });
  }
  return problems;
}
