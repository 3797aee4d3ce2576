"""`kvd index`, `kvd search`, `kvd ask`, `kvd forget`."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer

from kvd.errors import CancelledError, RepositoryError
from kvd.rpc.messages import BUDGET, MAX_TOKENS, ROUNDS, TOP_K, check_text

from . import answers
from .interrupts import interrupts_raised
from .progress import Stages
from .text import file_size
from .variables import tell_unreached, with_environment

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Repo = Annotated[
    str | None,
    typer.Option("--repo", metavar="PATH", help="The repository; otherwise the one you are in."),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", metavar="N", min=TOP_K[0], max=TOP_K[1], help="Recall at most N chunks."),
]
OnlyPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--path", metavar="GLOB", help="Only files that match, as in .gitignore; '!GLOB' leaves out. Repeatable."
    ),
]
OnlyLanguages = Annotated[
    list[str] | None,
    typer.Option("--lang", metavar="NAME", help="Only files in this language: python, go, tsx, ... Repeatable."),
]
Budget = Annotated[
    int | None,
    typer.Option(
        "--budget", metavar="TOKENS", min=BUDGET[0], max=BUDGET[1], help="Recall at most so many tokens of code."
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", metavar="N", min=MAX_TOKENS[0], max=MAX_TOKENS[1], help="End the answer after N tokens."
    ),
]

_AT_ONCE = ("session/", "note/", "forget")
"""Methods that tell no stages."""


Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds", metavar="N", min=ROUNDS[0], max=ROUNDS[1], help="Let the model fetch more code up to N times."
    ),
]


def index(
    path: Annotated[str, typer.Argument(help="Anywhere in the repository.")] = ".",
    background: Annotated[bool, typer.Option("--background", help="Don't wait for it.")] = False,
    as_json: Json = False,
) -> None:
    """Index a repository, or bring its index up to date."""
    result = call("index", {"path": absolute(path), "background": background})
    if as_json:
        typer.echo(json.dumps(result))
    elif background:
        typer.echo(f"indexing {answers.clean_line(result['repo'])} in the background, see: kvd status")
    else:
        typer.echo(answers.index_line(result))
        if not result["files"]:
            typer.echo("kvd: there is nothing to index here yet", err=True)


def forget(
    path: Annotated[str, typer.Argument(help="Anywhere in the repository, which need not exist any more.")] = ".",
    as_json: Json = False,
) -> None:
    """Remove a repository's index. Its KV makes room for other KV in time; conversations and notes stay."""
    result = call("forget", {"path": absolute(path)})
    if as_json:
        typer.echo(json.dumps(result))
    else:
        freed = file_size(result["freed_bytes"])
        typer.echo(f"removed the index of {answers.clean_line(result['repo'])} ({freed})")


def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words, names or a question.")],
    repo: Repo = None,
    top_k: TopK = None,
    only_paths: OnlyPaths = None,
    only_languages: OnlyLanguages = None,
    rerank: Annotated[bool, typer.Option("--rerank", help="Let the model judge the best of them too.")] = False,
    as_json: Json = False,
) -> None:
    """Find the chunks of code that a query is about. Needs no model but for --rerank."""
    check_text("query", query)
    params = {
        "query": query,
        "repo": absolute(repo or "."),
        "top_k": top_k,
        "paths": only_paths,
        "languages": only_languages,
        "rerank": rerank,
        "rerank_ms": None,
    }
    result = call("search", params)
    if as_json:
        typer.echo(json.dumps(result))
    elif not result["sources"]:
        typer.echo("nothing found")
    else:
        for source in result["sources"]:
            typer.echo(answers.source_line(source))
        if rerank and not result["judged"]:
            typer.echo("kvd: the model has judged none of these: no time, or no KV to judge by", err=True)


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="In your own words, in quotes.")],
    repo: Repo = None,
    top_k: TopK = None,
    only_paths: OnlyPaths = None,
    only_languages: OnlyLanguages = None,
    budget: Budget = None,
    max_tokens: MaxTokens = None,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="NAME", help="Go on with this conversation, or begin it."),
    ] = None,
    rounds: Rounds = None,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Compute everything afresh.")] = False,
    as_json: Json = False,
) -> None:
    """Ask about a repository; the answer names its sources."""
    check_text("question", question)
    params = {
        "question": question,
        "repo": absolute(repo or "."),
        "top_k": top_k,
        "paths": only_paths,
        "languages": only_languages,
        "budget": budget,
        "max_tokens": max_tokens,
        "reuse": False if no_reuse else None,
        "rerank_ms": None,
        "session": session,
        "memory": None,
        "rounds": rounds,
    }
    stream = answers.Stream(sys.stdout, quiet=as_json)
    result = call("ask", params, stream)
    if as_json:
        typer.echo(json.dumps(result))
        return
    show_answer(stream, result)
    for proposal in result.get("proposals", ()):
        typer.echo(f"kvd: the model proposes to {answers.proposal_line(proposal)}", err=True)


def show_answer(stream: answers.Stream, result: dict[str, Any]) -> None:
    """What follows the words that were streamed."""
    stream.finish(result)
    for line in answers.source_lines(result):
        typer.echo(line)
    if result["model"] is not None:
        typer.secho(answers.stats_line(result), dim=True)


def absolute(path: str) -> str:
    """Raises `RepositoryError` where the working folder, which `path` may be relative to, is gone."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        raise RepositoryError("the working folder does not exist any more", hint="cd to another") from None


def call(method: str, params: dict[str, Any], stream: answers.Stream | None = None) -> dict[str, Any]:
    """Call the daemon, showing stages on stderr and handing tokens to `stream`."""
    from kvd.rpc.client import Client

    params = with_environment(params)
    stages = Stages()

    def on_progress(value: dict[str, Any]) -> None:
        if value.get("kind") == "token":
            if stream is not None:
                stages.close()
                stream.write(str(value.get("text", "")))
        elif value.get("kind") == "stage" and (stream is None or not stream.begun):
            stages.show(value)

    try:
        # There is something to tidy up: the bar, the line that is begun, the request.
        with interrupts_raised(), Client.connect() as client:
            tell_unreached(client.server)
            at_once = method.startswith(_AT_ONCE) and method != "session/search"
            return client.call(method, params, None if at_once else on_progress)
    except BaseException as error:
        if stream is not None:
            stream.break_off()
        if isinstance(error, KeyboardInterrupt):
            raise CancelledError("interrupted") from None
        raise
    finally:
        stages.close()
