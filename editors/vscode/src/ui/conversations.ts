/** Conversations that the daemon has kept. */

import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import { cleanLine, counted } from "../client/text";
import type { Panel } from "./panel";
import { chosenRoot } from "./places";

export async function openConversation(daemon: Daemon, panel: Panel): Promise<void> {
  const repo = panel.conversation?.root ?? (await chosenRoot());
  const { sessions } = await daemon.request("session/list", { repo });
  const items = sessions.map(({ name, turns, used_at: used }) => ({
    label: cleanLine(name),
    description: `${counted(turns, "question")}, last used ${new Date(used * 1000).toLocaleString()}`,
    name,
  }));
  if (items.length === 0) {
    void vscode.window.showInformationMessage("kvd: there is no conversation about this repository yet");
    return;
  }
  const chosen = await vscode.window.showQuickPick(items, { placeHolder: "Go on with which conversation?" });
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
