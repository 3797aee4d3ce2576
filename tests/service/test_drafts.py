"""Drafts of questions at the scripted engine: they never start it, wait for it or keep it from a question."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

from kvd.errors import UnavailableError

from .test_engine import LOAD, Fixture, alive, run, until


def draft(fixture: Fixture, text: str, client: int = 1, chunks: int = 2) -> asyncio.Task[dict[str, Any]]:
    async def bring() -> dict[str, Any]:
        params = {"question": text, "chunks": [{}] * chunks}
        async with fixture.engine.drafts.turn(client) as draft:
            return await fixture.engine.prefetch(draft, LOAD, params)

    return asyncio.create_task(bring())


async def leased(fixture: Fixture) -> int:
    return int((await fixture.engine.state())["pool"]["leased"])


async def begun(fixture: Fixture) -> int:
    """How many drafts the child has had in hand."""
    return int((await fixture.engine.state())["pool"]["drafts"])


def test_no_engine_is_started_for_a_draft() -> None:
    async def body(fixture: Fixture) -> None:
        nothing = {"dropped": "no-engine", "hot": 0, "loaded": 0, "missing": 0}
        assert await draft(fixture, "say") == nothing
        assert (await fixture.engine.state())["state"] == "stopped"
        await fixture.ask("say a", replace(LOAD, n_ctx=4096))
        pid = await fixture.pid()
        # Nor is one that was loaded otherwise replaced.
        assert await draft(fixture, "say") == nothing
        assert await fixture.pid() == pid

    run(body)


def test_a_draft_is_brought_in_and_kept_until_its_client_wants_nothing() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        for client in (1, 2, 1):
            assert await draft(fixture, "say", client) == {"dropped": "", "hot": 0, "loaded": 2, "missing": 0}
        assert await leased(fixture) == 2
        for client in (1, 3):
            fixture.engine.drafts.release(client)
        assert await leased(fixture) == 1

    run(body)


def test_a_busy_engine_drops_drafts_at_once() -> None:
    async def body(fixture: Fixture) -> None:
        question = fixture.start("slow")
        await fixture.first_token()
        assert (await draft(fixture, "say"))["dropped"] == "busy"
        waiting = fixture.start("say b")
        await until(lambda: fixture.engine.waiting == 1)
        question.cancel()
        assert (await draft(fixture, "say"))["dropped"] == "busy"
        assert (await waiting)["answer"] == "b"
        assert await leased(fixture) == 0

    run(body)


def test_a_draft_makes_way_for_a_question() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        drafts = [draft(fixture, "slow", client) for client in (1, 2)]
        await asyncio.sleep(0)
        # The child would go on with the first one for ever.
        assert (await fixture.ask("say b"))["answer"] == "b"
        assert [(await task)["dropped"] for task in drafts] == ["busy", "busy"]

    run(body)


def test_a_newer_draft_of_the_same_client_replaces_the_older() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        older = draft(fixture, "slow")
        await asyncio.sleep(0)
        assert (await draft(fixture, "say"))["dropped"] == ""
        assert (await older)["dropped"] == "replaced"
        assert await leased(fixture) == 1

    run(body)


def test_cancelling_a_draft_ends_it_and_keeps_nothing() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        task = draft(fixture, "slow")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await leased(fixture) == 0
        assert await fixture.pid() == pid

    run(body)


def test_an_engine_that_dies_of_a_draft_is_an_error_and_replaced() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        with pytest.raises(UnavailableError, match="signal SIGKILL"):
            await draft(fixture, "die SIGKILL")
        assert not alive(pid)
        fixture.engine.drafts.release(1)
        assert (await draft(fixture, "say"))["dropped"] == "no-engine"
        assert (await fixture.ask("say b"))["answer"] == "b"
        assert await leased(fixture) == 0

    run(body)


def test_a_draft_is_never_the_reason_to_end_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.service.engine_child._CANCEL_SECONDS", 0.2)

    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        drafts = [draft(fixture, "costly", client) for client in range(5)]
        await asyncio.sleep(0)
        for task in drafts:
            task.cancel()
        question = fixture.start("say b")
        await asyncio.wait(drafts)
        assert all(task.cancelled() for task in drafts)
        # The child takes longer than it would get to listen to a cancelled question.
        assert (await question)["answer"] == "b"
        assert (await fixture.pid(), await begun(fixture), await leased(fixture)) == (pid, 1, 0)

    run(body)


def test_a_draft_waits_for_the_child_even_where_the_one_before_has_no_client_any_more() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        gone = draft(fixture, "costly")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
        overtaken = draft(fixture, "say", 2)
        await asyncio.sleep(0)
        assert (await fixture.ask("say b"))["answer"] == "b"
        assert (await overtaken)["dropped"] == "busy"
        # The child never saw it: it was still at the first one when the question came.
        assert await begun(fixture) == 1
        assert (await draft(fixture, "say", 2))["dropped"] == ""

    run(body)


def test_an_engine_that_does_not_come_back_from_a_draft_holds_up_nobody_who_leaves() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        drafts = [draft(fixture, "deaf", client) for client in (1, 2)]
        await asyncio.sleep(0)
        for task in drafts:
            task.cancel()
        async with asyncio.timeout(1.0):
            await asyncio.wait(drafts)
        waiting = draft(fixture, "say", 3)
        await asyncio.sleep(0)
        assert not waiting.done()
        os.kill(pid, signal.SIGKILL)
        assert (await waiting)["dropped"] == "no-engine"

    run(body)


def test_a_draft_that_is_replaced_is_answered_at_once_and_its_place_kept() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        first = draft(fixture, "slow", 1)
        await asyncio.sleep(0)
        others = [draft(fixture, "slow", client) for client in (2, 3)]
        await asyncio.sleep(0)
        newer = draft(fixture, "say", 2)
        assert (await others[0])["dropped"] == "replaced"
        assert not first.done()
        first.cancel()
        assert (await newer)["dropped"] == ""
        assert not others[1].done()
        others[1].cancel()

    run(body)
