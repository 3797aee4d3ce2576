/** Tells what went wrong: one message, with the cure. */

import * as vscode from "vscode";
import { isCancelled, problemOf, told } from "../client/problem";
import { settings } from "./settings";

const settingsButton = "Open Settings";

/** Nothing where the user cancelled it. Waits for nobody. */
export function report(reason: unknown): void {
  if (isCancelled(reason)) {
    return;
  }
  const problem = problemOf(reason);
  const { code, hint } = problem;
  const typed = hint.startsWith("kvd ") ? "Type It into a Terminal" : "";
  const button = code === "no-program" ? settingsButton : typed;
  void vscode.window.showErrorMessage(`kvd: ${told(problem)}`, ...(button ? [button] : [])).then((chosen) => {
    if (chosen === settingsButton) {
      void vscode.commands.executeCommand("workbench.action.openSettings", "kvd.executable");
    } else if (chosen) {
      typeCommand(hint);
    }
  });
}

/** It is the user who presses Enter. A hint may say more after a semicolon. */
function typeCommand(hint: string): void {
  const words = (hint.split(/[;(,]/)[0] ?? "").trim().replace(/^kvd /, "");
  const program = settings.executable();
  const terminal = vscode.window.createTerminal("kvd");
  terminal.show();
  terminal.sendText(`${/\s/.test(program) ? `'${program}'` : program} ${words}`, false);
}

/** A handler of a command, whose failures are told. */
export function reporting<A extends unknown[]>(handler: (...given: A) => Promise<void>): (...given: A) => Promise<void> {
  return async (...given) => {
    try {
      await handler(...given);
    } catch (reason) {
      report(reason);
    }
  };
}
