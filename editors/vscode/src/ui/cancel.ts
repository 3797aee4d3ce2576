import type { CancellationToken } from "vscode";

/** The editor's token as the signal that requests take. */
export function signalOf(token: CancellationToken): AbortSignal {
  const control = new AbortController();
  if (token.isCancellationRequested) {
    control.abort();
  }
  token.onCancellationRequested(() => {
    control.abort();
  });
  return control.signal;
}
