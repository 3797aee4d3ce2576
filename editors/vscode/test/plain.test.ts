/** What needs no daemon. */

import assert from "node:assert/strict";
import { mkdtempSync, mkdirSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { fenced } from "../src/client/passage";
import type { AnswerSource } from "../src/client/protocol";
import { rootOf } from "../src/client/repository";
import { socketPath } from "../src/client/socket";
import { clean, cleanLine, counted, memoryLine, stageLine } from "../src/client/text";
import { Unpictured } from "../src/client/unpictured";
import { rendered } from "../src/webview/markdown";
import { given } from "./daemons";

test("the socket is where kvd looks", async () => {
  const places = JSON.parse(given("TEST_SOCKETS")) as Record<string, string>;
  assert.ok(Object.keys(places).length > 2);
  for (const [runtime, expected] of Object.entries(places)) {
    process.env.XDG_RUNTIME_DIR = runtime;
    assert.equal(await socketPath(), expected);
  }
});

test("a folder that others can write to is not trusted", async () => {
  const folder = given("TEST_OPEN_FOLDER");
  process.env.XDG_RUNTIME_DIR = join(folder, "..");
  const refusal = { message: `the runtime folder ${folder} is not yours alone`, hint: /chmod 700/ };
  await assert.rejects(socketPath(), refusal);
});

test("the root of a repository", async (context) => {
  const base = realpathSync(mkdtempSync(join(tmpdir(), "kvd-root-")));
  context.after(() => {
    rmSync(base, { recursive: true });
  });
  const deep = join(base, "one", "two");
  mkdirSync(deep, { recursive: true });
  assert.equal(await rootOf(deep), deep);
  mkdirSync(join(base, ".git"));
  assert.equal(await rootOf(deep), deep, "a folder .git without a HEAD is no repository");
  writeFileSync(join(base, ".git", "HEAD"), "ref: refs/heads/main\n");
  assert.equal(await rootOf(deep), base);
  writeFileSync(join(base, "one", ".git"), "gitdir: elsewhere\n");
  assert.equal(await rootOf(deep), join(base, "one"));
});

test("text is made safe to show", () => {
  assert.equal(clean("a\u001b[31mb\u0007\u009b\u202ec\td\n"), "abc\td\n");
  assert.equal(cleanLine("a\nb\tc\r"), "a b c");
  assert.equal(counted(1, "file"), "1 file");
  assert.equal(counted(1024, "file"), "1,024 files");
  const stage = { kind: "stage", stage: "index", done: 3, total: 9, message: "src/a.py" } as const;
  assert.equal(stageLine(stage), "indexing 3/9 src/a.py");
  assert.equal(stageLine({ ...stage, stage: "notice", total: 0, message: "the disk is full" }), "the disk is full");
  assert.equal(stageLine({ ...stage, stage: "new one", total: 0, message: "" }), "new one");
});

test("memories say where they are from", () => {
  const memory = { session: "talk", turn: 3, asked_at: new Date(2026, 10, 4).getTime() / 1000, stale: true };
  const line = "recalled from the conversation talk, question 3, 2026-11-04";
  assert.equal(memoryLine(memory), `${line} (the code has changed since)`);
  assert.equal(memoryLine({ ...memory, stale: false }), line);
});

test("code can't end its own block", () => {
  assert.equal(fenced({ language: "md", text: "````\nx\n````" }), "`````md\n````\nx\n````\n`````");
});

function sources(...labels: number[]): AnswerSource[] {
  const place = { path: "src/a.py", symbol: "", language: "python", score: 1, cited: false };
  return labels.map((label) => ({ ...place, start_line: 10 * label, end_line: 10 * label + 9, label }));
}

test("answers become HTML in which nothing is loaded, run or followed", () => {
  const hostile = [
    "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "![p](https://example.invalid/?q=secret) [l](https://example.invalid) <https://example.invalid>",
    "[d](command:workbench.action.quit) [j](javascript:alert(1)) [r]\n\n[r]: https://example.invalid",
    '```html" onclick="x\n<b>\n```',
    '`<b onclick="x">`',
  ].join("\n\n");
  const html = rendered(hostile, sources(1));
  assert.doesNotMatch(html, /<(?!\/?(?:p|pre|code)\b)/);
  assert.doesNotMatch(html, /<[^>]*(?:src|href|onclick)=/);
});

/** Text and place of each button. */
function citations(answer: string, ...labels: number[]): [string, number][] {
  const html = rendered(answer, sources(...labels));
  return [...html.matchAll(/data-source="(-?\d+)">([^<]*)</g)].map(([, place, text]) => [text ?? "", Number(place)]);
}

test("only the labels of sources are citations", () => {
  const answer = "In [3], [2][1] and [9], not `x[1]`, not a[1] or f()[2].";
  const expected = [["3", 2], ["2", 1], ["1", 0]];
  assert.deepEqual(citations(answer, 1, 2, 3), expected);
});

test("only places that sources have are citations", () => {
  const answer = "See `src/a.py:21-25`, `./a.py:15` and `a.py:5-10`, not `a.py:99`, `b.py:15`, `xa.py:15` or `a.py`.";
  const expected = [["src/a.py:21-25", 1], ["./a.py:15", 0], ["a.py:5-10", 0]];
  assert.deepEqual(citations(answer, 1, 2), expected);
});

test("pictures are text, however the pieces fall", () => {
  for (const pieces of [["a![x](y)"], ["a!", "[x](y)"], ["a", "!", "", "[x](y)"]]) {
    const text = new Unpictured();
    assert.equal(pieces.map((piece) => text.next(piece)).join(""), "a!\\[x](y)");
  }
  assert.equal(new Unpictured().next("no! [x]"), "no! [x]");
});
