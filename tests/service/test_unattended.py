"""Updates that nobody waits for: many requests, few runs, and none that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from kvd.errors import RepositoryError
from kvd.service.unattended import Unattended
from kvd.types import IndexSummary

HERE, THERE = Path("/here"), Path("/there")


class Desk:
    """Runs as they begin; each ends when it is let go."""

    def __init__(self) -> None:
        self.begun: list[Path] = []
        self.interrupted: list[Path] = []
        self.fault: Exception | None = None
        self._free = asyncio.Semaphore(0)
        self.unattended = Unattended(self._update)

    async def _update(self, root: Path) -> IndexSummary:
        self.begun.append(root)
        try:
            await self._free.acquire()
        except asyncio.CancelledError:
            self.interrupted.append(root)
            raise
        if self.fault is not None:
            raise self.fault
        return IndexSummary(
            repo=str(root),
            files=0,
            chunks=0,
            added=0,
            changed=0,
            deleted=0,
            unchanged=0,
            skipped={},
            embedder="",
            seconds=0,
        )

    async def let_go(self, runs: int = 1) -> None:
        """End so many runs; all that follows from it has happened afterwards."""
        for _ in range(runs):
            self._free.release()
            await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def at(desk_and: Callable[[Desk], Awaitable[None]]) -> None:
    async def body() -> None:
        desk = Desk()
        await asyncio.wait_for(desk_and(desk), 10.0)
        await desk.unattended.close()

    asyncio.run(body())


def test_what_is_wanted_while_one_runs_is_one_further_run() -> None:
    async def body(desk: Desk) -> None:
        for _ in range(100):
            desk.unattended.want(HERE)
        await desk.settle()
        assert desk.begun == [HERE]
        for _ in range(100):
            desk.unattended.want(HERE)
            await asyncio.sleep(0)
        assert desk.begun == [HERE]
        await desk.let_go()
        assert desk.begun == [HERE, HERE]
        await desk.let_go()
        assert desk.begun == [HERE, HERE]
        desk.unattended.want(HERE)
        await desk.settle()
        assert desk.begun == [HERE] * 3

    at(body)


def test_repositories_do_not_wait_for_each_other() -> None:
    async def body(desk: Desk) -> None:
        desk.unattended.want(HERE)
        desk.unattended.want(THERE)
        await desk.settle()
        assert desk.begun == [HERE, THERE]

    at(body)


def test_a_fault_ends_nothing() -> None:
    async def body(desk: Desk) -> None:
        for fault in (RepositoryError("gone"), ValueError("no error of kvd's")):
            desk.begun.clear()
            desk.unattended.want(HERE)
            await desk.settle()
            desk.unattended.want(HERE)
            desk.fault = fault
            await desk.let_go()
            desk.fault = None
            await desk.let_go()
            assert desk.begun == [HERE, HERE]

    at(body)


def test_the_end_interrupts_what_runs_and_begins_nothing() -> None:
    async def body(desk: Desk) -> None:
        desk.unattended.want(HERE)
        await desk.settle()
        desk.unattended.want(HERE)
        await desk.unattended.close()
        await desk.settle()
        assert desk.begun == desk.interrupted == [HERE]

    at(body)
