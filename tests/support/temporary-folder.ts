/** A new folder for one test, removed when the test ends. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export async function temporaryFolder(context: { after(hook: () => Promise<void>): void }): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'sticky-gateway-'));
  context.after(() => rm(folder, { recursive: true, force: true }));
  return folder;
}
