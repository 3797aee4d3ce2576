"""Indexes that are brought up to date before anybody asks, with real files, git, events and indexes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.errors import StoreError, UsageError
from kvd.recall.rank import search
from kvd.service import repositories, tended, watching
from kvd.service.background import Background
from kvd.service.indexer import update_index
from kvd.service.recent import note_use, recently_used
from kvd.service.repositories import Repositories
from kvd.service.service import Service
from kvd.source.watch import NoEventsError, Watcher
from kvd.types import IndexSummary, Progress

from .test_service import CHILD, question

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are events on Linux only")


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The roots for which an update in the background was begun, as they come."""
    roots: list[Path] = []
    refresh = Repositories.refresh

    async def noted(self: Repositories, root: Path, *rest: Any, **more: Any) -> IndexSummary | None:
        roots.append(root)
        return await refresh(self, root, *rest, **more)

    monkeypatch.setattr(Repositories, "refresh", noted)
    return roots


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tended, "QUIET_SECONDS", 0.03)
    monkeypatch.setattr(tended, "_REST_SHARE", 0)


class Desk:
    """A service, looked at without asking it anything: `has` reads the index as it is."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def has(self, root: Path, name: str) -> bool:
        try:
            return any(name in hit.chunk.text for hit in search(root, name, 5))
        except StoreError:
            return False

    def paths(self, root: Path, name: str) -> list[str]:
        return [hit.chunk.path for hit in search(root, name, 1)]

    def runs(self, *results: str) -> int:
        """Updates that nobody asked for."""
        samples = self.service.metrics.to_json()["kvd_background_updates_total"]
        return sum(item["value"] for item in samples if not results or item["labels"]["result"] in results)

    def more_runs_than(self, number: int) -> bool:
        return self.runs() > number

    def state(self, root: Path) -> dict[str, Any]:
        return self.service._watching.state(str(root))

    async def idle(self) -> None:
        """Let what is in line for the background, and what follows from it, have its turn."""
        for _ in range(4):
            await self.service._watching._background.run(lambda: None)

    def untaken(self, root: Path) -> bool:
        """Whether something was noticed that nothing was made of yet."""
        return self.service._watching._tended[root][0]._noticed.moment > 0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20.0):
            while not condition():
                await asyncio.sleep(0.005)

    async def watch(self, root: Path) -> int:
        """Have `root` indexed and watched, and the first run be over; returns how many runs there were."""
        before = self.runs()
        await self.service.index(str(root), False, lambda value: None)
        await self.until(lambda: self.state(root)["state"] == "watched" and self.runs() > before)
        return self.runs()


def run(body: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        service = Service(CHILD)
        try:
            await asyncio.wait_for(body(Desk(service)), 60.0)
        finally:
            await service.close()

    asyncio.run(main())


def put(file: Path, text: str) -> None:
    """Write it with one event, so that there can't be a run between two."""
    new = Path(tempfile.mkdtemp(dir="/tmp")) / "new"
    new.write_text(text)
    new.rename(file)
    new.parent.rmdir()


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True)


def test_edits_are_found_before_anybody_asks(repository: Path) -> None:
    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        src = repository / "src"
        (src / "session.py").write_text("def edited_in_place(): pass\n")
        await desk.until(lambda: desk.has(repository, "edited_in_place"))
        (src / "new").mkdir()
        await desk.until(lambda: desk.state(repository)["folders"] == 5)
        (src / "new" / "file.py").write_text("def made_anew(): pass\n")
        await desk.until(lambda: desk.has(repository, "made_anew"))
        (src / "new").rename(repository / "moved")
        await desk.until(lambda: desk.paths(repository, "made_anew") == ["moved/file.py"])
        (repository / "moved" / "file.py").write_text("def edited_where_it_is_now(): pass\n")
        await desk.until(lambda: desk.has(repository, "edited_where_it_is_now"))
        (repository / "moved" / "file.py").unlink()
        await desk.until(lambda: not desk.has(repository, "edited_where_it_is_now"))
        assert desk.runs("failed") == 0

    run(body)


