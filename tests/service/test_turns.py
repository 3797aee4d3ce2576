from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvd.errors import BusyError
from kvd.service.turns import CLIENT, Turns


class Askers:
    """Take turns; each one that has it stays until it is let go."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.began: list[str] = []
        self.waited: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, client: int = 0, kind: str = "model", most: int = 2) -> asyncio.Task[None]:
        self._ends[name] = asyncio.Event()

        async def turn() -> None:
            CLIENT.set(client)
            async with self.turns.one(kind, most, lambda: self.waited.append(name)):
                self.began.append(name)
                await self._ends[name].wait()

        task = self._tasks[name] = asyncio.create_task(turn())
        await settled()
        return task

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await self._tasks[name]
            await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(body: Callable[[Askers], Awaitable[None]], most_waiting: int = 8) -> None:
    async def main() -> None:
        askers = Askers(Turns(most_waiting))
        await body(askers)
        assert (askers.turns.running, askers.turns.waiting) == (0, 0)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_as_many_as_allowed_run_and_the_others_wait() -> None:
    async def body(askers: Askers) -> None:
        for name in ("a", "b", "c", "d"):
            await askers.ask(name)
        assert (askers.began, askers.waited) == (["a", "b"], ["c", "d"])
        await askers.end("b")
        assert askers.began == ["a", "b", "c"]
        await askers.end("a", "c", "d")

    run(body)


def test_another_kind_runs_alone_and_is_not_passed() -> None:
    async def body(askers: Askers) -> None:
        await askers.ask("a")
        await askers.ask("other", kind="other")
        await askers.ask("b")
        assert askers.began == ["a"]
        await askers.end("a")
        assert askers.began == ["a", "other"]
        await askers.end("other")
        assert askers.began == ["a", "other", "b"]
        await askers.end("b")

    run(body)


def test_a_client_with_many_questions_lets_others_in_between() -> None:
    async def body(askers: Askers) -> None:
        for name in ("a1", "a2", "a3", "a4"):
            await askers.ask(name, client=1)
        await askers.ask("b1", client=2)
        await askers.end("a1")
        assert askers.began == ["a1", "a2", "b1"]
        await askers.end("a2")
        assert askers.began[-1] == "a3"
        await askers.end("b1", "a3", "a4")

    run(body)


def test_a_full_queue_is_busy_and_one_client_cannot_fill_it() -> None:
    async def body(askers: Askers) -> None:
        for number in range(8):
            await askers.ask(f"a{number}", client=1)
        with pytest.raises(BusyError, match="6 questions are waiting"):
            await (await askers.ask("a8", client=1))
        for number in range(2):
            await askers.ask(f"b{number}", client=2)
        with pytest.raises(BusyError, match="8 questions are waiting"):
            await (await askers.ask("b2", client=2))
        names = [*(f"a{number}" for number in range(8)), "b0", "b1"]
        for name in names:
            askers._ends[name].set()
        await asyncio.gather(*(askers._tasks[name] for name in names))

    run(body)


def test_one_who_waits_or_runs_may_leave() -> None:
    async def body(askers: Askers) -> None:
        await askers.ask("a", most=1)
        waits = await askers.ask("b", most=1)
        await askers.ask("c", most=1)
        waits.cancel()
        await settled()
        assert askers.turns.waiting == 1
        askers._tasks["a"].cancel()
        await settled()
        assert askers.began == ["a", "c"]
        await askers.end("c")

    run(body)
