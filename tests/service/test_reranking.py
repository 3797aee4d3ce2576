"""Recalled chunks that the model judges too: the scripted engine finds each better than the one before."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvd import paths
from kvd.errors import NoModelError
from kvd.service.reranking import CANDIDATES
from kvd.service.service import Service

from .test_service import Values, question, run

QUERY = "how is the total computed"


@pytest.fixture
def alike(isolated_home: Path) -> Path:
    """A folder of files that answer a query equally well."""
    root = isolated_home / "alike"
    root.mkdir()
    for number in range(CANDIDATES + 2):
        (root / f"part{number:02}.py").write_text(f"def compute_total_{number:02}(items):\n    return sum(items)\n")
    return root


def test_search_lets_the_model_judge_only_where_it_is_asked_to(alike: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        plain = await service.search(QUERY, str(alike), CANDIDATES + 2, values.append)
        judged = await service.search(QUERY, str(alike), CANDIDATES + 2, values.append, by_model=True)
        before, after = ([source["path"] for source in found["sources"]] for found in (plain, judged))
        assert after == [*reversed(before[:CANDIDATES]), *before[CANDIDATES:]]
        assert judged["judged"] == CANDIDATES
        assert {"rerank", "model_load"} <= set(judged["timings_ms"])
        assert "judged" not in plain
        few = await service.search(QUERY, str(alike), 2, values.append, by_model=True)
        assert [source["path"] for source in few["sources"]] == after[:2]

    run(body)


def test_ask_gives_the_model_what_it_judged_best(alike: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        plain = await service.ask(str(alike), question(QUERY, top_k=CANDIDATES), values.append)
        assert plain["timings_ms"]["rerank"] == 0.0
        paths.config_file().parent.mkdir(parents=True)
        paths.config_file().write_text("rerank_ms = 5000\n")
        best = plain["sources"][-1]["path"]
        judged = await service.ask(str(alike), question(QUERY, top_k=1), values.append)
        assert [source["path"] for source in judged["sources"]] == [best]
        assert judged["timings_ms"]["rerank"] > 0
        # Without reuse there is no KV to judge by.
        whole = await service.ask(str(alike), question(QUERY, top_k=1, reuse=False), values.append)
        assert whole["sources"][0]["path"] == plain["sources"][0]["path"]

    run(body)


def test_nothing_found_needs_no_model_and_no_model_is_an_error(alike: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.models.active.installed_smollm", lambda: None)

    async def body(service: Service, values: Values) -> None:
        found = await service.search("zzyzx", str(alike), None, values.append, by_model=True)
        assert found["sources"] == []
        with pytest.raises(NoModelError):
            await service.search(QUERY, str(alike), None, values.append, by_model=True)

    run(body)