def test_a_branch_switch_is_noticed(repository: Path) -> None:
    git(repository, "checkout", "-qb", "side")
    (repository / "deep" / "er").mkdir(parents=True)
    (repository / "deep" / "er" / "side.py").write_text("def on_side(): pass\n")
    git(repository, "rm", "-q", "src/paint.js")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "side")
    git(repository, "checkout", "-q", "-")

    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        for _ in range(2):
            git(repository, "checkout", "-q", "side")
            await desk.until(lambda: desk.has(repository, "on_side") and not desk.has(repository, "paintRectangle"))
            git(repository, "checkout", "-q", "-")
            await desk.until(lambda: not desk.has(repository, "on_side") and desk.has(repository, "paintRectangle"))

    run(body)


def test_what_git_alone_changes_is_noticed(repository: Path) -> None:
    (repository / "build").mkdir()
    (repository / "build" / "out.py").write_text("def built_thing(): pass\n")
    (repository / ".gitignore").write_text("build/\n")
    (repository / "note.py").write_text("def note_thing(): pass\n")

    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        assert not desk.has(repository, "built_thing")
        git(repository, "add", "-f", "build/out.py")
        await desk.until(lambda: desk.has(repository, "built_thing"))
        (repository / "build" / "out.py").write_text("def built_again(): pass\n")
        await desk.until(lambda: desk.has(repository, "built_again"))
        git(repository, "rm", "-qf", "--cached", "build/out.py")
        await desk.until(lambda: not desk.has(repository, "built_again"))
        (repository / ".git" / "info" / "exclude").write_text("note.py\n")
        await desk.until(lambda: not desk.has(repository, "note_thing"))
        (repository / ".gitignore").write_text("")
        await desk.until(lambda: desk.has(repository, "built_again"))

    run(body)


def test_what_is_ignored_causes_no_run_and_is_not_watched(repository: Path, refreshed: list[Path]) -> None:
    (repository / ".gitignore").write_text("node_modules/\n*.log\n")
    for number in range(30):
        (repository / "node_modules" / f"package{number}" / "lib").mkdir(parents=True)

    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)
        assert len(refreshed) == 1
        # The root, src, .git and .git/info.
        assert desk.state(repository)["folders"] == 4
        (repository / "node_modules" / "package1" / "a.js").write_text("x")
        shutil.rmtree(repository / "node_modules")
        put(repository / "src" / "debug.log", "x")
        await desk.until(lambda: "src/debug.log" in desk.service._watching._tended[repository][0]._noticed._muted)
        await desk.idle()
        assert len(refreshed) == 1
        # What is known to be ignored is not even looked at.
        put(repository / "src" / "debug.log", "y")
        put(repository / "src" / "a.py", "def last_of_all(): pass\n")
        await desk.until(lambda: desk.has(repository, "last_of_all"))
        await desk.until(lambda: desk.runs() > before)
        assert desk.runs() == before + 1
        assert len(refreshed) == 2

    run(body)


def test_own_files_within_the_repository_cause_no_run(isolated_home: Path) -> None:
    git(isolated_home, "init", "-q")
    (isolated_home / "a.py").write_text("def first_of_all(): pass\n")

    async def body(desk: Desk) -> None:
        assert paths.index_file(isolated_home).is_relative_to(isolated_home)
        before = await desk.watch(isolated_home)
        changed = desk.runs("changed")
        for number in range(3):
            put(isolated_home / "a.py", f"def changed_{number}(): pass\n")
            await desk.until(partial(desk.has, isolated_home, f"changed_{number}"))
            await desk.until(partial(desk.more_runs_than, before + number))
        assert (desk.runs(), desk.runs("changed")) == (before + 3, changed + 3)
        assert not desk.untaken(isolated_home)

    run(body)


