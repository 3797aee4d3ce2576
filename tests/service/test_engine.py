from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvd.errors import BusyError, KvdError, ModelError, UnavailableError
from kvd.kv.store import BlockStore
from kvd.service.engine import EngineClient
from kvd.service.engine_keeper import LoadParams
from kvd.service.metrics import Metrics
from kvd.service.store_writer import StoreWriter
from kvd.service.verdicts import Verdicts

CHILD = (sys.executable, str(Path(__file__).parents[1] / "fakes" / "engine_child.py"))
LOAD = LoadParams(
    model_path="/m.gguf",
    model_name="fake",
    model_sha256="0" * 64,
    store_path="/kv.db",
    n_ctx=2048,
    parallel=1,
    threads=1,
    gpu_layers=0,
    reuse=True,
    recompute=0,
    short_headers=False,
    resident_prompts=8,
    pool_bytes=0,
    eviction="combined",
)

Events = list[tuple[str, dict[str, Any]]]


class Fixture:
    """An engine client in the running loop, and what its events were."""

    def __init__(self, writer: StoreWriter, command: tuple[str, ...] = CHILD, max_waiting: int = 16) -> None:
        self.metrics = Metrics()
        verdicts = Verdicts(writer.path.with_name("gate.json"))
        self.engine = EngineClient(writer, verdicts, self.metrics, command, max_waiting)
        self.events: Events = []

    async def ask(self, question: str, load: LoadParams = LOAD) -> dict[str, Any]:
        answer = await self.engine.ask(load, {"question": question, "chunks": []}, self.note)
        return answer.result

    def note(self, event: str, data: dict[str, Any]) -> None:
        self.events.append((event, data))

    def start(self, question: str, load: LoadParams = LOAD) -> asyncio.Task[dict[str, Any]]:
        return asyncio.create_task(self.ask(question, load))

    async def first_token(self, count: int = 1) -> None:
        await until(lambda: sum(event == "token" for event, _ in self.events) >= count)

    async def pid(self) -> int:
        return int((await self.engine.state())["pid"])


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def stand_still(seconds: float) -> None:
    """Run nothing in this thread, the event loop's."""
    time.sleep(seconds)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run(body: Callable[[Fixture], Awaitable[None]], command: tuple[str, ...] = CHILD, max_waiting: int = 16) -> None:
    """Run `body` with an engine whose child is gone afterwards."""

    async def main(writer: StoreWriter) -> None:
        fixture = Fixture(writer, command, max_waiting)
        try:
            await asyncio.wait_for(body(fixture), 30.0)
        finally:
            await fixture.engine.stop()

    writer = StoreWriter(store_path(), lambda: 100_000_000)
    try:
        asyncio.run(main(writer))
    finally:
        writer.close(10.0)


def store_path() -> Path:
    return Path(os.environ["HOME"]) / "kv.db"


def test_the_child_starts_with_the_first_question_and_stays() -> None:
    async def body(fixture: Fixture) -> None:
        assert (await fixture.engine.state())["state"] == "stopped"
        first = await fixture.engine.ask(LOAD, {"question": "say hello", "chunks": []}, fixture.note)
        assert first.result["answer"] == "hello"
        assert first.model == "fake"
        assert first.model_load_ms > 0
        assert [event for event, _ in fixture.events] == ["stage", "stage", "token"]
        assert fixture.events[0][1]["stage"] == "load"
        pid = await fixture.pid()
        second = await fixture.engine.ask(LOAD, {"question": "say again", "chunks": []}, fixture.note)
        assert second.model_load_ms == 0.0
        assert await fixture.pid() == pid
        state = await fixture.engine.state()
        assert (state["state"], state["reuse"], state["pool"]["blocks"]) == ("ready", "on", 1)

    run(body)


@pytest.mark.parametrize("change", [{"model_sha256": "1" * 64}, {"n_ctx": 4096}, {"reuse": False}])
def test_another_model_or_setting_gets_another_child(change: dict[str, Any]) -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        await fixture.ask("say b", replace(LOAD, **change))
        assert await fixture.pid() != pid
        assert not alive(pid)

    run(body)


