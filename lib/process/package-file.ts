/** Finds a file that ships with the package, from the sources as well as from the compiled tree. */
import * as fs from 'node:fs';
import * as path from 'node:path';
import { fileURLToPath } from 'node:url';

/** `name` relative to the folder that holds package.json. Throws if there is no such folder above this file. */
export function findPackageFile(name: string): string {
  let folder = path.dirname(fileURLToPath(import.meta.url));
  while (!fs.existsSync(path.join(folder, 'package.json'))) {
    const parent = path.dirname(folder);
    if (parent === folder) throw new Error(`no package.json above ${fileURLToPath(import.meta.url)}`);
    folder = parent;
  }
  return path.join(folder, name);
}

/** The version of the package. */
export function readVersion(): string {
  return (JSON.parse(fs.readFileSync(findPackageFile('package.json'), 'utf8')) as { version: string }).version;
}