@pytest.mark.slow
def test_a_storm_of_writes_gives_few_runs(repository: Path) -> None:
    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)

        def storm() -> None:
            for number in range(1_000):
                folder = repository / f"folder{number % 10}"
                folder.mkdir(exist_ok=True)
                (folder / f"f{number}.py").write_text(f"x = {number}\n")

        started = time.monotonic()
        await asyncio.to_thread(storm)
        (repository / "folder9" / "last.py").write_text("def calm_after_storm(): pass\n")
        await desk.until(lambda: desk.has(repository, "calm_after_storm"))
        # Two while it goes on for so short a time, and one afterwards; more if the machine is slow.
        assert 1 <= desk.runs() - before <= 3 + (time.monotonic() - started) / tended.LONGEST_SECONDS
        assert (await desk.service.index(str(repository), False, lambda value: None))["added"] == 0

    run(body)


def test_a_steady_stream_does_not_postpone_it_for_ever(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tended, "QUIET_SECONDS", 30.0)
    monkeypatch.setattr(tended, "LONGEST_SECONDS", 0.3)

    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)
        over = threading.Event()

        def stream() -> None:
            number = 0
            while not over.wait(0.01):
                number += 1
                (repository / "busy.py").write_text(f"def stream_{number}(): pass\n")

        writing = asyncio.create_task(asyncio.to_thread(stream))
        (repository / "calm.py").write_text("def found_meanwhile(): pass\n")
        try:
            await desk.until(lambda: desk.has(repository, "found_meanwhile"))
            assert desk.runs() > before or desk.service._repositories.busy
        finally:
            over.set()
            await writing

    run(body)


@pytest.mark.slow
def test_runs_that_find_nothing_become_rare(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tended, "_REST_SHARE", 2)

    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)
        text = (repository / "README.md").read_text()
        for _ in range(60):
            (repository / "README.md").write_text(text)
            await asyncio.sleep(0.01)
        await desk.until(lambda: desk.runs() > before)
        # Without a rest it would be ten and more.
        assert desk.runs("unchanged") - before <= 4

    monkeypatch.setattr(tended, "LONGEST_SECONDS", 0.05)
    run(body)


@pytest.mark.parametrize("how", ["deleted", "renamed", "linked", "outer renamed"])
def test_a_root_that_goes_ends_its_watch(repository: Path, how: str) -> None:
    async def body(desk: Desk) -> None:
        nonlocal repository
        outer = repository.parent / "outer"
        outer.mkdir()
        repository = repository.rename(outer / "repo")
        await desk.watch(repository)
        copy = shutil.copytree(repository, outer / "copy")
        if how == "deleted":
            subprocess.run(["rm", "-rf", str(repository)], check=True)
        elif how == "outer renamed":
            outer.rename(outer.with_name("elsewhere"))
            copy = outer.with_name("elsewhere") / "copy"
            # Nothing tells of that; what changes in it then does.
            (outer.with_name("elsewhere") / "repo" / "a.py").write_text("x = 1\n")
        else:
            repository.rename(outer / "was")
            if how == "linked":
                repository.symlink_to(copy)
        await desk.until(lambda: desk.state(repository)["state"] == "off")
        assert desk.state(repository)["why"].startswith("its folder")
        assert desk.runs("failed") == 0
        if how == "linked":
            await desk.until(lambda: desk.service._watching.folders == 0)
        else:
            # It can come back.
            shutil.copytree(copy, repository)
            await desk.watch(repository)
            (repository / "back.py").write_text("def back_again(): pass\n")
            await desk.until(lambda: desk.has(repository, "back_again"))

    run(body)


def test_a_root_that_comes_back_while_its_watch_ends_is_watched_anew(repository: Path) -> None:
    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        copy = shutil.copytree(repository, repository.with_name("copy"))
        over = threading.Event()
        holding = asyncio.create_task(desk.service._watching._background.run(lambda: over.wait(20.0)))
        shutil.rmtree(repository)
        await desk.until(lambda: desk.state(repository)["state"] == "off")
        shutil.copytree(copy, repository)
        await desk.service.index(str(repository), False, lambda value: None)
        over.set()
        await holding
        await desk.until(lambda: desk.state(repository)["state"] == "watched")

    run(body)


