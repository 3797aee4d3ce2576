"""`kvd bench`: measurements, run by a program of its own that loads the engine."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

app = typer.Typer()


class Eviction(StrEnum):
    """Values of the setting `eviction`."""

    LRU = "lru"
    SEMANTIC = "semantic"
    COMBINED = "combined"


@app.callback()
def _bench() -> None:
    """Measure kvd on real repositories. For its developers; takes minutes to hours."""


def _a_number(value: float) -> float:
    """NaN passes any range."""
    if math.isnan(value):
        raise typer.BadParameter("nan is no number")
    return value


def _times(values: tuple[float, ...]) -> tuple[float, ...]:
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise typer.BadParameter("give four times in milliseconds, none of them below 0")
    return values


Limit = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="At most N questions; 0: all.")]
Questions = Annotated[str | None, typer.Option("--questions", metavar="DIR", help="Other question sets.")]
Work = Annotated[
    str | None, typer.Option("--work", metavar="DIR", help="Keep checkouts, references and KV there, not in the cache.")
]
Checkouts = Annotated[
    str | None, typer.Option("--checkouts", metavar="DIR", help="Take the repositories from DIR/NAME where they are.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def kv(
    quick: Annotated[bool, typer.Option("--quick", help="One question of each repository, few variants.")] = False,
    limit: Limit = 0,
    variants: Annotated[
        int | None, typer.Option("--variants", metavar="N", min=0, help="Try other ways on the first N questions.")
    ] = None,
    timed: Annotated[int | None, typer.Option("--timed", metavar="N", min=0, help="Time the first N.")] = None,
    peers: Annotated[
        int | None, typer.Option("--peers", metavar="N", min=0, help="llama.cpp's save and restore on the first N.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help="Time each N times.")] = None,
    recompute: Annotated[
        int,
        typer.Option("--recompute", metavar="N", min=-1, max=64, help="Body tokens recomputed; -1: as the gate says."),
    ] = -1,
    short_headers: Annotated[bool, typer.Option("--short-headers", help="With the setting short_headers.")] = False,
    plots: Annotated[str | None, typer.Option("--plots", metavar="DIR", help="Draw plots into DIR.")] = None,
    questions: Questions = None,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """Reused KV against a full prefill: quality, bytes on disk, time to the first token."""
    counts = {"variants": variants, "timed": timed, "peers": peers, "rounds": rounds, "recompute": recompute}
    options = {"wanted": counts, "plots": _absolute(plots), "short_headers": short_headers}
    raise typer.Exit(_run("kv", quick, limit, questions, work, as_json, options))


@app.command()
def codec(limit: Limit = 6, questions: Questions = None, work: Work = None, as_json: Json = False) -> None:
    """Ways to quantize KV, on real chunks: bits, errors, and what answers lose."""
    raise typer.Exit(_run("codec", False, limit, questions, work, as_json, {}))


@app.command()
def paging(
    repo: Annotated[
        list[str] | None,
        typer.Option(
            "--repo", metavar="PATH", help="Ask about this clone's commits; several times. Else question sets."
        ),
    ] = None,
    trace: Annotated[
        list[str] | None, typer.Option("--trace", metavar="FILE", help="Replay a recorded trace; several times.")
    ] = None,
    save: Annotated[str | None, typer.Option("--save", metavar="DIR", help="Write generated traces to DIR.")] = None,
    retrieval: Annotated[
        str | None, typer.Option("--retrieval", metavar="DIR", help="Add queries of DIR/annotations/NAME.json.")
    ] = None,
    policy: Annotated[
        list[Eviction] | None, typer.Option("--policy", help="Only this policy; several times.", show_default="all")
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            "--share", min=0.001, max=1.0, callback=_a_number, help="The pool's part of a trace's distinct tokens."
        ),
    ] = 0.25,
    asks: Annotated[int, typer.Option("--asks", metavar="N", min=10, help="Questions of a generated trace.")] = 4000,
    commits: Annotated[int, typer.Option("--commits", metavar="N", min=1, help="At most N of each clone.")] = 2000,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Generate N traces.")] = 5,
    first_seed: Annotated[int, typer.Option("--first-seed", metavar="N", min=0, help="The first one's seed.")] = 1,
    costs: Annotated[
        tuple[float, float, float, float],
        typer.Option(
            "--costs",
            metavar="HOT COLD NEW REST",
            callback=_times,
            help="Milliseconds of a token by tier; of the rest.",
        ),
    ] = (0.027, 0.18, 26.7, 4544.0),
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="Time the gathering of a prompt N times.")
    ] = 30,
    questions: Questions = None,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """What leaves the hot pool first: policies on traces of questions, against the best that is possible.

    And of its pages: how full they are by their size, and what conversations share.
    """
    options = {
        "repos": [os.path.abspath(path) for path in repo or ()],
        "traces": [os.path.abspath(path) for path in trace or ()],
        "save": _absolute(save),
        "retrieval": _absolute(retrieval),
        "policies": [item.value for item in policy or Eviction],
        "share": share,
        "asks": asks,
        "commits": commits,
        "seeds": seeds,
        "first_seed": first_seed,
        "costs": costs,
        "rounds": rounds,
    }
    raise typer.Exit(_run("paging", False, 0, questions, work, as_json, options))


@app.command()
def recall(
    benchmark: Annotated[
        str, typer.Argument(metavar="DIR", help="repos.json and annotations, as published by semble.")
    ],
    embedder: Annotated[
        str, typer.Option("--embedder", metavar="PATH", help="What makes the vectors, as the setting embedder has it.")
    ] = "default",
    checkouts: Checkouts = None,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """Whether the right places are found: NDCG@10, and what each part of the ranking adds to it."""
    options = {"benchmark": os.path.abspath(benchmark), "checkouts": _absolute(checkouts), "embedder": embedder}
    raise typer.Exit(_run("recall", False, 0, None, work, as_json, options))


@app.command()
def rerank(
    benchmark: Annotated[
        str, typer.Argument(metavar="DIR", help="repos.json and annotations, as published by semble.")
    ],
    checkouts: Checkouts = None,
    queries: Annotated[
        int, typer.Option("--queries", metavar="N", min=0, help="At most N of each repository; 0: all.")
    ] = 0,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """What the model's judgement of the best chunks adds to recall, and what it takes."""
    options = {"benchmark": os.path.abspath(benchmark), "checkouts": _absolute(checkouts)}
    raise typer.Exit(_run("rerank", False, queries, None, work, as_json, options))


