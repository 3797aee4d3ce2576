/** A search as one types, and the place that is chosen. */

import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import { problemOf, isCancelled, told } from "../client/problem";
import type { Source } from "../client/protocol";
import { cleanLine } from "../client/text";
import { chosenRoot, openSource } from "./places";
import { report } from "./report";
import { settings } from "./settings";

// So long after the last key is searched.
const pauseMs = 150;

interface Item extends vscode.QuickPickItem {
  source?: Source;
}

function itemOf(source: Source): Item {
  const cut = source.path.lastIndexOf("/") + 1;
  return {
    label: `$(symbol-method) ${cleanLine(source.symbol || source.path.slice(cut))}`,
    description: cleanLine(`${source.path}:${source.start_line}-${source.end_line}`),
    // The daemon has found and ordered them: what is typed must not filter them again.
    alwaysShow: true,
    source,
  };
}

function nothing(label: string): Item[] {
  return [{ label, alwaysShow: true }];
}

/** What is typed into the box is searched; the last one typed is the one whose answer counts. */
class Search {
  readonly #box = vscode.window.createQuickPick<Item>();
  #running = new AbortController();
  #timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly daemon: Daemon,
    private readonly root: string,
  ) {
    // The best come first. Types of this version don't know it, the editors do.
    Object.assign(this.#box, { sortByLabel: false });
    this.#box.title = `kvd: Search ${root}`;
    this.#box.placeholder = "A question, a name, file:line, quoted text, or a stack trace";
    this.#box.onDidChangeValue((query) => {
      this.#typed(query.trim());
    });
    this.#box.onDidAccept(() => {
      this.#accept();
    });
    this.#box.onDidHide(() => {
      clearTimeout(this.#timer);
      this.#running.abort();
      this.#box.dispose();
    });
  }

  open(query: string): void {
    this.#box.value = query;
    this.#box.show();
    this.#typed(query);
  }

  #typed(query: string): void {
    clearTimeout(this.#timer);
    this.#running.abort();
    this.#running = new AbortController();
    const { signal } = this.#running;
    this.#box.busy = query !== "";
    if (query === "") {
      this.#box.items = [];
      return;
    }
    this.#timer = setTimeout(() => {
      void this.#search(query, signal);
    }, pauseMs);
  }

  async #search(query: string, signal: AbortSignal): Promise<void> {
    const params = { query, repo: this.root, top_k: settings.topK(this.root) };
    let items: Item[];
    try {
      const { sources } = await this.daemon.request("search", params, { signal });
      items = sources.length > 0 ? sources.map(itemOf) : nothing("Nothing relevant was found");
    } catch (reason) {
      if (isCancelled(reason)) {
        return;
      }
      items = nothing(`$(error) ${told(problemOf(reason))}`);
    }
    if (!signal.aborted) {
      this.#box.items = items;
      this.#box.busy = false;
    }
  }

  #accept(): void {
    const source = this.#box.selectedItems[0]?.source;
    if (source) {
      this.#box.hide();
      openSource(this.root, source).catch(report);
    }
  }
}

/** @param given what to search for, where a key binding says it; the selected text otherwise */
export async function search(daemon: Daemon, given?: unknown): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  const selected = editor ? editor.document.getText(editor.selection) : "";
  new Search(daemon, await chosenRoot()).open((typeof given === "string" ? given : selected).trim());
}
