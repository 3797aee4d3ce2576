"""The service with real indexes and stores, and the scripted engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.errors import NoModelError, RepositoryError, UsageError
from kvd.kv.store import BlockStore
from kvd.recall.only import Only
from kvd.recall.rank import search
from kvd.service import repositories
from kvd.service.asker import NOTHING_RELEVANT, TOKEN_KINDS, Question
from kvd.service.service import Service
from kvd.types import Hit, IndexSummary, Progress

from .test_store_writer import block

CHILD = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "engine_child.py"))

Values = list[dict[str, Any]]


def run(body: Callable[[Service, Values], Awaitable[None]]) -> Values:
    """Run `body`; the values that it had emitted."""
    values: Values = []

    async def main() -> None:
        service = Service(CHILD)
        try:
            await asyncio.wait_for(body(service, values), 30.0)
        finally:
            await service.close()

    asyncio.run(main())
    return values


def question(text: str, **changes: Any) -> Question:
    return Question(text, time.monotonic(), **changes)


def test_what_was_asked_for_in_the_background_keeps_the_daemon(repository: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        def busy() -> bool:
            return service.busy

        assert not busy()
        await service.index(str(repository), True, values.append)
        assert busy()
        while busy():
            await asyncio.sleep(0.01)
        assert (await service.status())["indexes"][0]["complete"]

    run(body)


def test_an_answer_has_what_the_contract_says(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        asked = question("sessions that expire")
        result = await service.ask(str(repository / "src"), asked, values.append)
        assert result["answer"] == "It is in [1]."
        assert (result["model"], result["session"]) == ("fake", None)
        sources = result["sources"]
        assert set(sources[0]) == {
            *("path", "start_line", "end_line", "symbol", "language", "score", "cited", "label"),
        }
        scores = [source["score"] for source in sources]
        assert scores == sorted(scores, reverse=True)
        # The child puts the second best chunk first, so that [1] is the second source.
        assert [source["cited"] for source in sources][:2] == [False, True]
        assert [source["label"] for source in sources][:2] == [2, 1]
        assert set(result["tokens"]) == set(TOKEN_KINDS)
        assert result["tokens"]["reused_hot"] == 90
        times = result["timings_ms"]
        assert set(times) == {"recall", "rerank", "load", "ttft", "total", "model_load"}
        assert times["load"] == 1.5
        assert 0 < times["recall"] < times["ttft"] < times["total"]
        assert times["ttft"] + times["model_load"] <= times["total"] + 0.2
        assert times["model_load"] > 0

    values = run(body)
    stages = [value["stage"] for value in values if value["kind"] == "stage"]
    assert stages[0] == "first-index"
    assert [stage for stage in stages if stage in ("load", "prefill")] == ["load", "prefill"]
    assert [value["text"] for value in values if value["kind"] == "token"] == ["It is in [1]."]


def test_the_engine_learns_what_question_and_chunks_are_about(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        result = await service.ask(str(repository), question("vectors of sessions that expire"), values.append)
        lengths = result["answer"].split()
        assert len(lengths) == 1 + len(result["sources"]) > 1
        assert set(lengths) == {"1.00"}

    run(body)


def test_the_second_question_indexes_and_loads_nothing(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await service.ask(str(repository), question("session"), values.append)
        values.clear()
        result = await service.ask(str(repository), question("session"), values.append)
        assert result["timings_ms"]["model_load"] == 0.0

    stages = {value["stage"] for value in run(body) if value["kind"] == "stage"}
    assert "first-index" not in stages
    assert "load" not in stages


def test_what_was_not_in_the_prompt_is_no_source(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        asked = question("say src/session.py:9 and made/up.py:3 and [77]")
        result = await service.ask(str(repository), asked, values.append)
        cited = {source["path"] for source in result["sources"] if source["cited"]}
        assert cited <= {"src/session.py"}
        assert {source["path"] for source in result["sources"]} <= {
            "src/session.py",
            "src/paint.js",
            "README.md",
        }

    run(body)


def test_nothing_relevant_is_an_answer_and_needs_no_model(isolated_home: Path) -> None:
    empty = isolated_home / "empty"
    empty.mkdir()

    async def body(service: Service, values: Values) -> None:
        result = await service.ask(str(empty), question("is the session expired"), values.append)
        assert result["answer"] == NOTHING_RELEVANT
        assert result["sources"] == []
        assert result["model"] is None
        assert set(result["tokens"].values()) == {0}

    assert {"kind": "token", "text": NOTHING_RELEVANT} in run(body)


def test_no_model_is_an_error_with_a_hint(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.models.active.installed_smollm", lambda: None)

    async def body(service: Service, values: Values) -> None:
        with pytest.raises(NoModelError) as caught:
            await service.ask(str(repository), question("session"), values.append)
        assert caught.value.hint == "kvd setup"
        found = await service.search("session", str(repository), None, values.append)
        assert found["sources"][0]["path"] == "src/session.py"

    run(body)


def test_search_has_what_the_contract_says(repository: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        result = await service.search("paint rectangle", str(repository), 1, values.append)
        assert set(result) == {"query", "repo", "sources", "timings_ms"}
        assert result["repo"] == str(repository)
        (source,) = result["sources"]
        assert source["path"] == "src/paint.js"
        assert "cited" not in source
        assert (source["start_line"], source["end_line"]) == (1, 4)
        assert set(result["timings_ms"]) == {"recall", "total"}

    run(body)


@pytest.mark.parametrize("path", ["/no/such/folder", "/dev/null"])
def test_what_is_no_repository(path: str) -> None:
    async def body(service: Service, values: Values) -> None:
        with pytest.raises(RepositoryError):
            await service.search("x", path, None, values.append)

    run(body)


def test_settings_are_read_at_each_request(repository: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await service.index(str(repository), False, values.append)
        paths.config_file().parent.mkdir(parents=True)
        paths.config_file().write_text("top_k = 1\n")
        assert len((await service.search("session", str(repository), None, values.append))["sources"]) == 1
        paths.config_file().write_text("top_k = 'many'\n")
        with pytest.raises(UsageError, match="top_k"):
            await service.search("session", str(repository), None, values.append)
        assert "top_k" in (await service.status())["settings_error"]

    run(body)


def test_background_indexing_is_seen_in_the_status(repository: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        result = await service.index(str(repository), True, values.append)
        assert result == {"repo": str(repository), "background": True}
        async with asyncio.timeout(10.0):
            while (status := await service.status())["indexing"] or not status["indexes"]:
                await asyncio.sleep(0.01)
        (entry,) = status["indexes"]
        assert entry["repo"] == str(repository)
        assert entry["files"] == 3

    run(body)


def test_the_store_is_flushed_at_the_end(repository: Path, fake_model: Path) -> None:
    async def body(service: Service, values: Values) -> None:
        await service.ask(str(repository), question("store session"), values.append)

    run(body)

    async def look(service: Service, values: Values) -> None:
        store = (await service.status())["store"]
        assert store["blocks"] == 1
        assert store["cap_bytes"] == 8_000_000_000
        assert (await service.gc())["store"]["blocks"] == 1

    run(look)


def test_gc_gives_back_the_room_of_what_a_lower_cap_removes(isolated_home: Path) -> None:
    store = BlockStore(paths.store_file())
    store.put([block(f"{number:03}", 30_000) for number in range(60)])
    store.close()
    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("store_bytes = 1000000\n")

    async def body(service: Service, values: Values) -> None:
        done = await service.gc()
        assert done["freed_bytes"] > 500_000
        assert done["store"]["file_bytes"] <= 1_000_000
        assert 0 < done["store"]["blocks"] == 60 - sum(done["removed"].values()) < 60

    run(body)


def test_drafts_are_recalled_one_at_a_time_and_not_beside_a_question(
    repository: Path, fake_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, drafts = 0, 0
    release = threading.Event()

    def slow_search(root: Path, query: str, top_k: int, only: Only, embedder: None, tell: object) -> list[Hit]:
        nonlocal running, drafts
        if query.startswith("draft"):
            running, drafts = running + 1, drafts + 1
            assert running == 1
            assert release.wait(10.0)
            running -= 1
        return search(root, query, top_k, only=only)

    monkeypatch.setattr("kvd.service.repositories.search", slow_search)

    async def body(service: Service, values: Values) -> None:
        def announce(client: int) -> asyncio.Task[dict[str, Any]]:
            return asyncio.create_task(service.prefetch(client, str(repository), question("draft session")))

        await service.ask(str(repository), question("say session"), values.append)
        announced = [announce(client) for client in range(40)]
        async with asyncio.timeout(10.0):
            while not running:
                await asyncio.sleep(0.01)
            # With a recall for a draft at work all the time.
            assert (await service.ask(str(repository), question("say session"), values.append))["answer"]
            # Those that wait are answered without their turn.
            others, _ = await asyncio.wait(announced, return_when=asyncio.FIRST_COMPLETED)
            while len(others) < 39:
                others, _ = await asyncio.wait(announced, timeout=0.01)
            assert drafts == running == 1
            release.set()
            results = await asyncio.gather(*announced)
        assert [result["dropped"] for result in results] == ["busy"] * 40
        assert sorted({result["chunks"] > 0 for result in results}) == [False, True]
        assert (await announce(1))["dropped"] == ""
        assert drafts == 2

    run(body)


@contextmanager
def indexed_by_another(root: Path) -> Iterator[int]:
    """Another program that is at the index and does not come to an end; its process id."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom kvd.recall.index import only_writer\n"
        "with only_writer(Path(sys.argv[1]), lambda: False):\n    print('locked', flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(paths.index_file(root))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        yield other.pid
        other.communicate("")