def test_a_run_gives_way_and_is_made_up_for(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in the background stops when a request comes for its root; a request that is cancelled leaves it to
    the background again."""
    began: list[str] = []

    def slow(
        root: Path,
        settings: Any,
        progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
        means: Any,
    ) -> IndexSummary:
        name = threading.current_thread().name.partition("_")[0]
        began.append(name)
        # Like a run that has much to do, until it is let go.
        while not released.is_set() and not cancelled():
            progress(Progress("index", 1, 2))
            released.wait(0.01)
        return update_index(root, settings, progress, cancelled, means)

    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)
        monkeypatch.setattr(repositories, "update_index", slow)
        (repository / "src" / "session.py").write_text("def much_to_do(): pass\n")
        await desk.until(lambda: began == ["background"])
        told: list[dict[str, Any]] = []
        asked = asyncio.create_task(desk.service.search("much to do", str(repository), None, told.append))
        await desk.until(lambda: len(began) == 2)
        assert began[1] != "background"
        assert desk.runs() == before
        asked.cancel()
        await asyncio.wait([asked])
        await desk.until(lambda: len(began) == 3)
        assert began[2] == "background"
        released.set()
        await desk.until(lambda: desk.runs() > before)
        assert desk.has(repository, "much_to_do")

    released = threading.Event()
    run(body)


def test_what_nobody_waits_for_gives_way(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`index` in the background comes after questions, and not at all where theirs did it."""
    threads: list[str] = []

    def noted(*arguments: Any) -> IndexSummary:
        threads.append(threading.current_thread().name.partition("_")[0])
        return update_index(*arguments)

    async def body(desk: Desk) -> None:
        monkeypatch.setattr(repositories, "update_index", noted)
        with desk.service._watching.making_way():
            await desk.service.index(str(repository), True, lambda value: None)
            await desk.idle()
            assert threads == []
        await desk.until(lambda: threads == ["background"] and not desk.service._unattended._tasks)
        assert desk.has(repository, "Session")
        with desk.service._watching.making_way():
            await desk.service.index(str(repository), True, lambda value: None)
            await desk.service.search("session", str(repository), None, lambda value: None)
        await desk.until(lambda: not desk.service._unattended._tasks)
        # The loop's own threads have this name.
        assert threads == ["background", "asyncio"]

    paths.config_file().parent.mkdir(parents=True)
    paths.config_file().write_text("watch = false\n")
    run(body)


def test_nothing_runs_beside_a_question(
    repository: Path, fake_model: Path, monkeypatch: pytest.MonkeyPatch, refreshed: list[Path]
) -> None:
    held_back = 0
    wait = Background.wait

    async def counted(background: Background) -> None:
        nonlocal held_back
        held_back += background.must_wait()
        await wait(background)

    monkeypatch.setattr(Background, "wait", counted)

    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)
        words: list[Any] = []
        asked = asyncio.create_task(desk.service.ask(str(repository), question("slow session"), words.append))
        await desk.until(lambda: any(value["kind"] == "token" for value in words))
        (repository / "src" / "session.py").write_text("def changed_meanwhile(): pass\n")
        await desk.until(lambda: desk.untaken(repository))
        other = repository.parent / "other"
        shutil.copytree(repository, other)
        await desk.service.index(str(other), False, lambda value: None)
        await desk.until(lambda: held_back == 2)
        await desk.idle()
        assert desk.runs() == before == len(refreshed)
        assert desk.untaken(repository)
        assert desk.state(other)["state"] == "off"
        asked.cancel()
        await asyncio.wait([asked])
        await desk.until(lambda: desk.has(repository, "changed_meanwhile") and desk.runs() > before + 1)

    run(body)


