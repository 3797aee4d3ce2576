"""`kvd bench sessions`: its parts on the scripted engine, and as its developers run it, on the real small model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvd import paths
from kvd.bench import crowd, remembered, turn_costs, wake
from kvd.bench.crowd import Crowd, Record
from kvd.bench.libraries import by_bytes
from kvd.bench.pressure import pids, resident
from kvd.bench.talk import Asking, Reply, ask, askable, indexed, start_afresh
from kvd.errors import UsageError
from kvd.rpc.client import Client
from tests.conftest import FakeDaemon, Kvd


def reply(turn: int, tokens: int, session: str = "a", **more: Any) -> Reply:
    """The turn of a conversation that has so many tokens then."""
    conversation = {"turn": turn, "tokens": tokens, "resident": 0, "loaded": 0, "computed": 0, **more}
    counted = {"prefilled": 40, "recomputed": 5, "fresh": 30, "generated": 8}
    return Reply(session, "why?", f"because {turn}", "length", 100.0, counted, conversation)


def test_a_prompt_is_all_but_the_answer() -> None:
    said = reply(1, 200)
    assert (said.computed, said.prompt) == (75, 193)


def test_what_leads_to_the_next_turn_is_no_turn() -> None:
    kept = [reply(1, 100, computed=90), reply(2, 180, resident=60, loaded=40, computed=9), reply(3, 260, loaded=180)]
    lost = [reply(2, 180, "b", loaded=30, computed=78), reply(1, 100, "b")]
    record = Record({"a": kept, "b": lost})
    assert record.computed_again() == [("b", 2, 62)]
    shown = record.to_json()
    assert (shown["answered"], shown["longest"]) == (5, 260)
    assert shown["history"] == {"resident": 60, "loaded": 250, "computed": 177}


class Scripted:
    """A daemon with the scripted engine, replaced whenever it has ended."""

    def __init__(self, kvd: Kvd, root: Path) -> None:
        self._kvd, self._root, self._daemon = kvd, root, FakeDaemon()

    def stop_daemon(self) -> None:
        self._kvd.stop_daemon()
        self._daemon.end()
        self._daemon = FakeDaemon()

    def kill_daemon(self) -> None:
        self._kvd.kill_daemon()
        self._daemon.process.wait(10)
        self._daemon = FakeDaemon()

    def kill_engine(self) -> None:
        with Client.connect() as client:
            engine, _ = pids(client.call("status", {}))
        assert engine
        os.kill(engine, signal.SIGKILL)

    def loaded(self) -> dict[str, Any]:
        with Client.connect() as client:
            client.call("ask", {"question": "sessions that expire", "repo": str(self._root)})
            status = client.call("status", {})
        return {**status, "resident": resident(status)}

    def end(self) -> None:
        self._kvd.stop_daemon()
        self._daemon.end()


@pytest.fixture
def scripted(kvd: Kvd, fake_model: Path, repository: Path) -> Iterator[Scripted]:
    processes = Scripted(kvd, repository)
    yield processes
    processes.end()


def run(scripted: Scripted, root: Path, sessions: int, turns: int) -> tuple[Record, float]:
    """Questions that the scripted engine answers with how many turns were before."""
    questions = [f"history of {name}" for name in ("sessions that expire", "paintRectangle", "is_expired")]
    people = Crowd(root, questions, sessions, turns, Asking(64, 8), 1, lambda text: None)
    status, seconds = people.run(scripted)
    people.look()
    assert people.record.wrong == []
    assert set(status["resident"]) == {"daemon", "engine"}
    for replies in people.record.replies.values():
        ordered = sorted(replies, key=lambda item: item.turn)
        assert [item.turn for item in ordered] == list(range(1, turns + 1))
        assert all(item.answer.startswith(f"{item.turn - 1} before, ") for item in ordered)
    return people.record, seconds


def test_many_conversations_at_a_time(scripted: Scripted, repository: Path) -> None:
    record, _ = run(scripted, repository, 6, 6)
    assert record.to_json()["answered"] == 36
    assert record.memory


def test_what_is_lost_is_seen(scripted: Scripted, repository: Path) -> None:
    people = Crowd(repository, ["never asked"], 2, 1, Asking(64, 8), 1, lambda text: None)
    question = "history of sessions that expire"
    kept = ask(repository, "crowd-1", question, Asking(64, 8))
    people.record.replies["crowd-1"].append(kept)
    with Client.connect() as client:
        client.call("session/create", {"repo": str(repository), "name": "crowd-2"})
    people.record.replies["crowd-2"].append(replace(kept, session="crowd-2"))
    people.look()
    lost = ["crowd-2 shows 0 turns, and 1 were answered", "crowd-2 has 0 of 1 turns in the list"]
    assert people.record.wrong == lost


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_conversations_of_twenty_turns(scripted: Scripted, repository: Path) -> None:
    """With `-s` it prints what it took."""
    record, seconds = run(scripted, repository, 1000, 20)
    shown = record.to_json()
    assert shown["answered"] == 20_000
    _, daemon, _ = record.memory[-1]
    print(
        f"\n{shown['answered']:,} turns in {seconds:,.0f} s, asked again {shown['asked_again']}; daemon "
        f"{daemon / 1e6:.0f} MB, {shown['growth']['daemon']}; {paths.bytes_on_disk(paths.sessions_file()) / 1e6:.0f} MB"
    )
    # Whatever is kept of a session in memory would come to more.
    assert daemon < 300_000_000
    assert shown["growth"]["daemon"]["bytes_a_request"] < 2_000


def test_a_year_of_conversations(scripted: Scripted, repository: Path) -> None:
    root, questions = indexed(str(repository), 1)
    start_afresh()
    result = remembered.measure(root, questions, 2_000, 5, by_bytes, 1, lambda text: None)
    assert result["tokens"] >= 2_000
    assert result["turns"] == 5 * result["sessions"]
    assert set(result["calls"]) == {"session/list", "session/show", "session/search", "session/fork", "session/delete"}
    text = "\n".join(remembered.lines(result))
    assert "tokens said in" in text
    assert "| session/list |" in text
    with Client.connect() as client:
        first = client.call("session/list", {"repo": str(root)})["sessions"][0]["name"]
    # One can go on with them.
    assert ask(root, first, "history of sessions that expire", Asking(64, 8)).answer.startswith("5 before")


def test_questions_find_code_that_fits(repository: Path) -> None:
    root, questions = indexed(str(repository), 1)
    assert indexed(str(repository), 2)[1] != questions
    assert set(askable(root, questions, 500, by_bytes, 2)) < set(questions)
    with pytest.raises(UsageError, match="fits 3 tokens"):
        askable(root, questions, 3, by_bytes, 2)


def test_times_are_compared_round_by_round() -> None:
    def shots(*seconds: float) -> list[dict[str, Any]]:
        return [{"ttft_ms": 1000 * value, "computed": 50, "resident": 0, "loaded": 0} for value in seconds]

    alone = {"next": "question alone", "turns": 4, "tokens": 2000, "full": shots(30.0, 40.0), "resident": shots(1, 1)}
    code = {"next": "with new code", "turns": 4, "tokens": 2000, "full": shots(40.0), "woken": shots(4.0)}
    text = list(wake.lines({"times": [{**alone, "woken": shots(1.0, 2.0)}, code]}))
    assert "The next turn, question alone: 1 conversation of 2,000 tokens (median)" in text
    woken = next(line for line in text if line.startswith("| woken | 1.50"))
    assert woken == "| woken | 1.50 [1.00, 2.00] s | 50 | 25.0 [20.0, 30.0]x |"
    assert text[-2] == "| woken | 4.00 s | 50 | 10.0x |"


def test_the_cost_is_told_as_a_part() -> None:
    last = {"prompt": 900, "whole": 960, "ttft_ms": 4000.0}
    run = {"name": "in one daemon", "turns": 3, "tokens": 950, "computed": 200, "prompts": 2100, "code": 90}
    text = list(turn_costs.lines({"runs": [{**run, "ttft_ms": [1000.0, 500.0], "last": last}]}))
    assert text[2] == "| in one daemon | 3 | 950 | 200 | 90 | 2,100 | 1/10.5 |"
    last_line = "the last prompt has 900 tokens and 60 ahead; first token after 0.5 s, computed whole after 4.0 s"
    assert text[3].endswith(last_line)


def test_what_is_asked_for_is_too_little(kvd: Kvd, repository: Path) -> None:
    error = kvd.json("bench", "sessions", "--repo", str(repository), "--sessions", "1", "--turns", "2")["error"]
    assert error["code"] == "usage"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_measures_everything(kvd: Kvd, repository: Path, tmp_path: Path, isolated_home: Path) -> None:
    numbers = ("--conversations", "1", "--rounds", "1", "--tokens", "600", "--turns", "4", "--sessions", "3")
    options = ("--repo", str(repository), "--work", str(tmp_path), "--remembered", "2000", *numbers)
    result = kvd.json("bench", "sessions", *options, timeout=580)
    assert "error" not in result, result
    alone, _ = result["wake"]["times"]
    woken, resident_, full = (alone[kind][0] for kind in ("woken", "resident", "full"))
    assert woken["loaded"] >= alone["tokens"]
    assert woken["resident"] == 0
    assert resident_["resident"] >= alone["tokens"]
    assert woken["computed"] < full["computed"] - alone["tokens"] + 60
    costs = result["cost"]["runs"]
    ahead = {cost["last"]["whole"] - cost["last"]["prompt"] for cost in costs}
    assert len(ahead) == 1
    assert 0 <= ahead.pop() < 1024
    assert all(cost["computed"] < cost["prompts"] for cost in costs)
    many = result["crowd"]
    assert (many["answered"], many["wrong"], many["computed_again"]["tokens"]) == (12, [], 0)
    assert many["memory"]["engine"]["configured"] > 0
    assert "answered 12 of 12" in "\n".join(crowd.lines(many))
    # The user's own conversations, store and daemon were left alone.
    assert not paths.sessions_file().exists()
    assert not (isolated_home / "cache" / "kvd" / "kv.db").exists()
    assert kvd.json("status")["running"] is False
