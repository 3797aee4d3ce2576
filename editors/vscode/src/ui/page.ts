/** The panel's page. It loads nothing but this extension's own script and style. */

import * as vscode from "vscode";

/** @param nonce new for every page */
export function pageOf(webview: vscode.Webview, extension: vscode.Uri, nonce: string): string {
  const uri = (...path: string[]): string => webview.asWebviewUri(vscode.Uri.joinPath(extension, ...path)).toString();
  const policy = `default-src 'none'; style-src ${webview.cspSource}; script-src 'nonce-${nonce}'`;
  return `<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta http-equiv="Content-Security-Policy" content="${policy}">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <link rel="stylesheet" href="${uri("media", "panel.css")}">
  <title>kvd</title>
</head>
<body>
  <div id="empty">
    Ask about the repository that is open. The model, the index and your questions stay on this machine.
  </div>
  <main id="turns" aria-label="Conversation"></main>
  <form id="form">
    <textarea id="question" rows="1" maxlength="20000" aria-label="Question" placeholder="Ask about this repository"></textarea>
    <div class="row"><span id="about"></span><button id="send" type="submit" disabled>Ask</button></div>
  </form>
  <script nonce="${nonce}" src="${uri("dist", "panel.js")}"></script>
</body>
</html>`;
}
