/** From the editor to the daemon's places, and back. */

import { realpath } from "node:fs/promises";
import { basename, dirname, join, relative } from "node:path";
import * as vscode from "vscode";
import type { Passage } from "../client/passage";
import { cancelled, Problem } from "../client/problem";
import type { Source } from "../client/protocol";
import { rootOf } from "../client/repository";

function folders(): readonly vscode.WorkspaceFolder[] {
  return (vscode.workspace.workspaceFolders ?? []).filter(({ uri }) => uri.scheme === "file");
}

/** The roots of the workspace's folders, each once. */
export async function workspaceRoots(): Promise<string[]> {
  return [...new Set(await Promise.all(folders().map(({ uri }) => rootOf(uri.fsPath))))];
}

/** The root of the repository that the active editor's file belongs to; null without such a file. */
async function activeRoot(): Promise<string | null> {
  const uri = vscode.window.activeTextEditor?.document.uri;
  return uri?.scheme === "file" && vscode.workspace.getWorkspaceFolder(uri) ? rootOf(dirname(uri.fsPath)) : null;
}

/** Those that are meant without asking: the active file's, else the workspace's. */
export async function likelyRoots(): Promise<string[]> {
  const active = await activeRoot();
  return active === null ? workspaceRoots() : [active];
}

/** The repository that is meant; the user chooses where several could be. Throws a `Problem` where there is none. */
export async function chosenRoot(): Promise<string> {
  const [first, ...others] = await likelyRoots();
  if (first === undefined) {
    throw new Problem("usage", "no folder is open", "File: Open Folder…");
  }
  if (others.length === 0) {
    return first;
  }
  const items = [first, ...others].map((root) => ({ label: basename(root), description: root, root }));
  const chosen = await vscode.window.showQuickPick(items, { placeHolder: "Which repository?" });
  if (!chosen) {
    throw cancelled();
  }
  return chosen.root;
}

/** Lines of a document as they are in the editor, saved or not. */
export async function passageOf(document: vscode.TextDocument, range: vscode.Range, root: string): Promise<Passage> {
  const [first, last] = [range.start.line, lastLine(range)];
  const text = document.getText(new vscode.Range(first, 0, last, Number.MAX_SAFE_INTEGER));
  const language = document.languageId === "plaintext" ? "" : document.languageId;
  return { label: `${await pathOf(document, root)}:${first + 1}-${last + 1}`, language, text };
}

async function pathOf(document: vscode.TextDocument, root: string): Promise<string> {
  if (document.uri.scheme !== "file") {
    return basename(document.uri.path) || "untitled";
  }
  const file = await realpath(document.uri.fsPath).catch(() => document.uri.fsPath);
  const within = relative(root, file);
  return within.startsWith("..") ? file : within;
}

/** A selection that ends before a line's first character does not mean that line. */
function lastLine({ start, end }: vscode.Range): number {
  return end.character === 0 && end.line > start.line ? end.line - 1 : end.line;
}

export function locationOf(root: string, source: Source): vscode.Location {
  const range = new vscode.Range(source.start_line - 1, 0, source.end_line - 1, Number.MAX_SAFE_INTEGER);
  return new vscode.Location(vscode.Uri.file(join(root, source.path)), range);
}

const highlight = vscode.window.createTextEditorDecorationType({
  isWholeLine: true,
  backgroundColor: new vscode.ThemeColor("editor.rangeHighlightBackground"),
  borderWidth: "0 0 0 2px",
  borderStyle: "solid",
  borderColor: new vscode.ThemeColor("focusBorder"),
  overviewRulerColor: new vscode.ThemeColor("editorOverviewRuler.rangeHighlightForeground"),
});

/** Opens the place's file at its first line and highlights its lines, until the cursor moves. */
export async function openSource(root: string, source: Source): Promise<void> {
  const { uri, range } = locationOf(root, source);
  let document;
  try {
    document = await vscode.workspace.openTextDocument(uri);
  } catch {
    throw new Problem("failed", `can't open ${source.path}; it may not be there any more`, "kvd: Update Index");
  }
  const editor = await vscode.window.showTextDocument(document, { selection: new vscode.Range(range.start, range.start) });
  const lines = document.validateRange(range);
  editor.setDecorations(highlight, [lines]);
  editor.revealRange(lines, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  const moved = vscode.window.onDidChangeTextEditorSelection((change) => {
    if (change.textEditor === editor && change.kind !== undefined) {
      editor.setDecorations(highlight, []);
      moved.dispose();
    }
  });
}
