"""`kvd bench`: measurements, run by a program of its own that loads the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import typer

app = typer.Typer()


@app.callback()
def _bench() -> None:
    """Measure kvd on real repositories. For its developers; takes minutes to hours."""


Limit = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="At most N questions; 0: all.")]
Questions = Annotated[str | None, typer.Option("--questions", metavar="DIR", help="Other question sets.")]
Work = Annotated[
    str | None, typer.Option("--work", metavar="DIR", help="Keep checkouts, references and KV there, not in the cache.")
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
    process = subprocess.Popen([sys.executable, "-P", "-m", "kvd.bench", json.dumps(request)])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # Ctrl-C reaches the program too, which then ends by itself.
            continue
