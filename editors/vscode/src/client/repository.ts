/** Which repository a file or folder belongs to. */

import { realpath, stat } from "node:fs/promises";
import { dirname, join } from "node:path";

async function isRoot(folder: string): Promise<boolean> {
  const marker = join(folder, ".git");
  const found = await stat(marker).catch(() => null);
  if (!found) {
    return false;
  }
  return found.isFile() || (await stat(join(marker, "HEAD")).catch(() => null)) !== null;
}

/** The git root at or above the folder as the daemon finds it; else the folder itself. Links are resolved. */
export async function rootOf(folder: string): Promise<string> {
  const start = await realpath(folder).catch(() => folder);
  for (let at = start; ; at = dirname(at)) {
    if (await isRoot(at)) {
      return at;
    }
    if (dirname(at) === at) {
      return start;
    }
  }
}
