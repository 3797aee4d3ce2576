"""`python -m kvd.bench REQUEST`: what `kvd bench` runs, options in JSON. Own folders, the user's models.

Its stdin is a pipe from the command. When that ends, the command is gone, and the run ends as it does at Ctrl-C.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from kvd import paths
from kvd.bench.folders import living_in
from kvd.config import Settings
from kvd.engine.machine import wait_briefly
from kvd.errors import CancelledError, KvdError, UsageError

if TYPE_CHECKING:
    from kvd.bench.questions import BenchQuestion
    from kvd.models.active import ActiveModel


def main() -> int:
    """Run one benchmark; the exit status."""
    options = json.loads(sys.argv[1])
    try:
        _end_with_command()
        _run(options)
    except (KvdError, KeyboardInterrupt) as error:
        fault = error if isinstance(error, KvdError) else CancelledError("interrupted")
        if options["json"]:
            print(json.dumps({"error": fault.to_json()}))
        print(f"kvd: {fault.message}", file=sys.stderr)
        if fault.hint:
            print(f"hint: {fault.hint}", file=sys.stderr)
        return fault.exit_code
    return 0


def _end_with_command() -> None:
    """Interrupt the run at SIGTERM and when stdin ends."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        # What then ends the daemon must not be interrupted itself.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    def watch() -> None:
        # Not through sys.stdin, whose lock this thread would hold when Python ends.
        while os.read(0, 1):
            pass
        signal.pthread_kill(thread, signal.SIGTERM)

    thread = threading.get_ident()
    signal.signal(signal.SIGTERM, interrupt)
    # A terminal that is closed ends the command, and so this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


def _run(options: dict[str, Any]) -> None:
    if options["kind"] == "paging":
        _run_paging(options)
    elif options["kind"] == "pressure":
        _run_pressure(options)
    elif options["kind"] == "recall":
        _run_recall(options)
    elif options["kind"] == "rerank":
        _run_rerank(options)
    elif options["kind"] == "hops":
        _run_hops(options)
    elif options["kind"] == "day":
        _run_day(options)
    elif options["kind"] == "sessions":
        _run_sessions(options)
    elif options["kind"] == "askers":
        _run_askers(options)
    else:
        _run_with_model(options)


def _quiet_engine() -> None:
    wait_briefly()
    from kvd.engine.log import quiet_llama_log

    # There is no log for its warnings about a model here, and they come again with each load.
    quiet_llama_log(warnings=False)


def _run_with_model(options: dict[str, Any]) -> None:
    _quiet_engine()
    from kvd.bench import codec, plots, questions
    from kvd.models.active import active_model

    model = active_model()
    if options.get("plots"):
        plots.check(Path(options["plots"]))
    folder = _work_folder(options)
    sets = questions.read_sets(Path(options["questions"] or questions.default_folder()))
    with living_in(folder):
        asked = questions.selected(sets, folder / "checkouts", options["quick"], options["limit"])
        if not asked:
            raise UsageError("the question sets are empty", hint="see tests/bench/questions")
        if options["kind"] == "codec":
            _print(codec.measure(model, folder, Settings(), asked, _say), codec.lines, options)
        else:
            _run_kv(options, model, folder, asked)


def _run_paging(options: dict[str, Any]) -> None:
    folder = _work_folder(options)
    with living_in(folder):
        _quiet_engine()
        from kvd.bench import pages, paging, sources

        traces, counted = sources.traces(options, folder, _say)
        result = paging.compare(traces, options["policies"], options["share"], paging.Costs(*options["costs"]), _say)
        result["pages"] = pages.measure(traces, folder, options["rounds"], _say)

    def lines(result: dict[str, Any]) -> Iterator[str]:
        return itertools.chain(paging.lines(result), pages.lines(result["pages"]))

    _print({"command": options["command"], "tokens": counted, **result}, lines, options)


def _run_recall(options: dict[str, Any]) -> None:
    from kvd.bench import recall
    from kvd.service.embedders import Embedders

    repositories = recall.read_benchmark(Path(options["benchmark"]))
    folder, embedders = _work_folder(options) / "recall", Embedders()
    with living_in(folder):
        try:
            embedder = embedders.means(Settings(embedder=options["embedder"])).embedder
            checkouts = Path(options["checkouts"] or folder / "checkouts")
            result = recall.measure(repositories, checkouts, options["command"], _say, embedder)
        finally:
            embedders.close()
        _print(result, recall.lines, options)


