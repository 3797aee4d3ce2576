from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvd.bench import rerank
from kvd.bench.off_topic import OFF_TOPIC
from kvd.bench.recall import FULL, RAW, VARIANTS, Target, lines, ndcg, read_benchmark
from kvd.errors import UsageError
from kvd.types import Chunk
from tests.conftest import Kvd


def chunk(path: str, start: int = 1, end: int = 9) -> Chunk:
    return Chunk(path, "python", "", start, end, 0, 0, "")


def second(rank: int) -> float:
    """What a target gains that is found at `rank`, from 1."""
    return 1 / math.log2(rank + 1)


def test_a_target_counts_at_its_first_chunk() -> None:
    found = [chunk("b.py"), chunk("src/a.py"), chunk("src/a.py", 10, 20)]
    assert ndcg([Target("src/a.py")], found) == pytest.approx(second(2))
    assert ndcg([Target("src/a.py", (12, 13))], found) == pytest.approx(second(3))
    assert ndcg([Target("src/a.py", (21, 30))], found) == 0
    assert ndcg([Target("src/a.py", (9, 9))], found) == pytest.approx(second(2))


def test_several_targets_are_weighed_against_the_best_order() -> None:
    found = [chunk("a.py"), chunk("b.py"), chunk("c.py")]
    assert ndcg([Target("b.py"), Target("a.py")], found) == 1
    assert ndcg([Target("a.py"), Target("c.py")], found) == pytest.approx((1 + second(3)) / (1 + second(2)))
    # One chunk that has both is one good result.
    assert ndcg([Target("a.py", (1, 2)), Target("a.py", (8, 9))], found) == pytest.approx(1 / (1 + second(2)))
    # More targets than places: ten found ones are all that can be.
    many = [Target(f"{number}.py") for number in range(12)]
    assert ndcg(many, [chunk(f"{number}.py") for number in range(12)]) == pytest.approx(1)
    assert ndcg([Target("late.py")], [*[chunk(f"{number}.py") for number in range(10)], chunk("late.py")]) == 0


def test_paths_match_by_their_ends() -> None:
    assert Target("src/click/core.py").matches(chunk("core.py"))
    assert Target("core.py").matches(chunk("src/core.py"))
    assert not Target("core.py").matches(chunk("src/score.py"))
    assert not Target("src/core.py").matches(chunk("lib/core.py"))


@pytest.fixture
def benchmark(tmp_path: Path, repository: Path) -> Path:
    """Of the test repository, two queries."""
    folder = tmp_path / "benchmark"
    (folder / "annotations").mkdir(parents=True)
    entry = {"name": "mine", "language": "python", "url": f"file://{repository}", "revision": "HEAD"}
    (folder / "repos.json").write_text(json.dumps([{**entry, "benchmark_root": "src"}]))
    queries = [
        {"query": "when is a session expired", "relevant": ["src/session.py"], "category": "semantic"},
        {
            "query": "paintRectangle",
            "relevant": [{"path": "src/paint.js", "start_line": 1, "end_line": 4}],
            "secondary": ["README.md"],
            "category": "symbol",
        },
    ]
    (folder / "annotations" / "mine.json").write_text(json.dumps(queries))
    return folder


def test_the_command_scores_each_way_to_rank(kvd: Kvd, benchmark: Path) -> None:
    result = kvd.json("bench", "recall", str(benchmark), "--work", str(benchmark.parent / "work"), timeout=120)
    first, other = result["queries"]
    assert set(first["ndcg"]) == set(VARIANTS)
    assert first["ndcg"][FULL] == first["ndcg"][RAW] == 1
    # README.md is not in the part that is searched.
    assert other["ndcg"][FULL] == pytest.approx(1 / (1 + second(2)))
    (about,) = result["repositories"]
    assert len(about["revision"]) == 40
    text = "\n".join(lines(result))
    assert "2 queries, 1 repository; a search takes" in text
    assert not first["refused"]
    assert result["off_topic"]["asked"] == len(OFF_TOPIC)
    assert len(result["off_topic"]["answered"]) <= len(OFF_TOPIC) // 10
    assert "nothing found for 0 of them, something for" in text
    assert f"mine is at {about['revision'][:12]}, not at HEAD" in text
    assert "semantic                                        1    1.000" in text
    about["wanted"] = about["revision"][:8]
    assert "mine is at" not in "\n".join(lines(result))


def test_what_is_no_benchmark_is_said(kvd: Kvd, benchmark: Path, tmp_path: Path) -> None:
    done = kvd.run("bench", "recall", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith(f"kvd: {tmp_path}/nothing is no benchmark of retrieval: FileNotFound")
    (benchmark / "annotations" / "mine.json").write_text('[{"query": "x", "category": "c", "relevant": []}]')
    with pytest.raises(UsageError, match="no target for 'x'"):
        read_benchmark(benchmark)
    (benchmark / "annotations" / "mine.json").write_text("[]")
    with pytest.raises(UsageError, match="no queries"):
        read_benchmark(benchmark)
    (benchmark / "annotations" / "mine.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="is no benchmark of retrieval"):
        read_benchmark(benchmark)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a"])
def test_a_repository_has_a_folder_of_its_own(benchmark: Path, name: str) -> None:
    entries = json.loads((benchmark / "repos.json").read_text())
    entries[0]["name"] = name
    (benchmark / "repos.json").write_text(json.dumps(entries))
    with pytest.raises(UsageError, match="a repository can't be named"):
        read_benchmark(benchmark)


def test_the_models_judgement_is_held_against_the_ranking(kvd: Kvd, benchmark: Path) -> None:
    work = benchmark.parent / "work"
    query = {"query": "a session that paints", "category": "semantic", "relevant": ["src/session.py"]}
    (benchmark / "annotations" / "mine.json").write_text(json.dumps([query, {**query, "query": "paint a session"}]))
    result = kvd.json("bench", "rerank", str(benchmark), "--work", str(work), timeout=240)
    first, _ = result["queries"]
    assert first["ndcg"]["0"] > 0.5
    assert first["computed"] == len(first["candidates"]) == 2
    assert not any(None in (item["gain"], item["neutral"]) for item in first["candidates"])
    assert all(item["gain"] != item["neutral"] and item["tokens"] for item in first["candidates"])
    assert [0] in [item["targets"] for item in first["candidates"]]
    text = "\n".join(rerank.lines(result))
    assert "2 queries" in text
    again = kvd.json("bench", "rerank", str(benchmark), "--work", str(work), "--queries", "1", timeout=240)
    # KV is kept.
    assert [query["computed"] for query in again["queries"]] == [0]
