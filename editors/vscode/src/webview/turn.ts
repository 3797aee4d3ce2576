/** One question with its answer, as elements. Text goes in as text; only an answer's Markdown is HTML. */

import type { Turn } from "../client/conversation";
import type { AnswerSource } from "../client/protocol";
import { cleanLine, counted, placeOf } from "../client/text";
import { rendered } from "./markdown";

function element(tag: string, kind: string, text = ""): HTMLElement {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = text;
  return made;
}

function link(button: HTMLElement, turn: number, source: number, sources: AnswerSource[]): void {
  const place = sources[source];
  button.dataset.turn = String(turn);
  button.dataset.source = String(source);
  button.title = place ? `${placeOf(place)} ${cleanLine(place.symbol)}`.trim() : "";
}

function answerElement(turn: Turn, index: number): HTMLElement {
  const made = element("div", "answer");
  made.innerHTML = rendered(turn.answer, turn.sources);
  for (const button of made.querySelectorAll<HTMLElement>("[data-source]")) {
    link(button, index, Number(button.dataset.source), turn.sources);
  }
  return made;
}

function sourceElement(source: AnswerSource, turn: Turn, index: number, number: number): HTMLElement {
  const item = document.createElement("li");
  const button = element("button", source.cited ? "source cited" : "source");
  button.setAttribute("type", "button");
  const cut = source.path.lastIndexOf("/") + 1;
  const lines = `:${source.start_line}-${source.end_line}`;
  button.append(
    element("span", "label", source.label === undefined ? "" : String(source.label)),
    element("span", "file", cleanLine(source.path.slice(cut)) + lines),
    element("span", "symbol", cleanLine(source.symbol)),
    element("span", "folder", cleanLine(source.path.slice(0, Math.max(0, cut - 1)))),
  );
  link(button, index, number, turn.sources);
  if (source.cited) {
    button.append(element("span", "mark", "cited"));
  }
  item.append(button);
  return item;
}

function sourcesElement(turn: Turn, index: number): HTMLElement {
  const made = element("section", "sources");
  const list = document.createElement("ul");
  list.append(...turn.sources.map((source, number) => sourceElement(source, turn, index, number)));
  made.append(element("h2", "", counted(turn.sources.length, "source")), list);
  return made;
}

function problemElement({ message, hint }: { message: string; hint: string }): HTMLElement {
  const made = element("p", "problem", message);
  made.setAttribute("role", "alert");
  if (hint) {
    made.append(element("span", hint.startsWith("kvd ") ? "hint typed" : "hint", hint));
  }
  return made;
}

/** @param index of the turn in its conversation, which the buttons tell */
export function turnElement(turn: Turn, index: number): HTMLElement {
  const made = element("article", `turn ${turn.state}`);
  const question = element("div", "question", turn.question);
  if (turn.about) {
    question.append(element("span", "about", turn.about));
  }
  made.append(question);
  if (turn.answer) {
    made.append(answerElement(turn, index));
  }
  if (turn.state === "asking") {
    const stage = element("p", "stage", turn.stage);
    stage.setAttribute("role", "status");
    made.append(stage);
  }
  if (turn.state === "cancelled") {
    made.append(element("p", "notice", "Cancelled."));
  }
  made.append(...turn.notices.map((notice) => element("p", "notice", notice)));
  if (turn.problem) {
    made.append(problemElement(turn.problem));
  }
  if (turn.sources.length > 0) {
    made.append(sourcesElement(turn, index));
  }
  made.append(...turn.memories.map((line) => element("p", "notice", line)));
  if (turn.figures) {
    made.append(element("p", "figures", turn.figures));
  }
  return made;
}
