/** Runs the command `kvd`. */

import { execFile } from "node:child_process";
import { homedir } from "node:os";
import { join } from "node:path";
import { Problem } from "./problem";

// `kvd start` itself gives up after 15 s, twice where it replaces a daemon.
const patienceMs = 60_000;

function failure(stderr: string, what: string): Problem {
  const message = /^kvd: (.+)$/m.exec(stderr)?.[1] ?? `${what} failed: ${stderr.trim().split("\n").pop() ?? ""}`;
  return new Problem("unavailable", message, /^hint: (.+)$/m.exec(stderr)?.[1] ?? "kvd logs");
}

/**
 * Runs it to its end and gives what it wrote on stdout.
 *
 * @param name a name in PATH, or a path that may begin with `~/`
 */
export function run(name: string, ...words: string[]): Promise<string> {
  const program = name.startsWith("~/") ? join(homedir(), name.slice(2)) : name;
  return new Promise((resolve, reject) => {
    execFile(program, words, { cwd: "/", timeout: patienceMs }, (error, stdout, stderr) => {
      if (!error) {
        resolve(stdout);
      } else if (error.code === "ENOENT" || error.code === "EACCES") {
        const hint = 'install kvd, or say in the setting "kvd.executable" where it is';
        reject(new Problem("no-program", `can't run the program ${name}`, hint));
      } else {
        reject(failure(stderr, [name, ...words].join(" ")));
      }
    });
  });
}