@app.command()
def hops(
    checkouts: Checkouts = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="At most N questions of each repository; 0: all.")
    ] = 0,
    questions: Questions = None,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """Whether the model's own calls bring code that recall does not, beside recalling as much at once."""
    raise typer.Exit(_run("hops", False, limit, questions, work, as_json, {"checkouts": _absolute(checkouts)}))


@app.command()
def pressure(
    repo: Annotated[str, typer.Option("--repo", metavar="PATH", help="The repository to ask about.")],
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=1, help="Distinct tokens of code to recall, at least.")
    ] = 50_000,
    questions: Annotated[
        int, typer.Option("--questions", metavar="N", min=1, help="Questions, from commits and definitions.")
    ] = 200,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Which questions, in which order.")] = 1,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """A hot pool of a quarter of what is asked about: answers, what is computed again, memory."""
    options = {"repo": os.path.abspath(repo), "tokens": tokens, "asks": questions, "seed": seed}
    raise typer.Exit(_run("pressure", False, 0, None, work, as_json, options))


@app.command()
def askers(
    at_once: Annotated[
        list[int], typer.Option("--askers", metavar="N", min=1, max=32, help="How many ask at once; several times.")
    ] = [1, 4, 8, 16],  # noqa: B006  # typer copies it
    asks: Annotated[int, typer.Option("--asks", metavar="N", min=1, help="Questions in each round.")] = 16,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Rounds of each.")] = 3,
    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", min=2, help="Longest answer.")] = 64,
    budget: Annotated[int, typer.Option("--budget", metavar="N", min=64, help="Tokens of code in a prompt.")] = 512,
    server: Annotated[
        str | None, typer.Option("--server", metavar="FILE", help="llama.cpp's llama-server, to be measured beside.")
    ] = None,
    questions: Questions = None,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """Several who ask at once, beside one after the other and llama.cpp's own server."""
    options = {
        "askers": at_once,
        "asks": asks,
        "rounds": rounds,
        "max_tokens": max_tokens,
        "budget": budget,
        "server": _absolute(server),
    }
    raise typer.Exit(_run("askers", False, 0, questions, work, as_json, options))


