from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.bench import questions, sources
from kvd.bench.libraries import RepositoryLibrary, by_bytes, commit_subjects, prepared_questions, spread
from kvd.bench.paging import Costs, Outcome, belady, capacity_pages, compare, lines, pages_of, simulate
from kvd.bench.questions import QuestionSet
from kvd.bench.traces import Trace, TraceBuilder, TraceChunk, generate, read_trace, write_trace
from kvd.config import Settings
from kvd.errors import RepositoryError, UsageError
from kvd.kv.policies import POLICIES, policy_named
from tests.conftest import Kvd

COSTS = Costs(hot=1, cold=10, new=100, rest=1000)


def a_trace(*asks: str, sizes: dict[str, int] | None = None) -> Trace:
    """Each letter is a chunk of 16 tokens, one page, or as many as `sizes` says."""
    builder = TraceBuilder()
    for ask in asks:
        builder.add(None, [TraceChunk(letter, (sizes or {}).get(letter, 16), None) for letter in ask])
    return builder.trace("letters")


def hot(outcome: Outcome) -> tuple[float, int]:
    return outcome.hot_tokens, outcome.hot_bodies


def test_the_bound_keeps_what_is_wanted_soonest() -> None:
    # c takes the place of b, which comes later than a. Least recently used would have no hit at all.
    trace = a_trace("a", "b", "c", "a", "b")
    assert hot(belady(trace, 2, COSTS)) == (16, 1)
    assert hot(simulate(trace, policy_named("lru"), 2, COSTS)) == (0, 0)
    assert hot(belady(trace, 3, COSTS)) == (32, 2)


def test_the_bound_takes_bodies_apart() -> None:
    # b takes one page of A; of A the other one is found hot, then A takes the place of b.
    assert hot(belady(a_trace("A", "b", "A", "b", sizes={"A": 32}), 2, COSTS)) == (16, 0)


def test_the_bound_holds_all_that_one_question_wants() -> None:
    # All of bcd must be there at once, so that only a page of room is left over for a.
    trace = a_trace("ae", "bcd", "a", "e")
    assert hot(belady(trace, 4, COSTS)) == (16, 1)


def test_least_recently_used_by_hand() -> None:
    outcome = simulate(a_trace("a", "b", "a", "c", "b"), policy_named("lru"), 2, COSTS)
    assert hot(outcome) == (16, 1)
    assert (outcome.tokens, outcome.bodies, outcome.evictions) == (80, 5, 2)
    assert outcome.ttft == [2600, 2600, 1016, 2600, 1160]
    figures = outcome.figures()
    assert figures["hit_rate"] == figures["body_hit_rate"] == 0.2
    assert figures["ttft_median_ms"] == 2600


def test_a_body_with_a_part_missing_is_hot_in_its_tokens_only() -> None:
    # 320 tokens are three blocks of seven pages; b pushes one of them out.
    trace = a_trace("A", "b", "A", sizes={"A": 320})
    assert pages_of(320) == 21
    # The first block, whose place the second one is then given up for, and so on.
    assert hot(simulate(trace, policy_named("lru"), 21, COSTS)) == (0, 0)
    assert hot(simulate(trace, policy_named("combined"), 21, COSTS)) == (106 + 107, 0)


@settings(max_examples=60, deadline=None)
@given(
    asks=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 8), min_size=10, max_size=10),
    share=st.floats(0.05, 1),
)
def test_no_policy_beats_the_bound(asks: list[list[int]], sizes: list[int], share: float) -> None:
    # Full pages, so that each is worth the same.
    trace = a_trace(
        *("".join("abcdefghij"[number] for number in ask) for ask in asks),
        sizes={"abcdefghij"[number]: 32 * size for number, size in enumerate(sizes)},
    )
    pages = capacity_pages(trace, share)
    bound = belady(trace, pages, COSTS)
    for name in POLICIES:
        outcome = simulate(trace, policy_named(name), pages, COSTS)
        assert outcome.hot_tokens <= bound.hot_tokens + 1e-6
        assert (outcome.tokens, outcome.bodies) == (bound.tokens, bound.bodies)
        assert outcome.hot_tokens == pytest.approx(bound.hot_tokens) or share < 1


def test_the_report_has_a_row_for_each_policy_and_the_bound() -> None:
    traces = [a_trace("ab", "cd", "ab", "e", "ab"), a_trace("a", "b", "c", "a")]
    result = compare(traces, ["lru", "combined"], 0.6, COSTS, lambda text: None)
    assert json.loads(json.dumps(result)) == result
    assert [row["name"] for row in result["rows"]] == ["lru", "combined", "belady"]
    assert [trace["distinct_tokens"] for trace in result["traces"]] == [80, 48]
    bound = result["rows"][2]["figures"]
    assert [entry["of_belady"] for entry in bound] == [1.0, 1.0]
    text = "\n".join(lines(result))
    assert "2 traces, means: 4 questions, 104 tokens recalled, 64 of them distinct" in text
    assert "pool of 60% of the distinct tokens" in text
    assert text.count("\nlru ") == text.count("\nbound ") == 1
    assert "whole bodies hot" in text
    assert "\nCPU of pool and policy for a question: lru " in text


