/** Questions that go on from one another, and their answers as they come. */

import type { Daemon } from "./daemon";
import { withPassage, type Passage } from "./passage";
import { isCancelled, problemOf } from "./problem";
import type { AnswerSource, AskOptions, AskResult, Progress, SaidTurn } from "./protocol";
import { clean, cleanLine, figures, memoryLine, stageLine } from "./text";

/** A question and what there is of its answer: all that has to be shown of it. */
export interface Turn {
  question: string;
  /** `path:first-last` of the lines that it is about, or "". */
  about: string;
  answer: string;
  state: "asking" | "done" | "cancelled" | "failed";
  /** What is being done, until the answer begins. */
  stage: string;
  sources: AnswerSource[];
  /** Which turns of earlier conversations were recalled, a line each. */
  memories: string[];
  notices: string[];
  figures: string;
  problem: { message: string; hint: string } | null;
}

function newTurn(question: string, about: string): Turn {
  const nothing = { answer: "", sources: [], memories: [], notices: [], figures: "", problem: null };
  return { question, about, state: "asking", stage: "asking the daemon", ...nothing };
}

const cutOff = "Cut off: the answer reached its limit (kvd.maxTokens).";

function complete(turn: Turn, result: AskResult): void {
  turn.state = "done";
  turn.answer = clean(result.answer);
  turn.sources = result.sources;
  turn.memories = (result.memories ?? []).map(memoryLine);
  turn.figures = figures(result);
  turn.notices = [...(result.finish === "length" ? [cutOff] : []), ...(result.notices ?? []).map(cleanLine)];
}

export class Conversation {
  readonly turns: Turn[] = [];
  /** By which the daemon knows it; null until something was asked. */
  name: string | null = null;
  #running: AbortController | null = null;

  /** @param changed called whenever there is more to show */
  constructor(
    private readonly daemon: Daemon,
    /** The repository's root. */
    readonly root: string,
    private readonly options: () => AskOptions,
    private readonly changed: () => void,
  ) {}

  get busy(): boolean {
    return this.#running !== null;
  }

  /** Takes over what was said in a conversation that the daemon has. */
  async resume(name: string): Promise<void> {
    const shown = await this.daemon.request("session/show", { repo: this.root, name });
    this.name = name;
    this.turns.push(...shown.turns.map((said) => saidTurn(said, shown.model)));
    this.changed();
  }

  /**
   * Asks; what comes of it, failures too, is in the last turn. A question that is being answered is cancelled.
   *
   * Throws a `Problem` only for what can't be a question.
   */
  async ask(question: string, passage?: Passage): Promise<void> {
    const whole = withPassage(question, passage);
    this.cancel();
    const running = new AbortController();
    this.#running = running;
    const turn = newTurn(clean(question), passage ? cleanLine(passage.label) : "");
    this.turns.push(turn);
    this.changed();
    try {
      complete(turn, await this.#answer(whole, turn, running.signal));
    } catch (reason) {
      const { message, hint } = problemOf(reason);
      turn.state = isCancelled(reason) ? "cancelled" : "failed";
      turn.problem = isCancelled(reason) ? null : { message: cleanLine(message), hint: cleanLine(hint) };
    } finally {
      turn.stage = "";
      if (this.#running === running) {
        this.#running = null;
      }
      this.changed();
    }
  }

  cancel(): void {
    this.#running?.abort();
    this.#running = null;
  }

  /** Frees the memory that it takes; what was said is kept. Where nothing was, nothing is left of it. */
  async end(): Promise<void> {
    this.cancel();
    if (this.name !== null && this.daemon.connected) {
      const said = this.turns.some((turn) => turn.state === "done");
      await this.daemon.request(said ? "session/close" : "session/delete", { repo: this.root, name: this.name });
    }
  }

  /** Deletes it for good. */
  async delete(): Promise<void> {
    this.cancel();
    if (this.name !== null) {
      await this.daemon.request("session/delete", { repo: this.root, name: this.name });
    }
  }

  async #answer(question: string, turn: Turn, signal: AbortSignal): Promise<AskResult> {
    const repo = this.root;
    this.name ??= (await this.daemon.request("session/create", { repo }, { signal })).name;
    const progress = (value: Progress): void => {
      if (value.kind === "token") {
        turn.answer = (turn.answer + clean(value.text)).trimStart();
        turn.stage = "answering";
      } else if ((value.kind as string) === "stage") {
        turn.stage = stageLine(value);
      }
      this.changed();
    };
    const params = { ...this.options(), question, repo, session: this.name };
    return this.daemon.request("ask", params, { signal, progress });
  }
}

/** A turn that was read back. Lines that went with its question are part of it. */
function saidTurn(said: SaidTurn, model: string | null): Turn {
  const turn = newTurn(clean(said.question), "");
  complete(turn, { ...said, model, session: null });
  turn.stage = "";
  return turn;
}
