/** `@kvd` in the editor's own chat. */

import * as vscode from "vscode";
import type { Daemon } from "../client/daemon";
import { withPassage } from "../client/passage";
import { isCancelled, problemOf, told } from "../client/problem";
import type { AskResult } from "../client/protocol";
import { clean, cleanLine, figures, memoryLine, placeOf, stageLine } from "../client/text";
import { Unpictured } from "../client/unpictured";
import { signalOf } from "./cancel";
import { chosenRoot, locationOf, passageOf } from "./places";
import { settings } from "./settings";

const id = "kvd.participant";

interface Metadata {
  session: string;
  root: string;
}

/** The conversation that this chat has had so far about the repository. */
function sessionOf(context: vscode.ChatContext, root: string): string | null {
  for (const turn of [...context.history].reverse()) {
    if ("result" in turn && turn.participant === id) {
      const { metadata } = turn.result as { metadata?: Partial<Metadata> };
      if (metadata?.root === root && metadata.session) {
        return metadata.session;
      }
    }
  }
  return null;
}

/** The lines that the user has added to the question. */
async function questionOf(request: vscode.ChatRequest, root: string): Promise<string> {
  const [location] = request.references.map(({ value }) => value).filter((value) => value instanceof vscode.Location);
  if (!location) {
    return withPassage(request.prompt, undefined);
  }
  const document = await vscode.workspace.openTextDocument(location.uri);
  return withPassage(request.prompt, await passageOf(document, location.range, root));
}

function conclude(stream: vscode.ChatResponseStream, root: string, result: AskResult): void {
  stream.markdown(result.sources.length > 0 ? "\n\n**Sources**\n" : "");
  for (const source of result.sources) {
    const location = locationOf(root, source);
    stream.reference(location);
    stream.markdown("\n- ");
    stream.anchor(location, placeOf(source));
    stream.markdown(source.cited ? " (cited)" : "");
  }
  const cutOff = result.finish === "length" ? ["The answer reached its limit."] : [];
  for (const line of [...cutOff, ...(result.memories ?? []).map(memoryLine), ...(result.notices ?? []), figures(result)].filter(Boolean)) {
    stream.markdown(new vscode.MarkdownString("\n\n").appendText(cleanLine(line)));
  }
}

async function answer(
  daemon: Daemon,
  request: vscode.ChatRequest,
  context: vscode.ChatContext,
  stream: vscode.ChatResponseStream,
  token: vscode.CancellationToken,
): Promise<vscode.ChatResult> {
  const root = await chosenRoot();
  const question = await questionOf(request, root);
  const signal = signalOf(token);
  const session =
    sessionOf(context, root) ?? (await daemon.request("session/create", { repo: root }, { signal })).name;
  const text = new Unpictured();
  const params = { ...settings.ask(root), question, repo: root, session };
  const result = await daemon.request("ask", params, {
    signal,
    progress: (value) => {
      if (value.kind === "token") {
        stream.markdown(text.next(clean(value.text)));
      } else if ((value.kind as string) === "stage") {
        stream.progress(stageLine(value));
      }
    },
  });
  conclude(stream, root, result);
  return { metadata: { session, root } satisfies Metadata };
}

export function createParticipant(daemon: Daemon, extension: vscode.Uri): vscode.ChatParticipant {
  const participant = vscode.chat.createChatParticipant(id, async (request, context, stream, token) => {
    try {
      return await answer(daemon, request, context, stream, token);
    } catch (reason) {
      return isCancelled(reason) ? {} : { errorDetails: { message: `kvd: ${told(problemOf(reason))}` } };
    }
  });
  participant.iconPath = vscode.Uri.joinPath(extension, "media", "kvd.svg");
  return participant;
}