def test_a_search_does_not_wait_for_another_indexer_for_ever(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repositories, "_PATIENCE_S", 1.0)

    async def body(service: Service, values: Values) -> None:
        def searched() -> Awaitable[dict[str, Any]]:
            return service.search("session is expired", str(repository), 3, values.append)

        await service.index(str(repository), False, values.append)
        (repository / "src" / "new.py").write_text("def session_is_expired_now():\n    pass\n")
        with indexed_by_another(repository) as pid:
            indexing = asyncio.create_task(service.index(str(repository), False, values.append))
            # All of them together, whoever asks for what at the time.
            async with asyncio.timeout(4.0):
                results = await asyncio.gather(*(searched() for _ in range(12)))
            for result in results:
                assert "src/session.py" in {source["path"] for source in result["sources"]}
                (notice,) = result["notices"]
                assert "the index is as it was, and files may have changed since" in notice
                assert "is locked by python" in notice
                assert f"(pid {pid})" in notice
            assert not indexing.done()
        assert (await indexing)["added"] == 1
        result = await searched()
        assert "src/new.py" in {source["path"] for source in result["sources"]}
        assert "notices" not in result

    run(body)


def test_a_search_waits_for_another_to_make_the_first_index(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repositories, "_PATIENCE_S", 0.1)

    async def body(service: Service, values: Values) -> None:
        with indexed_by_another(repository):
            searching = asyncio.create_task(service.search("session", str(repository), 3, values.append))
            while not any(value["stage"] == "wait" for value in values):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert not searching.done()
        assert (await searching)["sources"]

    run(body)


def test_one_update_at_a_time_told_to_all(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests for one repository: the second waits, and hears of the first one's progress."""
    running = 0

    def slow_update(
        root: Path,
        settings: object,
        progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
        means: object,
    ) -> IndexSummary:
        nonlocal running
        running += 1
        assert running == 1
        deadline = time.monotonic() + 10.0
        while not cancelled() and time.monotonic() < deadline:
            progress(Progress("index", 1, 2))
            time.sleep(0.01)
        running -= 1
        return IndexSummary(str(root), 0, 0, 0, 0, 0, 0)

    monkeypatch.setattr("kvd.service.repositories.update_index", slow_update)

    async def body(service: Service, values: Values) -> None:
        heard: Values = []
        first = asyncio.create_task(service.index(str(repository), False, values.append))
        second = asyncio.create_task(service.index(str(repository), False, heard.append))
        async with asyncio.timeout(10.0):
            while not (values and heard):
                await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        # The lock went on to the second only after the first one's thread had ended.
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert running == 0

    run(body)
