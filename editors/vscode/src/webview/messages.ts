/** What the extension and its panel tell each other. */

import type { Turn } from "../client/conversation";

export interface State {
  /** The repository's name, or "" before anything was asked. */
  repository: string;
  /** The conversation's name, or "". */
  conversation: string;
  busy: boolean;
  turns: Turn[];
}

/** `turn` takes the place of the one at `index`, or comes after the last one. */
export type ToPanel =
  | { kind: "state"; state: State }
  | { kind: "turn"; index: number; turn: Turn; state: Omit<State, "turns"> }
  | { kind: "focus" };

export type FromPanel =
  | { kind: "ready" }
  | { kind: "ask"; question: string }
  | { kind: "cancel" }
  | { kind: "open"; turn: number; source: number };
