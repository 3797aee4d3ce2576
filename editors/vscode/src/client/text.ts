/** Text from repositories, models and the daemon, made safe to show, and put into words. */

import type { AskResult, Memory, Source, Stage, Summary } from "./protocol";

const removed = [
  // Terminals' escape sequences.
  // eslint-disable-next-line no-control-regex
  /\x1b\[[0-?]*[ -/]*[@-~]/g,
  // Control characters but line ends and tabs.
  // eslint-disable-next-line no-control-regex
  /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g,
  // What reorders text.
  /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
];

/** The text without control characters; line ends and tabs stay. */
export function clean(text: string): string {
  return removed.reduce((left, pattern) => left.replace(pattern, ""), text);
}

/** The same on one line. */
export function cleanLine(text: string): string {
  return clean(text).replace(/[\n\t]/g, " ");
}

/** `1 file`, `1,024 files` */
export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** `path:first-last` */
export function placeOf(source: Source): string {
  return cleanLine(`${source.path}:${source.start_line}-${source.end_line}`);
}

/** `recalled from the conversation NAME, question 3, 2026-11-24` */
export function memoryLine(memory: Memory): string {
  const at = new Date(memory.asked_at * 1000);
  const day = [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((part) => String(part).padStart(2, "0")).join("-");
  const changed = memory.stale ? " (the code has changed since)" : "";
  return cleanLine(`recalled from the conversation ${memory.session}, question ${memory.turn}, ${day}${changed}`);
}

const titles: Record<string, string> = {
  "first-index": "making the first index",
  rebuild: "making the index anew",
  scan: "looking at the files",
  index: "indexing",
  wait: "waiting",
  load: "loading the model",
  check: "checking once whether the model can reuse KV",
  prefill: "reading the code",
  // Its message is a sentence of its own.
  notice: "",
};
// Their messages say nothing new, or too much for one line.
const bare = new Set(["first-index", "scan"]);

/** What is being done, on one line. */
export function stageLine(stage: Stage): string {
  const parts = [titles[stage.stage] ?? stage.stage];
  if (stage.total > 0) {
    parts.push(`${stage.done}/${stage.total}`);
  }
  if (stage.message && !bare.has(stage.stage)) {
    parts.push(stage.message);
  }
  return cleanLine(parts.join(" ")).trim();
}

/** Where the code of an answer came from, and how soon the answer began; "" where no model was needed. */
export function figures(result: AskResult): string {
  if (result.model === null) {
    return "";
  }
  const { tokens, timings_ms: times } = result;
  const parts = [
    [tokens.resident + tokens.reused_hot, "from memory"],
    [tokens.reused_cold, "from disk"],
    [tokens.recomputed + tokens.prefilled, "computed"],
  ] as const;
  const said = parts.filter(([count]) => count > 0).map(([count, how]) => `${count.toLocaleString("en-US")} ${how}`);
  const detail = said.length > 0 ? ` (${said.join(", ")})` : "";
  const load = times.model_load > 0 ? `, not counting ${seconds(times.model_load)} to load the model` : "";
  const code = `${counted(tokens.recalled, "token")} of code${detail}`;
  return cleanLine(`${code} · first word after ${seconds(times.ttft)}${load} · ${result.model}`);
}

function seconds(milliseconds: number): string {
  // The space does not break.
  return `${(milliseconds / 1000).toFixed(1)}\u00a0s`;
}

/** What an index run did. */
export function summaryLine(summary: Summary): string {
  const kinds = ["added", "changed", "deleted", "unchanged"] as const;
  const said = kinds.filter((kind) => summary[kind] > 0).map((kind) => `${summary[kind]} ${kind}`);
  const detail = said.length > 0 ? ` (${said.join(", ")})` : "";
  const made = `${counted(summary.files, "file")}, ${counted(summary.chunks, "chunk")}`;
  return cleanLine(`indexed ${summary.repo}: ${made}${detail}, in ${summary.seconds.toFixed(1)} s`);
}
