/** Restarting the daemon, and what to send along with a report of a fault. */

import { release } from "node:os";
import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import { version } from "../client/dial";
import { run } from "../client/executable";
import { problemOf, told } from "../client/problem";
import { socketPath } from "../client/socket";
import { settings } from "./settings";

export async function restartDaemon(daemon: Daemon): Promise<void> {
  const title = "kvd: restarting the daemon";
  await vscode.window.withProgress({ location: vscode.ProgressLocation.Notification, title }, async () => {
    await run(settings.executable(), "stop", "--now");
    daemon.close();
    await run(settings.executable(), "start");
  });
  void vscode.window.showInformationMessage("kvd: the daemon was restarted");
}

/** The promise's value, or why there is none. */
async function said(value: Promise<unknown>): Promise<unknown> {
  return value.catch((reason: unknown) => told(problemOf(reason)));
}

/** Nothing of it is code, a question or the name of a repository. */
async function debugInfo(daemon: Daemon): Promise<Record<string, unknown>> {
  const status = daemon.connected
    ? await said(daemon.request("status", {}, { quiet: true }))
    : await said(run(settings.executable(), "status", "--json").then(JSON.parse));
  const counts =
    typeof status === "object"
      ? Object.fromEntries(
          Object.entries(status as Record<string, unknown>)
            .filter(([name]) => name !== "metrics")
            .map(([name, value]) => [name, Array.isArray(value) ? value.length : value]),
        )
      : status;
  return {
    extension: version,
    editor: `${vscode.env.appName} ${vscode.version}`,
    remote: vscode.env.remoteName ?? "",
    trusted: vscode.workspace.isTrusted,
    folders: vscode.workspace.workspaceFolders?.length ?? 0,
    node: process.version,
    system: `${process.platform} ${process.arch} ${release()}`,
    program: await said(run(settings.executable(), "--version").then((line) => line.trim())),
    socket: await said(socketPath()),
    connected: daemon.connected,
    status: counts,
  };
}

export async function copyDebugInfo(daemon: Daemon): Promise<void> {
  await vscode.env.clipboard.writeText(JSON.stringify(await debugInfo(daemon), null, 2));
  void vscode.window.showInformationMessage("kvd: copied; it has no code, questions or names of repositories in it");
}