def _run_rerank(options: dict[str, Any]) -> None:
    _quiet_engine()
    from kvd.bench import recall, rerank
    from kvd.models.active import active_model

    repositories = recall.read_benchmark(Path(options["benchmark"]))
    model, folder = active_model(), _work_folder(options) / "rerank"
    with living_in(folder):
        run = rerank.Run(model, folder)
        try:
            checkouts = Path(options["checkouts"] or folder / "checkouts")
            result = rerank.measure(run, repositories, checkouts, options["limit"], options["command"], _say)
        finally:
            run.close()
        _print(result, rerank.lines, options)


def _run_hops(options: dict[str, Any]) -> None:
    from kvd.bench import hops, questions
    from kvd.models.active import active_model

    active_model()
    sets = hops.read_sets(Path(options["questions"] or questions.default_folder().parent / "hops"))
    folder = _work_folder(options) / "hops"
    with living_in(folder):
        checkouts = Path(options["checkouts"] or folder / "checkouts")
        result = hops.measure(sets, checkouts, options["limit"], options["command"], _say)
        _print(result, hops.lines, options)


def _run_pressure(options: dict[str, Any]) -> None:
    _quiet_engine()
    from kvd.bench import pressure, pressure_report
    from kvd.models.active import active_model

    model = active_model()
    # A store of its own: it has to be empty at the start.
    with living_in(_work_folder(options) / "pressure"):
        run = pressure.Run(model, options, _say)
        try:
            result = run.measure()
        finally:
            run.close()
        _print(result, pressure_report.lines, options)


def _run_day(options: dict[str, Any]) -> None:
    _quiet_engine()
    from kvd.bench import day, diary
    from kvd.models.active import active_model

    active_model()
    folder = _work_folder(options) / "day"
    with living_in(folder):
        run = day.Run(Path(options["repo"]), folder, options["requests"], options["asks"], options["seed"], _say)
        try:
            result = run.measure(options["command"])
        finally:
            run.close()
        _print(result, diary.lines, options)


def _run_sessions(options: dict[str, Any]) -> None:
    _quiet_engine()
    from kvd.bench import sessions, talk
    from kvd.models.active import active_model

    model, folder = active_model(), _work_folder(options) / "sessions"
    with talk.keeping_conversations(folder):
        run = sessions.Run(model, options["repo"], folder, _say, options["wanted"]["seed"])
        try:
            result = run.measure(sessions.Wanted(**options["wanted"]), options["command"])
        finally:
            run.close()
        _print(result, sessions.lines, options)


def _run_askers(options: dict[str, Any]) -> None:
    _quiet_engine()
    from kvd.bench import askers, questions
    from kvd.models.active import active_model

    model, folder = active_model(), _work_folder(options)
    sets = questions.read_sets(Path(options["questions"] or questions.default_folder()))
    with living_in(folder):
        asked = questions.selected(sets, folder / "checkouts", False, options["asks"])
        load = askers.Load(
            tuple(options["askers"]), options["asks"], options["rounds"], options["max_tokens"], options["budget"]
        )
        server = Path(options["server"]) if options["server"] else None
        result = askers.Run(model, folder, load, server, _say).measure(asked, options["command"])
    _print(result, askers.lines, options)


def _run_kv(options: dict[str, Any], model: ActiveModel, folder: Path, asked: Sequence[BenchQuestion]) -> None:
    from kvd.bench import kv

    settings = Settings(short_headers=options["short_headers"], recompute=options["wanted"]["recompute"])
    run = kv.Run(model, folder, settings, options["command"], _say)
    try:
        result = run.measure(asked, kv.wanted(options["quick"], options["wanted"]))
    finally:
        run.close()
    show_kv(result, options)


def show_kv(result: dict[str, Any], options: dict[str, Any]) -> None:
    """Print, then draw: hours of work are not lost with a picture."""
    from kvd.bench import plots, report

    _print(result, report.lines, options)
    if options["plots"]:
        for file in plots.draw(result, Path(options["plots"])):
            _say(f"wrote {file}")


def _print(result: dict[str, Any], lines: Callable[[dict[str, Any]], Iterator[str]], options: dict[str, Any]) -> None:
    print(json.dumps(result) if options["json"] else "\n".join(lines(result)), flush=True)


def _work_folder(options: dict[str, Any]) -> Path:
    return Path(options["work"] or paths.cache_dir() / "bench")


def _say(text: str) -> None:
    print(f"kvd: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
