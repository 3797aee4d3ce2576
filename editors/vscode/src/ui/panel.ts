/** The side panel: a conversation, shown by a webview that may come and go. */

import { randomBytes } from "node:crypto";
import { basename } from "node:path";
import * as vscode from "vscode";
import { Conversation } from "../client/conversation";
import type { Daemon } from "../client/daemon";
import type { Passage } from "../client/passage";
import type { FromPanel, State, ToPanel } from "../webview/messages";
import { pageOf } from "./page";
import { chosenRoot, openSource } from "./places";
import { report } from "./report";
import { settings } from "./settings";

// So often at most what is being answered is shown anew.
const drawMs = 50;

export class Panel implements vscode.WebviewViewProvider {
  static readonly id = "kvd.panel";
  #conversation: Conversation | null = null;
  #view: vscode.WebviewView | null = null;
  #drawing: NodeJS.Timeout | undefined;
  #shown = 0;
  #focus = false;

  constructor(
    private readonly daemon: Daemon,
    private readonly extension: vscode.Uri,
  ) {}

  get conversation(): Conversation | null {
    return this.#conversation;
  }

  resolveWebviewView(view: vscode.WebviewView): void {
    this.#view = view;
    view.webview.options = {
      enableScripts: true,
      localResourceRoots: [vscode.Uri.joinPath(this.extension, "dist"), vscode.Uri.joinPath(this.extension, "media")],
    };
    view.webview.onDidReceiveMessage((message: FromPanel) => {
      this.#receive(message).catch(report);
    });
    view.onDidDispose(() => {
      this.#view = null;
    });
    view.webview.html = pageOf(view.webview, this.extension, randomBytes(16).toString("hex"));
  }

  /** Brings the panel up, with the cursor where a question is typed. */
  async show(): Promise<void> {
    this.#focus = true;
    await vscode.commands.executeCommand(`${Panel.id}.focus`);
    this.#tell({ kind: "focus" });
  }

  /** Asks in the conversation that is shown, in a new one where that is about another repository. */
  async ask(root: string, question: string, passage?: Passage): Promise<void> {
    if (this.#conversation?.root !== root) {
      this.#change(this.#new(root));
    }
    await this.#conversation?.ask(question, passage);
  }

  cancel(): void {
    this.#conversation?.cancel();
  }

  /** The next question begins a conversation. */
  reset(): void {
    this.#change(null);
  }

  async resume(root: string, name: string): Promise<void> {
    const conversation = this.#new(root);
    await conversation.resume(name);
    this.#change(conversation);
  }

  async delete(): Promise<void> {
    const conversation = this.#conversation;
    await conversation?.delete();
    this.#conversation = null;
    this.#drawAll();
  }

  dispose(): void {
    clearTimeout(this.#drawing);
    this.#conversation?.cancel();
  }

  #new(root: string): Conversation {
    const conversation = new Conversation(this.daemon, root, () => settings.ask(root), () => {
      if (this.#conversation === conversation) {
        this.#drawSoon();
      }
    });
    return conversation;
  }

  #change(conversation: Conversation | null): void {
    const before = this.#conversation;
    this.#conversation = conversation;
    this.#drawAll();
    // It only frees memory: nobody waits for it, and whether it fails makes no difference to anybody.
    before?.end().catch(() => undefined);
  }

  async #receive(message: FromPanel): Promise<void> {
    switch (message.kind) {
      case "ready":
        this.#drawAll();
        if (this.#focus) {
          this.#tell({ kind: "focus" });
        }
        break;
      case "ask":
        await this.ask(this.#conversation?.root ?? (await chosenRoot()), message.question);
        break;
      case "cancel":
        this.cancel();
        break;
      case "open":
        await this.#open(message.turn, message.source);
    }
  }

  async #open(turn: number, source: number): Promise<void> {
    const found = this.#conversation?.turns[turn]?.sources[source];
    if (this.#conversation && found) {
      await openSource(this.#conversation.root, found);
    }
  }

  #state(): State {
    const { root = "", name, busy = false, turns = [] } = this.#conversation ?? {};
    return { repository: basename(root), conversation: name ?? "", busy, turns };
  }

  #tell(message: ToPanel): void {
    void this.#view?.webview.postMessage(message);
  }

  #drawAll(): void {
    clearTimeout(this.#drawing);
    this.#drawing = undefined;
    const state = this.#state();
    this.#shown = state.turns.length;
    this.#tell({ kind: "state", state });
    this.#tellContext(state);
  }

  #drawSoon(): void {
    this.#drawing ??= setTimeout(() => {
      this.#drawing = undefined;
      this.#draw();
    }, drawMs);
  }

  /** Only the last turn can have changed, unless a question took the place of another. */
  #draw(): void {
    const { turns, ...state } = this.#state();
    const turn = turns.at(-1);
    if (!turn || turns.length !== this.#shown) {
      this.#drawAll();
      return;
    }
    this.#tell({ kind: "turn", index: turns.length - 1, turn, state });
    this.#tellContext(state);
  }

  #tellContext({ busy, conversation }: Omit<State, "turns">): void {
    void vscode.commands.executeCommand("setContext", "kvd.busy", busy);
    void vscode.commands.executeCommand("setContext", "kvd.conversation", conversation !== "");
  }
}
