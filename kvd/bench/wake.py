"""How soon the next turn of a conversation is answered: woken from disk, still in the cells, and computed whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from kvd import paths
from kvd.bench.disk import HOW_DROPPED, drop_page_cache
from kvd.bench.speed import stop_daemon
from kvd.bench.statistics import median
from kvd.bench.talk import Asking, Reply, ask
from kvd.bench.text import counted, interval
from kvd.rpc.client import Client

Say = Callable[[str], None]

KINDS = {"question alone": ("full", "woken", "resident"), "with new code": ("full", "woken")}
"""By what the next turn brings in. Once its code has been asked about, that is in the cells too, and not new there."""

_PARTS = 4
"""A conversation gets its tokens in so many turns, about."""


def budget(tokens: int) -> int:
    """Tokens of code in a turn."""
    return tokens // _PARTS


_ANSWER = 24
_MOST_TURNS = 20


@dataclass(slots=True)
class Woken:
    """The next turn of one conversation of `tokens`, after `turns`; the replies by kind, one of each in a round."""

    next: str
    turns: int
    tokens: int
    replies: dict[str, list[Reply]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        shots = {kind: [_shot(reply) for reply in replies] for kind, replies in self.replies.items()}
        return {"next": self.next, "turns": self.turns, "tokens": self.tokens, **shots}


def _shot(reply: Reply) -> dict[str, Any]:
    kept = {name: reply.conversation[name] for name in ("resident", "loaded")}
    return {"ttft_ms": reply.ttft_ms, "computed": reply.computed, **kept}


def measure(
    root: Path, questions: Sequence[str], conversations: int, rounds: int, tokens: int, say: Say
) -> dict[str, Any]:
    """`conversations` of at least `tokens`, the next turn of each asked `rounds` times in forks of it."""
    asked, found = cycle(questions), list[Woken]()
    for number in range(1, conversations + 1):
        name = f"wake-{number}"
        say(f"wake {number}/{conversations}: a conversation of {tokens:,} tokens")
        last = _grown(root, name, asked, tokens)
        for brings, kinds in KINDS.items():
            say(f"wake {number}/{conversations}: the next turn, {brings}")
            how = Asking(budget(tokens), 1, code=brings != "question alone")
            found.append(Woken(brings, last.turn, last.conversation["tokens"]))
            found[-1].replies = _timed(root, name, next(asked), how, kinds, rounds)
    return {"page_cache": HOW_DROPPED, "times": [item.to_json() for item in found]}


def _grown(root: Path, name: str, questions: Iterator[str], tokens: int) -> Reply:
    """The last turn of a conversation that has so many tokens then."""
    how = Asking(budget(tokens), _ANSWER)
    with Client.connect() as client:
        for question in islice(questions, _MOST_TURNS):
            reply = ask(root, name, question, how, client)
            if reply.conversation["tokens"] >= tokens:
                break
    return reply


def _timed(
    root: Path, name: str, question: str, how: Asking, kinds: Sequence[str], rounds: int
) -> dict[str, list[Reply]]:
    """The replies by kind. Each goes to a fork of the session `name`, which itself stays as it is."""
    numbers = count(1)

    def forked(client: Client) -> str:
        fork = f"{name}-{'code' if how.code else 'alone'}-{next(numbers)}"
        client.call("session/fork", {"repo": str(root), "name": name, "new_name": fork})
        return fork

    with Client.connect() as client:
        # Its code is stored then, as that of a question that somebody asked before.
        ask(root, forked(client), question, how, client)
    replies: dict[str, list[Reply]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        with Client.connect() as client:
            forks = {kind: forked(client) for kind in kinds}
        stop_daemon()
        drop_page_cache(paths.store_file())
        drop_page_cache(paths.sessions_file())
        with Client.connect() as client:
            # What is computed whole would leave nothing to wake.
            for kind in sorted(kinds, key=("woken", "resident", "full").index):
                asked = replace(how, reuse=kind != "full")
                replies[kind].append(ask(root, forks[kind], question, asked, client))
    return replies


def lines(result: dict[str, Any]) -> Iterator[str]:
    """A table for each kind of next turn: medians over rounds and conversations."""
    for brings, kinds in KINDS.items():
        times = [item for item in result["times"] if item["next"] == brings]
        tokens = median([item["tokens"] for item in times]).value
        yield f"The next turn, {brings}: {counted(len(times), 'conversation')} of {tokens:,.0f} tokens (median)"
        yield "| | first token [95 %] | computed | against computing all [95 %] |"
        yield "|---|---|---|---|"
        for name in kinds:
            shots = [shot for item in times for shot in item[name]]
            ttft = median([shot["ttft_ms"] / 1000 for shot in shots])
            computed = median([shot["computed"] for shot in shots]).value
            ratio = median([ratio for item in times for ratio in _ratios(item, name)])
            yield f"| {name} | {interval(ttft, '.2f')} s | {computed:,.0f} | {interval(ratio, '.1f')}x |"
        yield ""


def _ratios(item: dict[str, Any], name: str) -> list[float]:
    """By round: both were asked one after the other."""
    return [full["ttft_ms"] / shot["ttft_ms"] for full, shot in zip(item["full"], item[name], strict=True)]