def test_one_trace_has_no_intervals() -> None:
    text = "\n".join(lines(compare([a_trace("ab", "c", "ab")], ["lru"], 0.6, COSTS, lambda text: None)))
    assert text.startswith("1 trace: 3 questions, ")
    assert "[" not in text
    assert "means" not in text


def test_a_trace_survives_being_written(tmp_path: Path) -> None:
    builder = TraceBuilder()
    chunks = [TraceChunk("a", 20, np.array([1, 0], np.float32)), TraceChunk("b", 7, None)]
    builder.add(np.array([0.5, 0.25], np.float32), chunks)
    builder.add(None, [chunks[1], chunks[0], chunks[1]])
    write_trace(builder.trace("mine"), tmp_path / "new" / "mine.jsonl")
    trace = read_trace(tmp_path / "new" / "mine.jsonl")
    assert trace.about() == {"name": "mine", "questions": 2, "chunks": 2, "tokens": 54, "distinct_tokens": 27}
    assert [ask.chunks for ask in trace.asks] == [(0, 1), (1, 0)]
    assert trace.asks[0].vector is not None
    assert trace.chunks[0].vector is not None
    assert trace.asks[0].vector.tolist() == [0.5, 0.25]
    assert trace.chunks[0].vector.tolist() == [1, 0]
    assert trace.asks[1].vector is trace.chunks[1].vector is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no questions"),
        ("{}", "line 1: not a trace"),
        ('{"question": null, "chunks": [{"id": "a"}]}', "line 1: not a trace"),
        ('{"question": "?", "chunks": []}', "line 1: not a trace"),
        ('{"question": null, "chunks": [{"id": "a", "tokens": 5}]}\n{"question": null}', "line 2: not a trace"),
        *(
            (f'{{"question": null, "chunks": [{{"id": "a", "tokens": {tokens}}}]}}', "whole number from 1 to 8,192")
            for tokens in ("0", "8193", "1000000000000", "Infinity", "1.5", "true", '"7"')
        ),
        ("[" * 100_000, "line 1: not a trace"),
        ('{"question": "AH4=", "chunks": []}', "all of them finite"),
        (
            '{"question": "ADw=", "chunks": [{"id": "a", "tokens": 5, "vector": "ADwAPA=="}]}',
            "vectors of different lengths",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_trace(tmp_path / "bad.jsonl")
    assert "bad.jsonl" in caught.value.message


SUBJECTS = (
    "Sessions expire after their lifetime",
    "Paint a rectangle on the canvas (#12)",
    "typo",
    "Check the lifetime with monotonic time",
    "Say in the readme what paints",
)


@pytest.fixture
def clone(repository: Path) -> Path:
    """A repository with a history, which ends in a merge."""
    git = ("git", "-C", str(repository))
    for subject in SUBJECTS:
        subprocess.run([*git, "commit", "--allow-empty", "-qm", subject], check=True)
    subprocess.run([*git, "checkout", "-qb", "side", "HEAD~1"], check=True)
    subprocess.run([*git, "commit", "--allow-empty", "-qm", "Work that was done elsewhere"], check=True)
    subprocess.run([*git, "merge", "-q", "-m", "Merge what was done elsewhere", "-"], check=True)
    return repository


def test_questions_come_from_commits_in_their_order(clone: Path) -> None:
    subjects = commit_subjects(clone, 100)
    assert "Paint a rectangle on the canvas" in subjects
    assert not {"typo", "first", "Merge what was done elsewhere"} & set(subjects)
    assert [text for text in subjects if "lifetime" in text] == [SUBJECTS[0], SUBJECTS[3]]
    assert len(commit_subjects(clone, 2)) == 2


def test_no_repository_no_questions(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="can't read the history"):
        commit_subjects(tmp_path, 10)
    with pytest.raises(UsageError, match="nothing to ask"):
        RepositoryLibrary(tmp_path, [], Settings(), by_bytes)


def test_prepared_questions_are_of_the_repository_of_that_name(tmp_path: Path) -> None:
    sets = [QuestionSet(name, "", "", "python", ({"question": f"about {name}"},)) for name in ("one", "two")]
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "two.json").write_text('[{"query": "where is two"}]')
    assert prepared_questions("two", sets, tmp_path) == ["about two", "where is two"]
    assert prepared_questions("one", sets, tmp_path) == ["about one"]
    assert prepared_questions("three", sets, None) == []
    (tmp_path / "annotations" / "two.json").write_text('["where is two"]')
    with pytest.raises(UsageError, match=r"two\.json holds no queries"):
        prepared_questions("two", sets, tmp_path)
    assert spread(["x", "y"], list("abcdef")) == list("abxcdyef")
    assert spread([], ["a"]) == ["a"]
    assert spread(["x"], []) == ["x"]