def test_a_question_finds_what_changed_just_before_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the watch has or has not noticed yet; and the watch then has nothing left to do."""
    monkeypatch.setattr(tended, "QUIET_SECONDS", 0.5)

    async def body(desk: Desk) -> None:
        before = await desk.watch(repository)
        put(repository / "src" / "session.py", "def changed_just_now(): pass\n")
        await desk.until(lambda: desk.untaken(repository))
        found = await desk.service.search("changed_just_now", str(repository), 1, lambda value: None)
        assert found["sources"][0]["symbol"] == "changed_just_now"
        await desk.until(lambda: not desk.untaken(repository))
        put(repository / "src" / "session.py", "def changed_again(): pass\n")
        await desk.until(lambda: desk.runs() > before)
        assert desk.runs() == before + 1
        assert desk.has(repository, "changed_again")

    run(body)


def test_the_setting_ends_it(repository: Path) -> None:
    def write(text: str) -> None:
        paths.config_file().parent.mkdir(parents=True, exist_ok=True)
        paths.config_file().write_text(text)

    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        write("watch = false\n")
        (repository / "a.py").write_text("def one(): pass\n")
        await desk.until(lambda: desk.state(repository)["state"] == "off")
        assert desk.state(repository)["why"] == "watch = false in the settings"
        await desk.service.index(str(repository), False, lambda value: None)
        assert desk.state(repository)["why"] == "watch = false in the settings"
        write("watch = true\n")
        await desk.watch(repository)

    run(body)


def test_a_repository_can_end_its_own(repository: Path) -> None:
    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        (repository / ".kvd.toml").write_text("watch = false\n")
        await desk.until(lambda: desk.state(repository)["state"] == "off")
        assert desk.state(repository)["why"] == "watch = false in its .kvd.toml"
        (repository / ".kvd.toml").write_text("nonsense\n")
        (repository / "a.py").write_text("def one(): pass\n")
        with pytest.raises(UsageError, match=r"/\.kvd\.toml:1: "):
            await desk.service.index(str(repository), False, lambda value: None)
        (repository / ".kvd.toml").unlink()
        await desk.watch(repository)

    run(body)


def test_who_was_used_longest_ago_leaves(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [isolated_home / name for name in ("one", "two", "three")]
    for root in roots:
        for number in range(4):
            (root / f"f{number}").mkdir(parents=True)
            (root / f"f{number}" / "a.py").write_text("x = 1\n")
    one, two, three = roots

    async def body(desk: Desk) -> None:
        monkeypatch.setattr(watching, "MOST_ROOTS", 2)
        await desk.watch(one)
        await desk.watch(two)
        await desk.service.index(str(one), False, lambda value: None)
        await desk.watch(three)
        assert [desk.state(root)["state"] for root in roots] == ["watched", "off", "watched"]
        assert desk.state(two)["why"] == "not used lately"
        assert desk.service._watching.folders == 10
        monkeypatch.setattr(watching, "MOST_FOLDERS", 8)
        await desk.watch(two)
        assert [desk.state(root)["state"] for root in roots] == ["off", "watched", "off"]

    run(body)


def test_what_was_used_lately_is_watched_from_the_start(repository: Path) -> None:
    run(lambda desk: desk.service.index(str(repository), False, lambda value: None))  # type: ignore[arg-type,return-value]
    assert recently_used(60.0, 4) == [repository]
    assert recently_used(0.0, 4) == []
    note_use(repository.parent / "never indexed")
    (repository / "src" / "session.py").write_text("def changed_while_no_daemon_ran(): pass\n")

    async def body(desk: Desk) -> None:
        desk.service.start()
        await desk.until(lambda: desk.has(repository, "changed_while_no_daemon_ran"))
        assert desk.state(repository)["state"] == "watched"
        assert desk.service._watching.counts() == {"events": 1, "polling": 0}

    run(body)


def test_closing_is_prompt_and_leaves_no_thread_and_no_child(repository: Path) -> None:
    before = set(threading.enumerate())

    async def body(desk: Desk) -> None:
        await desk.watch(repository)
        for number in range(200):
            (repository / f"f{number}.py").write_text(f"def function_{number}(): pass\n" * 20)
        await desk.until(lambda: bool(desk.service._repositories.busy))
        async with asyncio.timeout(5.0):
            await desk.service.close()
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert not [name for name in names if not name.startswith("asyncio")]

    run(body)
    assert set(threading.enumerate()) == before


def test_a_polled_root_that_becomes_a_link_is_left(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*rest: object) -> None:
        raise NoEventsError("it is so")

    monkeypatch.setattr(Watcher, "watch", none)
    monkeypatch.setattr(tended, "POLL_SECONDS", 0.05)

    async def body(desk: Desk) -> None:
        await desk.service.index(str(repository), False, lambda value: None)
        await desk.until(lambda: desk.runs() == 1)
        assert desk.state(repository) == {"state": "polled", "why": "it is so", "folders": 0}
        assert desk.service._watching.counts() == {"events": 0, "polling": 1}
        (repository / "src" / "session.py").write_text("def found_by_polling(): pass\n")
        await desk.until(lambda: desk.has(repository, "found_by_polling"))
        elsewhere = repository.rename(repository.with_name("elsewhere"))
        repository.symlink_to(elsewhere)
        await desk.until(lambda: desk.state(repository)["why"] == "its folder was replaced by a link")
        assert not paths.index_file(elsewhere).exists()

    monkeypatch.setattr(tended, "_POLL_SHARE", 1)
    run(body)


_FEW = """
import asyncio, logging, sys
from pathlib import Path
from kvd.recall.rank import search
from kvd.service import tended
from kvd.service.service import Service
from kvd.source.watch import Watcher

