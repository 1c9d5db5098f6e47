/** Reads a listener's certificate and key. */
import * as fs from 'node:fs';
import * as tls from 'node:tls';
import { OperatorError } from '../errors.ts';

/** Throws OperatorError when one cannot be read, or when they do not belong together. */
export function readTlsFiles(files: { cert: string; key: string }): { cert: Buffer; key: Buffer } {
  try {
    const pair = { cert: fs.readFileSync(files.cert), key: fs.readFileSync(files.key) };
    // Says now, not at the first handshake, that they do not belong together.
    tls.createSecureContext(pair);
    return pair;
  } catch (error) {
    throw new OperatorError(`TLS with ${files.cert} and ${files.key} is not possible: ${(error as Error).message}`);
  }
}
