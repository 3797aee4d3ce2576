/** Answers as HTML in which nothing is loaded, run or followed but citations. */

import MarkdownIt from "markdown-it";
import type { AnswerSource } from "../client/protocol";

// No links and pictures either: what a model says must not be able to lead out of this machine.
const markdown = new MarkdownIt({ html: false, linkify: false }).disable(["link", "image", "autolink", "reference"]);
const { escapeHtml } = markdown.utils;

/** What `rendered` has put into the renderer's environment. */
function sourcesIn(environment: object | undefined): readonly AnswerSource[] {
  return (environment as { sources: readonly AnswerSource[] }).sources;
}

const byLabel = /^\[(\d{1,4})\]/;
const byPlace = /^(?:\.\/)?([^\s:]+):(\d{1,9})(?:\s?[-–]\s?(\d{1,9}))?$/;

/** The place among the sources of the one that is called `[label]`; -1 for none. */
function labelled(sources: readonly AnswerSource[], label: string | undefined): number {
  return sources.findIndex((source) => source.label === Number(label));
}

/** The place among the sources of the one that has lines of `path:line` or `path:first-last`; -1 for none. */
function placed(sources: readonly AnswerSource[], text: string): number {
  const [, path = "", first = "", last = first] = byPlace.exec(text) ?? [];
  return sources.findIndex(
    (source) =>
      `/${source.path}`.endsWith(`/${path}`) && Number(first) <= source.end_line && Number(last) >= source.start_line,
  );
}

function button(kind: string, source: number, text: string): string {
  return `<button type="button" class="${kind}" data-source="${source}">${escapeHtml(text)}</button>`;
}

markdown.inline.ruler.before("escape", "citation", (state, silent) => {
  const found = byLabel.exec(state.src.slice(state.pos));
  const source = found ? labelled(sourcesIn(state.env), found[1]) : -1;
  // `items[0]` and `f()[1]` are code.
  if (!found || source < 0 || /[\w)"']/.test(state.src.charAt(state.pos - 1))) {
    return false;
  }
  if (!silent) {
    const token = state.push("citation", "", 0);
    token.content = found[1] ?? "";
    token.meta = { source };
  }
  state.pos += found[0].length;
  return true;
});

markdown.renderer.rules.citation = (tokens, index) => {
  const token = tokens[index];
  return token ? button("citation", Number(token.meta?.source), token.content) : "";
};

markdown.renderer.rules.code_inline = (tokens, index, _options, environment) => {
  const text = tokens[index]?.content ?? "";
  const source = placed(sourcesIn(environment), text);
  return source < 0 ? `<code>${escapeHtml(text)}</code>` : `<code>${button("place", source, text)}</code>`;
};

/** Citations become buttons whose `data-source` is the place of the source in `sources`. */
export function rendered(answer: string, sources: readonly AnswerSource[]): string {
  return markdown.render(answer, { sources });
}