tended.POLL_SECONDS = 0.05
tended._POLL_SHARE = 1
# Nor does it rest for longer after each look that found nothing.
tended._LONGEST_REST = 0.05
tried = []
watch = Watcher.watch
Watcher.watch = lambda *all: (tried.append(1), watch(*all))[1]
logging.basicConfig(level=logging.WARNING, format="%(message)s")

async def main(small, large):
    service = Service()
    for root in (large, small):
        await service.index(root, False, lambda value: None)
    async with asyncio.timeout(20):
        while [service._watching.state(root)["state"] for root in (small, large)] != ["watched", "polled"]:
            await asyncio.sleep(0.01)
        for root in (small, large):
            Path(root, "new.py").write_text("def noticed_anyway(): pass\\n")
        for root in (small, large):
            while not any("noticed_anyway" in hit.chunk.text for hit in search(Path(root), "noticed_anyway", 3)):
                await asyncio.sleep(0.01)
    print(service._watching.state(large))
    before = len(tried)
    await service.index(large, False, lambda value: None)
    async with asyncio.timeout(20):
        while len(tried) == before:
            await asyncio.sleep(0.01)
    for _ in range(4):
        await service._watching._background.run(lambda: None)
    await service.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_when_watches_run_out_it_is_polled_and_said_once(isolated_home: Path) -> None:
    small, large = isolated_home / "small", isolated_home / "large"
    small.mkdir()
    for number in range(20):
        (large / f"f{number}").mkdir(parents=True)
    # A limit of the kernel's, for a user of its own.
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    limit = 'echo 10 > /proc/sys/user/max_inotify_watches && exec "$@"'
    if subprocess.run([*limited, limit, "sh", "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = subprocess.run(
        [*limited, limit, "sh", sys.executable, "-c", _FEW, str(small), str(large)],
        capture_output=True,
        text=True,
        timeout=60.0,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    why = "the system has no inotify watches left (fs.inotify.max_user_watches)"
    assert done.stdout.strip() == str({"state": "polled", "why": why, "folders": 0})
    assert done.stderr.splitlines() == [f"changes are polled for, as {why}"]
