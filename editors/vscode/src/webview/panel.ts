/** The panel's script: shows what the extension tells, tells it what is clicked and typed. */

import type { FromPanel, State, ToPanel } from "./messages";
import { turnElement } from "./turn";

declare function acquireVsCodeApi(): {
  postMessage: (message: FromPanel) => void;
  setState: (state: { draft: string }) => void;
  getState: () => { draft: string } | undefined;
};

function found(id: string): HTMLElement {
  const element = document.getElementById(id);
  if (!element) {
    throw new Error(`the page has no ${id}`);
  }
  return element;
}

const api = acquireVsCodeApi();
const turns = found("turns");
const empty = found("empty");
const form = found("form");
const input = found("question") as HTMLTextAreaElement;
const send = found("send") as HTMLButtonElement;
const about = found("about");
let busy = false;

/** Whether the end is in sight, so that what comes is followed. */
function atEnd(): boolean {
  return turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
}

function fit(): void {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, 200)}px`;
  send.disabled = !busy && input.value.trim() === "";
}

function head(state: Omit<State, "turns">): void {
  busy = state.busy;
  send.textContent = busy ? "Cancel" : "Ask";
  about.textContent = [state.repository, state.conversation].filter(Boolean).join(" · ");
  input.placeholder = state.conversation ? "Ask a follow-up question" : "Ask about this repository";
  empty.hidden = turns.childElementCount > 0;
  fit();
}

function show(message: ToPanel): void {
  if (message.kind === "focus") {
    input.focus();
    return;
  }
  const follow = atEnd();
  if (message.kind === "state") {
    turns.replaceChildren(...message.state.turns.map(turnElement));
    head(message.state);
    turns.scrollTop = turns.scrollHeight;
    return;
  }
  const old = turns.children.item(message.index);
  const element = turnElement(message.turn, message.index);
  if (old) {
    old.replaceWith(element);
  } else {
    turns.append(element);
  }
  head(message.state);
  if (follow || !old) {
    turns.scrollTop = turns.scrollHeight;
  }
}

function ask(): void {
  const question = input.value.trim();
  if (question !== "") {
    api.postMessage({ kind: "ask", question });
    input.value = "";
    api.setState({ draft: "" });
    fit();
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (busy) {
    api.postMessage({ kind: "cancel" });
  } else {
    ask();
  }
});

input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ask();
  }
});

input.addEventListener("input", () => {
  api.setState({ draft: input.value });
  fit();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && busy) {
    api.postMessage({ kind: "cancel" });
  }
});

turns.addEventListener("click", (event) => {
  const button = (event.target as Element).closest<HTMLElement>("[data-source]");
  if (button) {
    api.postMessage({ kind: "open", turn: Number(button.dataset.turn), source: Number(button.dataset.source) });
  }
});

window.addEventListener("message", (event: MessageEvent<ToPanel>) => {
  show(event.data);
});

input.value = api.getState()?.draft ?? "";
fit();
api.postMessage({ kind: "ready" });
