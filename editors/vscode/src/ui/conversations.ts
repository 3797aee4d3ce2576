/** Conversations that the daemon has kept. */

import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import { cleanLine, counted } from "../client/text";
import type { Panel } from "./panel";
import { chosenRoot } from "./places";

// So many of the last used ones are offered.
const most = 50;

interface Item extends vscode.QuickPickItem {
  name: string;
}

async function itemsFor(daemon: Daemon, repo: string): Promise<Item[]> {
  const { sessions } = await daemon.request("session/list", { repo });
  const spoken = sessions.filter(({ turns }) => turns > 0).slice(0, most);
  return Promise.all(
    spoken.map(async ({ name, turns, used_at: used }) => {
      const shown = await daemon.request("session/show", { repo, name });
      const when = new Date(used * 1000).toLocaleString();
      return {
        label: cleanLine(shown.turns[0]?.question ?? name).slice(0, 100),
        description: cleanLine(name),
        detail: `${counted(turns, "question")}, last used ${when}`,
        name,
      };
    }),
  );
}

export async function openConversation(daemon: Daemon, panel: Panel): Promise<void> {
  const repo = panel.conversation?.root ?? (await chosenRoot());
  const items = await itemsFor(daemon, repo);
  if (items.length === 0) {
    void vscode.window.showInformationMessage("kvd: there is no conversation about this repository yet");
    return;
  }
  const chosen = await vscode.window.showQuickPick(items, {
    placeHolder: "Go on with which conversation?",
    matchOnDescription: true,
  });
  if (chosen) {
    await panel.resume(repo, chosen.name);
    await panel.show();
  }
}

export async function deleteConversation(panel: Panel): Promise<void> {
  const name = panel.conversation?.name;
  if (name === undefined || name === null) {
    return;
  }
  const button = "Delete";
  const detail = "What was said is overwritten on disk. This can't be undone.";
  const chosen = await vscode.window.showWarningMessage(
    `Delete the conversation ${cleanLine(name)} for good?`,
    { modal: true, detail },
    button,
  );
  if (chosen === button) {
    await panel.delete();
  }
}
