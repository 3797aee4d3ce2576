/** Commands that ask. */

import * as vscode from "vscode";
import { Problem } from "../client/problem";
import type { Panel } from "./panel";
import { chosenRoot, passageOf } from "./places";

/** @param given the question, where a key binding says one */
export async function ask(panel: Panel, given?: unknown): Promise<void> {
  const question = typeof given === "string" ? given.trim() : "";
  if (question === "") {
    await panel.show();
    return;
  }
  const root = await chosenRoot();
  await panel.show();
  await panel.ask(root, question);
}

/** About the selected lines, or the cursor's. */
export async function askSelection(panel: Panel, given?: unknown): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (!editor) {
    throw new Problem("usage", "no text is selected", "kvd: Ask…");
  }
  const root = await chosenRoot();
  const passage = await passageOf(editor.document, editor.selection, root);
  const typed = typeof given === "string" ? given : await typedQuestion(passage.label);
  const question = (typed ?? "").trim();
  if (question !== "") {
    await panel.show();
    await panel.ask(root, question, passage);
  }
}

function typedQuestion(label: string): Thenable<string | undefined> {
  return vscode.window.showInputBox({ title: `Ask kvd about ${label}`, prompt: "The selected lines go with the question." });
}
