/** The extension's settings, as they are now. What a workspace that is not trusted says of them, the editor leaves out. */

import * as vscode from "vscode";
import type { AskOptions } from "../client/protocol";

function value<T>(name: string, otherwise: T, root?: string): T {
  const scope = root === undefined ? null : vscode.Uri.file(root);
  return vscode.workspace.getConfiguration("kvd", scope).get<T>(name) ?? otherwise;
}

export const settings = {
  executable: (): string => value("executable", "").trim() || "kvd",
  indexOnOpen: (root: string): boolean => value("indexOnOpen", false, root),
  topK: (root: string): number | null => value<number | null>("topK", null, root),
  ask: (root: string): AskOptions => ({
    top_k: settings.topK(root),
    budget: value<number | null>("budget", null, root),
    max_tokens: value<number | null>("maxTokens", null, root),
    rerank_ms: value<number | null>("rerankMs", null, root),
  }),
};