@pytest.mark.parametrize("name", ["SIGILL", "SIGKILL", "SIGABRT"])
def test_a_child_that_dies_is_told_and_replaced(name: str) -> None:
    async def body(fixture: Fixture) -> None:
        with pytest.raises(UnavailableError) as caught:
            await fixture.ask(f"die {name}")
        assert caught.value.message == f"the engine stopped (signal {name})"
        assert ("GGML_NATIVE=OFF" in caught.value.hint) == (name == "SIGILL")
        assert ("out of memory" in caught.value.hint) == (name == "SIGKILL")
        assert (await fixture.engine.state())["state"] == "stopped"
        assert (await fixture.ask("say alive"))["answer"] == "alive"

    run(body)


def test_a_child_killed_between_questions_is_replaced_unnoticed() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        os.kill(await fixture.pid(), signal.SIGKILL)
        for _ in range(2):
            try:
                answer = await fixture.ask("say b")
            except UnavailableError:
                # Its death had not been noticed yet when the question was sent.
                continue
            assert answer["answer"] == "b"
            return
        pytest.fail("two questions failed")

    run(body)


def test_death_while_loading() -> None:
    async def body(fixture: Fixture) -> None:
        with pytest.raises(UnavailableError, match="SIGILL"):
            await fixture.ask("say a", replace(LOAD, model_name="die-at-load"))
        assert (await fixture.ask("say b"))["answer"] == "b"

    run(body)


def test_a_model_that_does_not_load_leaves_no_child() -> None:
    async def body(fixture: Fixture) -> None:
        with pytest.raises(ModelError, match="not a model"):
            await fixture.ask("say a", replace(LOAD, model_name="fail-to-load"))

        async with asyncio.timeout(10.0):
            while (await fixture.engine.state())["state"] != "stopped":
                await asyncio.sleep(0.01)

    run(body)


def test_a_refused_load_is_logged_as_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async def body(fixture: Fixture) -> None:
        with pytest.raises(ModelError, match="not a model"):
            await fixture.ask("say a", replace(LOAD, model_name="fail-to-load"))
        await until(lambda: bool(ends(caplog)))
        ((level, message),) = ends(caplog)
        assert level == "WARNING"
        assert message.endswith(" was ended by kvd: the model was not loaded: not a model")

    run(body)


