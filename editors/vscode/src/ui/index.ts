/** Brings indexes up to date. */

import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import { stageLine, summaryLine } from "../client/text";
import { chosenRoot, workspaceRoots } from "./places";
import { report } from "./report";
import { settings } from "./settings";
import type { StatusBar } from "./status";

async function update(daemon: Daemon, bar: StatusBar, path: string): Promise<string> {
  const doing = bar.begin("indexing");
  try {
    const summary = await daemon.request("index", { path }, {
      progress: (value) => {
        if ((value.kind as string) === "stage" && value.kind !== "token") {
          doing.say(stageLine(value));
        }
      },
    });
    return summaryLine(summary);
  } finally {
    doing.finish();
  }
}

export async function index(daemon: Daemon, bar: StatusBar): Promise<void> {
  const line = await update(daemon, bar, await chosenRoot());
  void vscode.window.showInformationMessage(`kvd: ${line}`);
}

/** Those of the trusted workspace whose settings want it, one after the other. */
export async function indexOpened(daemon: Daemon, bar: StatusBar): Promise<void> {
  if (!vscode.workspace.isTrusted) {
    return;
  }
  for (const root of await workspaceRoots()) {
    if (settings.indexOnOpen(root)) {
      await update(daemon, bar, root).catch(report);
    }
  }
}
