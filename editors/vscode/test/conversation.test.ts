/** Questions, answers, follow-ups and what goes wrong, against a real daemon whose engine is scripted. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Conversation, type Turn } from "../src/client/conversation";
import type { Daemon } from "../src/client/daemon";
import { run } from "../src/client/executable";
import { isCancelled } from "../src/client/problem";
import { client, given, repository, usual, Watched } from "./daemons";

const { daemon, told } = client();

function begin(by: Daemon = daemon): { talk: Conversation; watched: Watched; last: () => Turn } {
  const watched = new Watched();
  const talk = new Conversation(by, repository, () => usual, watched.changed);
  const last = (): Turn => {
    const turn = talk.turns.at(-1);
    assert.ok(turn);
    return turn;
  };
  return { talk, watched, last };
}

async function asked(question: string): Promise<Turn> {
  const { talk, last } = begin();
  await talk.ask(question);
  return last();
}

/** Whether the daemon answers no question any more. */
async function rests(): Promise<boolean> {
  const { engine } = await daemon.request("status", {}, { quiet: true });
  return engine.state === "ready" && engine.running === 0 && engine.waiting === 0;
}

test("a daemon is started by the first question; its answer has sources", async () => {
  const turn = await asked("when is a session expired? see src/paint.js");
  assert.equal(turn.state, "done");
  assert.equal(turn.answer, "It is in [1].");
  assert.deepEqual(
    turn.sources.filter(({ cited }) => cited).map(({ label }) => label),
    [1],
  );
  assert.ok(turn.sources.some(({ path }) => path === "src/session.py"));
  assert.match(turn.figures, /^100 tokens of code \(90 from memory, 10 computed\) · first word after .* · fake$/);
  assert.deepEqual(told, []);
});

test("it streams, and is cancelled", async () => {
  const { talk, watched, last } = begin();
  const answer = talk.ask("slow session");
  await watched.until(() => last().answer.startsWith("word word word"));
  assert.equal(last().state, "asking");
  assert.equal(last().stage, "answering");
  assert.ok(talk.busy);
  talk.cancel();
  await answer;
  assert.equal(last().state, "cancelled");
  assert.equal(last().problem, null);
  assert.ok(!talk.busy);
  const deadline = Date.now() + 30_000;
  while (!(await rests())) {
    assert.ok(Date.now() < deadline, "the daemon went on answering");
  }
});

test("a follow-up goes on with what was said; another conversation does not", async () => {
  const { talk, last } = begin();
  await talk.ask("history of sessions that expire");
  const [before, places] = [last().answer, last().sources.map(({ path }) => path)];
  assert.match(before, /^0 before, [1-9]\d* new, 0 present$/);
  await talk.ask("history of sessions that expire");
  assert.match(last().answer, /^1 before, 0 new, [1-9]\d* present$/);
  assert.deepEqual(
    last().sources.map(({ path }) => path),
    places,
  );
  const other = begin();
  await other.talk.ask("history of sessions that expire");
  // What was said before can be recalled, but is no part of it.
  assert.match(other.last().answer, /^0 before, [1-9]\d* new, 0 present$/);
  assert.ok(other.last().memories.every((line) => line.startsWith("recalled from the conversation ")));
  assert.notEqual(other.talk.name, talk.name);
});

test("a conversation is read back, gone on with, and deleted", async () => {
  const { talk } = begin();
  await talk.ask("say 42 of src/session.py");
  assert.ok(talk.name);
  const again = begin();
  await again.talk.resume(talk.name);
  assert.deepEqual(
    again.talk.turns,
    talk.turns.map((turn) => ({ ...turn, memories: [] })),
    "which memories there were is not kept",
  );
  await again.talk.ask("history of sessions");
  assert.match(again.last().answer, /^1 before/);
  await again.talk.delete();
  await assert.rejects(begin().talk.resume(talk.name), { code: "usage" });
});

test("a conversation that ends is kept where something was said, and only there", async () => {
  const [spoken, silent] = [begin().talk, begin().talk];
  await spoken.ask("say yes of src/session.py");
  await silent.ask("fail session");
  await Promise.all([spoken.end(), silent.end()]);
  const { sessions } = await daemon.request("session/list", { repo: repository });
  const names = sessions.map(({ name }) => name);
  assert.ok(spoken.name && names.includes(spoken.name));
  assert.ok(silent.name && !names.includes(silent.name));
});

test("lines go with the question", async () => {
  const { talk, last } = begin();
  await talk.ask("say what is this", { label: "src/session.py:7-8", language: "python", text: "x = '```'" });
  assert.equal(last().question, "say what is this");
  assert.equal(last().about, "src/session.py:7-8");
  assert.ok(last().answer.endsWith("This is about src/session.py:7-8:\n````python\nx = '```'\n````"));
  await assert.rejects(talk.ask("why?", { label: "a", language: "", text: "x".repeat(20_000) }), {
    code: "usage",
    hint: "select fewer lines",
  });
  assert.equal(talk.turns.length, 1);
});

test("what goes wrong is one line with the cure, and the next question works", async () => {
  const { talk, last } = begin();
  await talk.ask("fail session");
  assert.deepEqual(last().problem, { message: "no room", hint: "kvd setup" });
  assert.equal(last().state, "failed");
  await talk.ask("die SIGKILL src/session.py");
  assert.equal(last().state, "failed");
  assert.match(last().problem?.message ?? "", /engine/);
  await talk.ask("say \u001b[31mred\u0007 \u202eend src/session.py");
  assert.equal(last().answer, "red end src/session.py");
  const { message, hint } = (await asked("pizza")).problem ?? { message: "", hint: "" };
  assert.deepEqual([message, hint], ["", ""]);
});

test("nothing relevant is an answer without sources", async () => {
  const turn = await asked("pizza");
  assert.match(turn.answer, /^Nothing in this repository seems relevant/);
  assert.deepEqual([turn.state, turn.sources, turn.figures], ["done", [], ""]);
});

test("a new question takes the place of the one that is being answered", async () => {
  const { talk, watched, last } = begin();
  const first = talk.ask("slow session");
  await watched.until(() => last().answer !== "");
  await Promise.all([first, talk.ask("say here src/session.py")]);
  assert.deepEqual(
    talk.turns.map(({ state }) => state),
    ["cancelled", "done"],
  );
  assert.equal(last().answer, "here src/session.py");
});

test("a request that is cancelled before it is sent", async () => {
  const signal = AbortSignal.abort();
  await assert.rejects(daemon.request("search", { query: "x", repo: repository, top_k: 1 }, { signal }), isCancelled);
});

test("a daemon that is killed midway, and one that is stopped", async () => {
  const { talk, watched, last } = begin();
  const ways = {
    kill: async () => process.kill((await daemon.request("status", {})).daemon.pid, "SIGKILL"),
    stop: async () => run(given("TEST_PROGRAM"), "stop", "--now"),
  };
  for (const [name, way] of Object.entries(ways)) {
    const answer = talk.ask("slow session");
    await watched.until(() => last().answer.startsWith("word word"));
    await Promise.all([way(), answer]);
    assert.equal(last().state, "failed", name);
    assert.match(last().problem?.hint ?? "", /^ask again/);
    assert.ok(last().answer.startsWith("word word"));
    await talk.ask("say here again src/session.py");
    assert.deepEqual([last().problem, last().answer], [null, "here again src/session.py"]);
  }
});