def ends(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was logged of the ends of children."""
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, message) for level, message in logged if "ended" in message]


def told(events: Events) -> list[str]:
    """What the user was told of things that did not fit."""
    return [data["message"] for event, data in events if event == "stage" and data["stage"] == "fallback"]


DEATH = "the engine stopped (signal SIGABRT)"


def test_a_child_that_dies_of_what_it_puts_on_the_gpu_is_followed_by_one_with_less(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(fixture: Fixture) -> None:
        load = replace(LOAD, model_name="aborts-above 9")
        assert (await fixture.ask("say a", load))["answer"] == "a"
        assert told(fixture.events) == [
            f"29 of 29 layers on the GPU: {DEATH}; now 19 of 29 layers on the GPU",
            f"19 of 29 layers on the GPU: {DEATH}; now 9 of 29 layers on the GPU",
        ]
        assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
            f"engine: {message}" for message in told(fixture.events)
        ]
        state = await fixture.engine.state()
        assert state["state"] == "ready"
        assert state["placement"]["layers"] == 9
        assert state["placement"]["why"] == f"19 of 29 layers on the GPU: {DEATH}"
        # The one that bears it is kept.
        assert (await fixture.ask("say b", load))["answer"] == "b"
        assert await fixture.pid() == state["pid"]

    run(body)


def test_a_child_that_dies_of_the_cpu_alone_too_is_not_tried_for_ever() -> None:
    async def body(fixture: Fixture) -> None:
        for _ in range(2):
            fixture.events.clear()
            with pytest.raises(UnavailableError, match="SIGABRT"):
                await fixture.ask("say a", replace(LOAD, model_name="aborts-above -1"))
            assert [message.split("; now ")[1] for message in told(fixture.events)] == [
                "19 of 29 layers on the GPU",
                "9 of 29 layers on the GPU",
                "CPU only",
            ]
        assert (await fixture.ask("say b"))["answer"] == "b"

    run(body)


def test_what_a_child_goes_back_to_by_itself_is_told_and_costs_no_other_child() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a", replace(LOAD, model_name="fails-above 20"))
        assert told(fixture.events) == ["29 of 29 layers on the GPU: no room; now 19 of 29 layers on the GPU"]
        assert (await fixture.engine.state())["placement"]["why"] == "29 of 29 layers on the GPU: no room"
        assert [data["stage"] for event, data in fixture.events if event == "stage"].count("load") == 1

    run(body)


def test_stopping_between_two_children_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(fixture: Fixture) -> None:
        stopping: list[asyncio.Task[None]] = []
        note = fixture.note

        def stop_then(event: str, data: dict[str, Any]) -> None:
            note(event, data)
            if data.get("stage") == "fallback" and not stopping:
                stopping.append(asyncio.create_task(fixture.engine.stop()))

        monkeypatch.setattr(fixture, "note", stop_then)
        with pytest.raises(UnavailableError):
            await fixture.ask("say a", replace(LOAD, model_name="aborts-above -1"))
        await stopping[0]
        assert (await fixture.engine.state())["state"] == "stopped"
        assert len(told(fixture.events)) == 1

    run(body)


@pytest.mark.parametrize("command", [("/no/such/program",), (sys.executable, "-c", "raise SystemExit(3)")])
def test_a_child_that_cannot_start(command: tuple[str, ...]) -> None:
    async def body(fixture: Fixture) -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"can't start the engine|exit status 3"):
                await fixture.ask("say a")

    run(body, command)


def test_garbage_from_the_child_ends_it() -> None:
    async def body(fixture: Fixture) -> None:
        with pytest.raises(UnavailableError, match="unreadable"):
            await fixture.ask("garbage")
        assert (await fixture.ask("say b"))["answer"] == "b"

    run(body)


def test_an_error_of_the_child_reaches_the_asker() -> None:
    async def body(fixture: Fixture) -> None:
        with pytest.raises(ModelError, match="no room") as caught:
            await fixture.ask("fail")
        assert caught.value.hint == "kvd setup"
        pid = await fixture.pid()
        await fixture.ask("say b")
        assert await fixture.pid() == pid

    run(body)


def test_cancelling_stops_the_answer_and_keeps_the_child() -> None:
    async def body(fixture: Fixture) -> None:
        task = fixture.start("slow")
        await fixture.first_token(3)
        pid = await fixture.pid()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        count = len(fixture.events)
        assert (await fixture.ask("say b"))["answer"] == "b"
        assert await fixture.pid() == pid
        assert ("token", {"text": "word "}) not in fixture.events[count:]

    run(body)


def test_a_child_deaf_to_cancel_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.service.engine_child._CANCEL_SECONDS", 0.2)

    async def body(fixture: Fixture) -> None:
        task = fixture.start("deaf")
        await fixture.first_token()
        pid = await fixture.pid()
        child = fixture.engine._keeper.child
        assert child is not None
        beside = child.send("stats", {}, fixture.note)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not alive(pid))
        # It was no want of memory.
        with pytest.raises(UnavailableError) as caught:
            await beside.answer
        assert caught.value.message == "the engine stopped (it did not stop when it was told to)"
        assert caught.value.hint == "ask again, or look at: kvd logs"
        assert (await fixture.ask("say b"))["answer"] == "b"

    run(body)


def test_who_has_read_nothing_yet_does_not_notice_that_a_child_died() -> None:
    async def body(fixture: Fixture) -> None:
        several = replace(LOAD, parallel=2)
        first = fixture.start("count 50 then die SIGKILL", several)
        await fixture.first_token()
        pid = await fixture.pid()
        # The child answers one after the other: this one waits in it.
        second = fixture.start("say b", several)
        await until(lambda: fixture.engine.running == 2)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="SIGKILL"):
            await first
        assert (await second)["answer"] == "b"
        assert await fixture.pid() != pid

    run(body)


def test_a_child_that_gives_no_sign_of_life_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.service.engine._HANG_SECONDS", 0.5)

    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UnavailableError, match="gave no sign of life") as caught:
            await fixture.ask("say b")
        assert caught.value.hint == "ask again, or look at: kvd logs"
        await until(lambda: not alive(pid))
        assert (await fixture.ask("say c"))["answer"] == "c"
        # One that works gives signs of life, however long it takes.
        assert (await fixture.ask("count 40"))["answer"]

    run(body)


def test_a_pause_of_the_daemon_is_not_held_against_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.5
    monkeypatch.setattr("kvd.service.engine._HANG_SECONDS", seconds)

    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        # As where a container is paused: it stops with the child, which goes on a moment later.
        os.kill(pid, signal.SIGSTOP)
        asking = fixture.start("say b")
        await until(lambda: fixture.engine.running == 1)
        stand_still(2 * seconds)
        asyncio.get_running_loop().call_later(seconds / 5, os.kill, pid, signal.SIGCONT)
        assert (await asking)["answer"] == "b"
        assert await fixture.pid() == pid

    run(body)


def test_after_some_deaths_the_next_start_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def body(fixture: Fixture) -> None:
        sleep = asyncio.sleep

        async def noted(seconds: float) -> None:
            pauses.append(seconds)
            await sleep(0)

        for _ in range(5):
            with pytest.raises(UnavailableError):
                await fixture.ask("die SIGSEGV")
            monkeypatch.setattr("kvd.service.engine_keeper.asyncio.sleep", noted)
        assert (await fixture.ask("say b"))["answer"] == "b"
        restarts = [data["message"] for event, data in fixture.events if data.get("stage") == "restart"]
        assert restarts[0] == "the engine died 3 times, next try in 1 s"
        assert [pause for pause in pauses if pause >= 1] == [1.0, 2.0, 4.0]

    run(body)


def test_one_who_is_not_listened_to_does_not_cost_others_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvd.service.engine_child._CANCEL_SECONDS", 0.2)

    async def body(fixture: Fixture) -> None:
        several = replace(LOAD, parallel=2)
        # The child answers one after the other, and looks at nothing else meanwhile.
        first = fixture.start("count 60", several)
        await fixture.first_token()
        pid = await fixture.pid()
        second = fixture.start("say b", several)
        await until(lambda: fixture.engine.running == 2)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (await first)["answer"]
        assert await fixture.pid() == pid

    run(body)


def test_leaving_during_the_load_does_not_start_it_over() -> None:
    async def body(fixture: Fixture) -> None:
        slow = replace(LOAD, model_name="slow-to-load")
        task = fixture.start("say a", slow)
        await until(lambda: bool(fixture.events))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        state = await fixture.engine.state()
        assert state["state"] == "loading"
        assert (await fixture.ask("say b", slow))["answer"] == "b"
        assert await fixture.pid() == state["pid"]

    run(body)


def test_questions_wait_for_their_turn_and_too_many_are_refused() -> None:
    async def body(fixture: Fixture) -> None:
        first = fixture.start("slow")
        await fixture.first_token()
        waiting = [fixture.start(f"say {number}") for number in range(2)]
        await until(lambda: fixture.engine.waiting == 2)
        with pytest.raises(BusyError, match="2 questions are waiting"):
            await fixture.ask("say no")
        assert (await fixture.engine.state())["state"] == "busy"
        first.cancel()
        answers = [(await task)["answer"] for task in waiting]
        assert answers == ["0", "1"]
        assert ("stage", {"stage": "wait", "done": 0, "total": 0, "message": "for other questions"}) in (fixture.events)

    run(body, max_waiting=2)


def test_one_who_waits_may_leave() -> None:
    async def body(fixture: Fixture) -> None:
        first = fixture.start("slow")
        await fixture.first_token()
        second = fixture.start("say never")
        await until(lambda: fixture.engine.waiting == 1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert fixture.engine.waiting == 0
        first.cancel()
        assert (await fixture.ask("say b"))["answer"] == "b"

    run(body)


def test_stopping_ends_the_child_and_the_question() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("say a")
        pid = await fixture.pid()
        await fixture.engine.stop()
        assert not alive(pid)
        assert (await fixture.engine.state())["state"] == "stopped"

    run(body)


def test_an_idle_model_is_unloaded_and_a_busy_one_is_not() -> None:
    async def body(fixture: Fixture) -> None:
        assert not await fixture.engine.stop_if_idle(0.0)
        task = fixture.start("slow")
        await fixture.first_token()
        assert not await fixture.engine.stop_if_idle(0.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await fixture.engine.stop_if_idle(3600.0)
        assert await fixture.engine.stop_if_idle(0.0)
        assert (await fixture.engine.state())["state"] == "stopped"

    run(body)


def test_blocks_go_to_the_store_and_corrupt_ones_out() -> None:
    async def body(fixture: Fixture) -> None:
        await fixture.ask("store")

    run(body)
    store = BlockStore(store_path(), readonly=True)
    try:
        assert store.get([b"\xaa", b"\xbb"], b"\xff") == {b"\xaa": b"one"}
    finally:
        store.close()


def test_errors_are_those_of_kvd() -> None:
    async def body(fixture: Fixture) -> None:
        for question in ("die SIGSEGV", "garbage", "fail"):
            with pytest.raises(KvdError) as caught:
                await fixture.ask(question)
            assert caught.value.hint
            assert "\n" not in caught.value.message

    run(body)