@app.command()
def day(
    repo: Annotated[str, typer.Option("--repo", metavar="PATH", help="The repository to clone; has Python files.")],
    requests: Annotated[int, typer.Option("--requests", metavar="N", min=20, help="Requests of all kinds.")] = 2000,
    asks: Annotated[int, typer.Option("--asks", metavar="N", min=0, help="Of them, those that ask the model.")] = 300,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What happens, in which order.")] = 1,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """A day in minutes: requests of all kinds, edits, branches, killed processes; stale answers and leaks."""
    if asks > requests:
        raise typer.BadParameter("more --asks than --requests")
    options = {"repo": os.path.abspath(repo), "requests": requests, "asks": asks, "seed": seed}
    raise typer.Exit(_run("day", False, 0, None, work, as_json, options))


@app.command()
def sessions(
    repo: Annotated[str, typer.Option("--repo", metavar="PATH", help="The repository to talk about.")],
    conversations: Annotated[
        int, typer.Option("--conversations", metavar="N", min=0, help="Wake N conversations from disk; 0: none.")
    ] = 3,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Wake each N times.")] = 3,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=256, max=6000, help="Tokens of each, at least.")
    ] = 2000,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Count what a conversation's turns compute.")] = True,
    many: Annotated[
        int, typer.Option("--sessions", metavar="N", min=0, help="So many at a time, in a random order; 0: none.")
    ] = 40,
    turns: Annotated[int, typer.Option("--turns", metavar="N", min=1, max=20, help="Turns of a conversation.")] = 20,
    remembered: Annotated[
        int, typer.Option("--remembered", metavar="N", min=0, help="Fill a year with N tokens of turns; 0: none.")
    ] = 1_000_000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What is asked, in which order.")] = 1,
    work: Work = None,
    as_json: Json = False,
) -> None:
    """Conversations: how soon they wake, what their turns compute, many at a time, and a year of them."""
    if many and many * turns < 8:
        raise typer.BadParameter("give --sessions at least 8 turns together")
    wanted = {
        "conversations": conversations,
        "rounds": rounds,
        "tokens": tokens,
        "cost": cost,
        "sessions": many,
        "turns": turns,
        "remembered": remembered,
        "seed": seed,
    }
    options = {"repo": os.path.abspath(repo), "wanted": wanted}
    raise typer.Exit(_run("sessions", False, 0, None, work, as_json, options))


def _absolute(path: str | None) -> str | None:
    return os.path.abspath(path) if path is not None else None


def _run(
    kind: str, quick: bool, limit: int, questions: str | None, work: str | None, as_json: bool, more: dict[str, Any]
) -> int:
    request = {
        "kind": kind,
        "command": " ".join(["kvd", *sys.argv[1:]]),
        "quick": quick,
        "limit": limit,
        "questions": _absolute(questions),
        "work": _absolute(work),
        "json": as_json,
        **more,
    }
    # -P: the working folder is no place to import from.
    command = [sys.executable, "-P", "-m", "kvd.bench", json.dumps(request)]
    # Its daemon and model would go on for hours. Killed, this process ends the pipe, which ends it too.
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # Ctrl-C reaches the program too, which then ends by itself.
            continue
