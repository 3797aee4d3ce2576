/** Answers as HTML in which nothing is loaded, run or followed but citations. */

import MarkdownIt from "markdown-it";

// No links and pictures either: what a model says must not be able to lead out of this machine.
const markdown = new MarkdownIt({ html: false, linkify: false }).disable(["link", "image", "autolink", "reference"]);

const citation = /^\[(\d{1,4})\]/;

/** `[2]` becomes a button with `data-label="2"` where that is the label of a source. */
markdown.inline.ruler.before("escape", "citation", (state, silent) => {
  const found = citation.exec(state.src.slice(state.pos));
  const known = (state.env as { labels: ReadonlySet<number> }).labels;
  const before = state.src.charAt(state.pos - 1);
  // `items[0]` and `f()[1]` are code.
  if (!found || !known.has(Number(found[1])) || /[\w)"'\]]/.test(before === "]" ? "" : before)) {
    return false;
  }
  if (!silent) {
    state.push("citation", "", 0).content = found[1] ?? "";
  }
  state.pos += found[0].length;
  return true;
});

markdown.renderer.rules.citation = (tokens, index) => {
  const label = tokens[index]?.content ?? "";
  return `<button type="button" class="citation" data-label="${label}">${label}</button>`;
};

/** @param labels the labels of the answer's sources */
export function rendered(answer: string, labels: ReadonlySet<number>): string {
  return markdown.render(answer, { labels });
}
