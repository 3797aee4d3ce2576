/** The status bar: the model, whether its KV is reused, and what is being done. Asks only where there is a connection anyway. */

import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import type { Status } from "../client/protocol";
import { cleanLine } from "../client/text";
import { Panel } from "./panel";

const pollMs = 2000;

/** What the daemon says of itself, for the bar and for its tooltip. */
function words(status: Status): { model: string; reuse: string; doing: string } {
  const { model, engine, indexing } = status;
  const reuse = status.reuse_setting ? (engine.reuse ?? "") : "off";
  const loading = engine.state === "loading" ? "loading the model" : "";
  return {
    model: cleanLine(model?.name ?? "no model"),
    reuse: reuse && `reuse ${cleanLine(reuse)}`,
    doing: indexing.length > 0 ? "indexing" : loading,
  };
}

function details(status: Status): string[] {
  const { daemon, engine, model } = status;
  const problem = model === null ? "No model is set up. Next: kvd setup" : model.error;
  const reason = status.reuse_setting ? (engine.reuse_reason ?? "") : "the settings forbid reuse";
  return [
    `kvd ${daemon.version}, pid ${daemon.pid}`,
    problem,
    reason && `Reuse of KV: ${reason}`,
    `Engine: ${engine.state}`,
    `Repositories in the index: ${status.indexes.length}`,
  ]
    .filter(Boolean)
    .map(cleanLine);
}

export class StatusBar {
  readonly #item = vscode.window.createStatusBarItem("kvd.status", vscode.StatusBarAlignment.Right, 90);
  readonly #running = new Map<symbol, string>();
  #status: Status | null = null;
  #asking = false;
  #resting = false;
  readonly #timer: NodeJS.Timeout;

  constructor(private readonly daemon: Daemon) {
    this.#item.name = "kvd";
    this.#item.command = `${Panel.id}.focus`;
    this.#timer = setInterval(() => {
      void this.#poll();
    }, pollMs);
    this.#draw();
    this.#item.show();
  }

  /** Shows that something is being done until `finish` is called. */
  begin(what: string): { say: (words: string) => void; finish: () => void } {
    const key = Symbol(what);
    const say = (line: string): void => {
      this.#running.set(key, line);
      this.#draw();
    };
    say(what);
    return {
      say,
      finish: () => {
        this.#running.delete(key);
        this.#draw();
        void this.#poll();
      },
    };
  }

  dispose(): void {
    clearInterval(this.#timer);
    this.#item.dispose();
  }

  async #poll(): Promise<void> {
    if (this.#asking) {
      return;
    }
    if (this.daemon.connected) {
      const resting = this.daemon.busy === 0 && (this.#status === null || words(this.#status).doing === "");
      // Once more after the end: the daemon's log has a line of each request.
      if (!resting || !this.#resting) {
        this.#asking = true;
        this.#status = await this.daemon.request("status", {}, { quiet: true }).catch(() => this.#status);
        this.#asking = false;
      }
      this.#resting = resting;
    } else if (this.#status?.indexing.length) {
      // Of a daemon that nothing is heard of, nothing is known to go on.
      this.#status = { ...this.#status, indexing: [] };
    }
    this.#draw();
  }

  #draw(): void {
    const said = this.#status && words(this.#status);
    const doing = [...this.#running.values()].at(-1) ?? said?.doing ?? "";
    const facts = said ? [said.model, said.reuse].filter(Boolean).join(" · ") : "";
    const icon = doing ? "$(sync~spin)" : "$(comment-discussion)";
    this.#item.text = [icon, "kvd", facts, doing && `– ${doing}`].filter(Boolean).join(" ");
    const lines = this.#status ? details(this.#status) : ["kvd was not used yet in this window"];
    this.#item.tooltip = [...lines, "Click to ask"].join("\n");
  }
}