def test_a_question_gets_the_chunks_that_it_recalls_and_that_fit(clone: Path) -> None:
    library = RepositoryLibrary(clone, ["when does a session expire", "zebra"], Settings(), by_bytes)
    found = library.recall(0)
    assert library.recall(0) is found
    assert library.recall(1) == []
    assert found
    assert all(chunk.tokens > 0 and chunk.vector is not None for chunk in found)
    code = (clone / "src" / "session.py").read_text()
    assert found[0].tokens == pytest.approx(by_bytes(code), rel=0.3)
    small = RepositoryLibrary(clone, ["when does a session expire"], Settings(budget=found[0].tokens - 1), by_bytes)
    assert found[0].id not in [chunk.id for chunk in small.recall(0)]


def test_generated_traces_are_the_same_for_the_same_seed(clone: Path) -> None:
    def made(seed: int) -> Trace:
        return generate("t", [RepositoryLibrary(clone, commit_subjects(clone, 9), Settings(), by_bytes)], 40, seed)

    first, again, other = made(1), made(1), made(2)
    assert [ask.chunks for ask in first.asks] == [ask.chunks for ask in again.asks]
    assert [chunk.id for chunk in first.chunks] == [chunk.id for chunk in again.chunks]
    named = [[[trace.chunks[number].id for number in ask.chunks] for ask in trace.asks] for trace in (first, other)]
    assert named[0] != named[1]
    assert len(first.asks) == 40


@pytest.mark.timeout(60)
def test_where_no_question_recalls_anything_there_is_no_trace(isolated_home: Path) -> None:
    root = isolated_home / "bare"
    root.mkdir()
    (root / "README").write_text("hi\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first words of a commit"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    library = RepositoryLibrary(root, commit_subjects(root, 10), Settings(), by_bytes)
    with pytest.raises(UsageError, match="none of 1 questions recalls any code"):
        generate("t", [library], 10, 1)


def options_for(**given: object) -> dict[str, object]:
    usual: dict[str, object] = {"traces": [], "repos": [], "save": None, "retrieval": None, "questions": None}
    return {**usual, "commits": 10, "asks": 10, "seeds": 1, "first_seed": 1, **given}


def test_a_clone_needs_no_question_sets(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An installed wheel has none.
    monkeypatch.setattr(questions, "default_folder", lambda: tmp_path / "none")
    (trace,), _ = sources.traces(options_for(repos=[str(clone)]), tmp_path, lambda text: None)
    assert len(trace.asks) == 10
    for named in ({}, {"repos": [str(clone)], "questions": str(tmp_path)}):
        with pytest.raises(UsageError, match="no question sets in") as caught:
            sources.traces(options_for(**named), tmp_path, lambda text: None)
        assert caught.value.hint.startswith("give --questions a folder")


@pytest.mark.parametrize(
    ("option", "message"), [("save", "can't write to the folder"), ("retrieval", "has no folder annotations")]
)
def test_folders_are_tried_before_anything_is_indexed(clone: Path, tmp_path: Path, option: str, message: str) -> None:
    said: list[str] = []
    with pytest.raises(UsageError, match=message) as caught:
        sources.traces(options_for(repos=[str(clone)], **{option: "/proc/nothing"}), tmp_path, said.append)
    assert f"--{option}" in caught.value.hint
    assert said == []


def test_the_command_compares_and_keeps_its_traces(kvd: Kvd, clone: Path, tmp_path: Path, isolated_home: Path) -> None:
    options = ["--repo", str(clone), "--work", str(tmp_path / "work"), "--save", str(tmp_path / "traces")]
    result = kvd.json(
        "bench", "paging", *options, "--asks", "30", "--seeds", "2", "--share", "0.5", "--rounds", "2", timeout=120
    )
    assert "error" not in result, result
    assert [row["name"] for row in result["rows"]] == [*POLICIES, "belady"]
    shares = [entry["of_belady"] for row in result["rows"] for entry in row["figures"]]
    assert len(shares) == 2 * len(result["rows"])
    assert all(0 < share <= 1.01 for share in shares)
    assert sorted(file.name for file in (tmp_path / "traces").iterdir()) == ["seed-1.jsonl", "seed-2.jsonl"]
    recorded = options_for(traces=[str(tmp_path / "traces" / "seed-2.jsonl")])
    traces, counted = sources.traces(recorded, tmp_path, lambda text: None)
    assert counted == "as recorded"
    replayed = compare(traces, ["lru"], 0.5, Costs(), lambda text: None)
    assert [row["name"] for row in replayed["rows"]] == ["lru", "belady"]
    for row in replayed["rows"]:
        before = next(item for item in result["rows"] if item["name"] == row["name"])["figures"][1]
        assert row["figures"][0]["hit_rate"] == before["hit_rate"]
    # The user's own index was left alone.
    assert not (isolated_home / "cache" / "kvd" / "index").exists()


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is no folder"):
        sources.traces(options_for(repos=[str(tmp_path / "nowhere")]), tmp_path, lambda text: None)
