/** What went wrong, in one line, and what to do about it. */

import { cleanLine } from "./text";

export class Problem extends Error {
  /**
   * @param code the daemon's word for it; "cancelled" is the one that nobody has to be told of
   * @param hint what to type or do next, or ""
   */
  constructor(
    readonly code: string,
    message: string,
    readonly hint = "",
  ) {
    super(message);
    this.name = "Problem";
  }
}

export const cancelled = (): Problem => new Problem("cancelled", "cancelled");

export function isCancelled(reason: unknown): boolean {
  return reason instanceof Problem && reason.code === "cancelled";
}

/** Whatever was thrown, as a problem. */
export function problemOf(reason: unknown): Problem {
  if (reason instanceof Problem) {
    return reason;
  }
  return new Problem("failed", reason instanceof Error ? reason.message : String(reason), "kvd: Copy Debug Info");
}

/** The problem on one line. */
export function told(problem: Problem): string {
  return cleanLine(problem.hint ? `${problem.message} (hint: ${problem.hint})` : problem.message);
}
