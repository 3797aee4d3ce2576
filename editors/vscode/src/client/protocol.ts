/** The daemon's messages, as far as they are used here. docs/protocol.md has all of them. */

export interface Server {
  version: string;
  protocol: number;
  pid: number;
  active: number;
  stopping: boolean;
}

export interface Stage {
  kind: "stage";
  stage: string;
  done: number;
  total: number;
  message: string;
}

export type Progress = Stage | { kind: "token"; text: string };

/** Lines count from 1, the last one belongs to it; `path` is relative to the repository's root. */
export interface Source {
  path: string;
  start_line: number;
  end_line: number;
  symbol: string;
  language: string;
  score: number;
}

/** `label`: the number by which the answer cites it; daemons that say no label are older. */
export interface AnswerSource extends Source {
  cited: boolean;
  label?: number;
}

/** A turn of an earlier conversation that was in the prompt; `stale`: the code that it cites has changed since. */
export interface Memory {
  session: string;
  turn: number;
  asked_at: number;
  stale: boolean;
}

/** null means kvd's own setting. */
export interface AskOptions {
  top_k: number | null;
  budget: number | null;
  max_tokens: number | null;
  rerank_ms: number | null;
}

export interface AskParams extends AskOptions {
  question: string;
  repo: string;
  session?: string;
}

export interface AskResult {
  answer: string;
  model: string | null;
  session: string | null;
  finish: "stop" | "length";
  sources: AnswerSource[];
  memories?: Memory[];
  tokens: Record<
    "recalled" | "resident" | "reused_hot" | "reused_cold" | "recomputed" | "prefilled" | "fresh" | "generated",
    number
  >;
  timings_ms: Record<"recall" | "load" | "ttft" | "model_load" | "total", number>;
  notices?: string[];
}

export interface SearchParams {
  query: string;
  repo: string;
  top_k: number | null;
}

export interface SearchResult {
  query: string;
  repo: string;
  sources: Source[];
  notices?: string[];
}

export interface Summary {
  repo: string;
  files: number;
  chunks: number;
  added: number;
  changed: number;
  deleted: number;
  unchanged: number;
  seconds: number;
}

export interface Status {
  daemon: { version: string; pid: number };
  model: { name: string; error: string } | null;
  engine: { state: string; reuse?: string; reuse_reason?: string; running: number; waiting: number };
  reuse_setting: boolean;
  indexes: unknown[];
  indexing: string[];
}

export interface Session {
  name: string;
  turns: number;
  used_at: number;
}

export interface SaidTurn extends Pick<AskResult, "answer" | "finish" | "sources" | "tokens" | "timings_ms"> {
  question: string;
}

/** Each method with its params and its result. */
export interface Methods {
  ask: [AskParams, AskResult];
  search: [SearchParams, SearchResult];
  index: [{ path: string }, Summary];
  status: [Record<string, never>, Status];
  "session/create": [{ repo: string }, Session];
  "session/list": [{ repo: string }, { sessions: Session[] }];
  "session/show": [{ repo: string; name: string }, { model: string | null; turns: SaidTurn[] }];
  "session/close": [{ repo: string; name: string }, Session];
  "session/delete": [{ repo: string; name: string }, { deleted: string }];
}
