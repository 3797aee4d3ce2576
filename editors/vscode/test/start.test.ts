/** How the daemon is found, started and replaced, with the real `kvd start`. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { version } from "../src/client/dial";
import { run } from "../src/client/executable";
import { client, given, repository } from "./daemons";

const query = { query: "paint a rectangle", repo: repository, top_k: 3 };
const program = given("TEST_PROGRAM");

test("another version that can't be replaced is told of once", async () => {
  const { daemon, told } = client("no-such-kvd");
  for (let time = 0; time < 2; time += 1) {
    assert.equal((await daemon.request("search", query)).sources[0]?.path, "src/paint.js");
    daemon.close();
  }
  const cure = "(hint: update the older one, then kvd stop)";
  assert.deepEqual(told, [`the daemon is kvd 0.0.1, this extension is of ${version} ${cure}`]);
});

test("another version is replaced when it is idle; where none runs one is started", async () => {
  const { daemon, told } = client();
  const { sources } = await daemon.request("search", query);
  assert.deepEqual([sources[0]?.path, sources[0]?.symbol], ["src/paint.js", "paintRectangle"]);
  assert.equal((await daemon.request("status", {})).daemon.version, version);
  assert.deepEqual(told, []);
});

test("requests at the same time share a connection", async () => {
  const { daemon } = client();
  const searches = ["is_expired", "paintRectangle"].map((name) => daemon.request("search", { ...query, query: name }));
  const found = (await Promise.all(searches)).map(({ sources }) => sources[0]?.path);
  assert.deepEqual(found, ["src/session.py", "src/paint.js"]);
});

test("progress of an index run", async () => {
  const { daemon } = client();
  const stages: string[] = [];
  const progress = (value: object): void => {
    stages.push("stage" in value ? String(value.stage) : "");
  };
  const { files } = await daemon.request("index", { path: repository }, { progress });
  assert.equal(files, 3);
  assert.ok(stages.includes("scan"));
});

test("the daemon's own refusals keep their words", async () => {
  const { daemon } = client();
  const refusal = { code: "repository", message: "there is no /no/such/place", hint: "give the folder of a repository" };
  await assert.rejects(daemon.request("index", { path: "/no/such/place" }), refusal);
});

test("no daemon and no program", async () => {
  await run(program, "stop", "--now");
  const { daemon } = client("no-such-kvd");
  const refusal = { code: "no-program", message: "can't run the program no-such-kvd", hint: /"kvd\.executable"/ };
  await assert.rejects(daemon.request("search", query), refusal);
});

test("a program that fails says why in its own words", async () => {
  await assert.rejects(run(program, "no-such-command"), { code: "unavailable", message: /no-such-command/ });
});
