"""Drafts of questions at the scripted engine: they never start it, wait for it or keep it from a question."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kvd.errors import UnavailableError

from .test_engine import LOAD, Fixture, alive, run, until


def draft(fixture: Fixture, text: str, client: int = 1, chunks: int = 2) -> asyncio.Task[dict[str, Any]]:
    params = {"question": text, "chunks": [{}] * chunks}
    return asyncio.create_task(fixture.engine.prefetch(client, LOAD, params))


async def leased(fixture: Fixture) -> int:
    return int((await fixture.engine.state())["pool"]["leased"])


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
            fixture.engine.release(client)
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
        fixture.engine.release(1)
        assert (await draft(fixture, "say"))["dropped"] == "no-engine"
        assert (await fixture.ask("say b"))["answer"] == "b"
        assert await leased(fixture) == 0

    run(body)
