/** Lines that go with a question. */

import { Problem } from "./problem";

export interface Passage {
  /** `path:first-last` */
  label: string;
  language: string;
  text: string;
}

const longest = 20_000;

/** The question as it is asked; throws a `Problem` where that is too much for one. */
export function withPassage(question: string, passage: Passage | undefined): string {
  const whole = passage ? `${question}\n\nThis is about ${passage.label}:\n${fenced(passage)}` : question;
  // As the daemon counts: in code points.
  if (Array.from(whole).length > longest) {
    throw new Problem("usage", "that is too much for one question", passage ? "select fewer lines" : "ask for less");
  }
  return whole;
}

/** The text as a block of code that it can't end itself. */
export function fenced({ language, text }: Omit<Passage, "label">): string {
  const runs = text.match(/`{3,}/g) ?? [];
  const fence = "`".repeat(Math.max(3, ...runs.map((run) => run.length + 1)));
  return `${fence}${language}\n${text}\n${fence}`;
}
