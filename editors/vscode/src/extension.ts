/** What the editor calls: wires the daemon's client to commands, panel, status bar, chat and tools. */

import * as vscode from "vscode";
import { Daemon } from "./client/daemon";
import { ask, askSelection } from "./ui/ask";
import { deleteConversation, openConversation } from "./ui/conversations";
import { index, indexOpened } from "./ui/index";
import { copyDebugInfo, restartDaemon } from "./ui/maintenance";
import { Panel } from "./ui/panel";
import { createParticipant } from "./ui/participant";
import { report, reporting } from "./ui/report";
import { search } from "./ui/search";
import { settings } from "./ui/settings";
import { StatusBar } from "./ui/status";
import { createTool } from "./ui/tool";

/** Editors that are built on this one, and its older versions, lack some of it. */
function offers(part: object | undefined, name: string): boolean {
  return part !== undefined && typeof (part as Record<string, unknown>)[name] === "function";
}

function commands(daemon: Daemon, panel: Panel, bar: StatusBar): Record<string, (given?: unknown) => Promise<void>> {
  return {
    ask: (given) => ask(panel, given),
    askSelection: (given) => askSelection(panel, given),
    cancel: () => {
      panel.cancel();
      return Promise.resolve();
    },
    newConversation: async () => {
      await panel.show();
      panel.reset();
    },
    openConversation: () => openConversation(daemon, panel),
    deleteConversation: () => deleteConversation(panel),
    search: (given) => search(daemon, given),
    index: () => index(daemon, bar),
    restartDaemon: () => restartDaemon(daemon),
    copyDebugInfo: () => copyDebugInfo(daemon),
  };
}

export function activate(context: vscode.ExtensionContext): void {
  const daemon = new Daemon({
    executable: settings.executable,
    warn: (line) => {
      void vscode.window.showWarningMessage(`kvd: ${line}`);
    },
  });
  const bar = new StatusBar(daemon);
  const panel = new Panel(daemon, context.extensionUri);
  const indexAll = (): void => {
    indexOpened(daemon, bar).catch(report);
  };
  context.subscriptions.push(
    bar,
    panel,
    daemon,
    vscode.window.registerWebviewViewProvider(Panel.id, panel),
    vscode.workspace.onDidChangeWorkspaceFolders(indexAll),
    vscode.workspace.onDidGrantWorkspaceTrust(indexAll),
    ...Object.entries(commands(daemon, panel, bar)).map(([name, handler]) =>
      vscode.commands.registerCommand(`kvd.${name}`, reporting(handler)),
    ),
  );
  if (offers(vscode.chat, "createChatParticipant")) {
    context.subscriptions.push(createParticipant(daemon, context.extensionUri));
  }
  if (offers(vscode.lm, "registerTool")) {
    context.subscriptions.push(createTool(daemon));
  }
  indexAll();
}
