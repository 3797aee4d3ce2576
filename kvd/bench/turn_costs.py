"""What a conversation costs: tokens computed for its turns, against all of their prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from kvd.bench.speed import stop_daemon
from kvd.bench.talk import Asking, Reply, ask
from kvd.rpc.client import Client

Say = Callable[[str], None]

HOW = Asking(192, 48)
"""Twenty turns fit a context of 8,192 cells."""
_RESTARTS = 3


def measure(root: Path, questions: Sequence[str], turns: int, say: Say) -> dict[str, Any]:
    """One conversation of so many turns in one daemon, and one in which the daemon is restarted between turns.

    Of each the `last` prompt is computed `whole` too, to see that it has as many tokens as the answers said, and with
    them only those of the folders that stand ahead of the turns.
    """
    runs = []
    for name, restarts in (("in one daemon", 0), ("restarted", _RESTARTS)):
        say(f"cost of {turns} turns, {name}")
        runs.append(_one(root, name, list(islice(cycle(questions), turns)), restarts))
    return {"runs": runs}


def _one(root: Path, name: str, questions: Sequence[str], restarts: int) -> dict[str, Any]:
    session = name.replace(" ", "-")
    fork, every = f"{session}-whole", max(1, len(questions) // (restarts + 1))
    replies: list[Reply] = []
    for number, question in enumerate(questions):
        if restarts and number and number % every == 0:
            stop_daemon()
        if number == len(questions) - 1 and number:
            with Client.connect() as client:
                client.call("session/fork", {"repo": str(root), "name": session, "new_name": fork})
        replies.append(ask(root, session, question, HOW))
    # Only the tokens of its prompt matter here, and whether they are these.
    whole = ask(root, fork, questions[-1], replace(HOW, max_tokens=1, reuse=False))
    return {
        "name": name,
        "turns": len(replies),
        "tokens": replies[-1].conversation["tokens"],
        "computed": sum(reply.computed for reply in replies),
        "prompts": sum(reply.prompt for reply in replies),
        "code": sum(reply.tokens["prefilled"] for reply in replies),
        "ttft_ms": [reply.ttft_ms for reply in replies],
        "last": {"prompt": replies[-1].prompt, "whole": whole.computed, "ttft_ms": whole.ttft_ms},
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A table of the runs."""
    yield "| conversation | turns | tokens in the end | computed | of it code | all prompts | part computed |"
    yield "|---|---|---|---|---|---|---|"
    for run in result["runs"]:
        yield (
            f"| {run['name']} | {run['turns']} | {run['tokens']:,} | {run['computed']:,} | {run['code']:,} "
            f"| {run['prompts']:,} | 1/{run['prompts'] / run['computed']:.1f} |"
        )
    for run in result["runs"]:
        last, ahead = run["last"], run["last"]["whole"] - run["last"]["prompt"]
        yield (
            f"{run['name']}: the last prompt has {last['prompt']:,} tokens and {ahead:,} ahead; "
            f"first token after {run['ttft_ms'][-1] / 1000:.1f} s, computed whole after {last['ttft_ms'] / 1000:.1f} s"
        )
