/** What tests/editors/test_vscode.py hands over, and what tests of the client share. */

import { after } from "node:test";
import { Daemon } from "../src/client/daemon";
import type { AskOptions } from "../src/client/protocol";

export function given(name: string): string {
  const value = process.env[name];
  if (value === undefined) {
    throw new Error(`run by tests/editors/test_vscode.py, which says ${name}`);
  }
  return value;
}

/** A small git repository. */
export const repository = given("TEST_REPOSITORY");
export const usual: AskOptions = { top_k: null, budget: null, max_tokens: null, rerank_ms: null };

/** A client, closed after the tests; `told` collects its warnings. */
export function client(executable = given("TEST_PROGRAM")): { daemon: Daemon; told: string[] } {
  const told: string[] = [];
  const daemon = new Daemon({ executable: () => executable, warn: (line) => told.push(line) });
  after(() => {
    daemon.dispose();
  });
  return { daemon, told };
}

/** Resolved as soon as the condition holds; it is looked at again whenever `changed` is called. */
export class Watched {
  #waiting: (() => void)[] = [];

  readonly changed = (): void => {
    for (const look of [...this.#waiting]) {
      look();
    }
  };

  until(condition: () => boolean, seconds = 30): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        reject(new Error(`it did not happen in time: ${String(condition)}`));
      }, seconds * 1000);
      const look = (): void => {
        if (condition()) {
          clearTimeout(timer);
          this.#waiting = this.#waiting.filter((other) => other !== look);
          resolve();
        }
      };
      this.#waiting.push(look);
      look();
    });
  }
}
