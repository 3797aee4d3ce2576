/** Where the daemon listens. docs/protocol.md, "Connecting", has the rules. */

import { createHash } from "node:crypto";
import { lstat, stat } from "node:fs/promises";
import { isAbsolute, join } from "node:path";
import { userInfo } from "node:os";
import { Problem } from "./problem";

// In bytes: the kernel's field is little longer.
const longest = 100;
const name = "daemon.sock";

async function isOwn(folder: string, user: number): Promise<boolean> {
  if (!isAbsolute(folder)) {
    return false;
  }
  const found = await stat(folder).catch(() => null);
  return found?.isDirectory() === true && found.uid === user;
}

async function folder(user: number): Promise<string> {
  for (const base of [process.env.XDG_RUNTIME_DIR ?? "", `/run/user/${user}`]) {
    if (await isOwn(base, user)) {
      const found = join(base, "kvd");
      if (Buffer.byteLength(join(found, name)) <= longest) {
        return found;
      }
      const hash = createHash("sha256").update(found).digest("hex").slice(0, 8);
      return `/tmp/kvd-${user}-${hash}`;
    }
  }
  return `/tmp/kvd-${user}`;
}

/**
 * The socket's path, whether or not it is there.
 *
 * Throws a `Problem` where the folder could be another user's trap, and on Windows.
 */
export async function socketPath(): Promise<string> {
  if (process.platform === "win32") {
    throw new Problem("unavailable", "kvd does not run on Windows itself", "open the folder in WSL");
  }
  const user = userInfo().uid;
  const place = await folder(user);
  const found = await lstat(place).catch(() => null);
  if (found && (!found.isDirectory() || found.uid !== user || (found.mode & 0o077) !== 0)) {
    const hint = `remove it, or run: chmod 700 ${place}`;
    throw new Problem("unavailable", `the runtime folder ${place} is not yours alone`, hint);
  }
  return join(place, name);
}
