"""The traces of a run of `kvd bench paging`: recorded ones, or generated from clones and question sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvd.bench import questions
from kvd.bench.libraries import (
    BYTES_PER_TOKEN,
    CountTokens,
    RepositoryLibrary,
    by_bytes,
    by_vocabulary,
    commit_subjects,
    prepared_questions,
    spread,
)
from kvd.bench.traces import Say, Trace, generate, read_trace, write_trace
from kvd.config import Settings
from kvd.errors import NoModelError, UsageError
from kvd.models.active import active_model


def token_counter() -> tuple[CountTokens, str]:
    """How many tokens a text has, and whose tokens these are: the active model's where there is one."""
    try:
        model = active_model()
    except NoModelError:
        return by_bytes, f"estimated, {BYTES_PER_TOKEN} bytes each"
    return by_vocabulary(model), f"of {model.name}"


def traces(options: dict[str, Any], folder: Path, count: CountTokens, say: Say) -> list[Trace]:
    """Those that `options` name, else `seeds` generated ones."""
    if options["traces"]:
        return [read_trace(Path(file)) for file in options["traces"]]
    made = []
    libraries = _libraries(options, folder, count, say)
    for seed in range(options["first_seed"], options["first_seed"] + options["seeds"]):
        say(f"trace of seed {seed}: {options['asks']} questions")
        made.append(generate(f"seed-{seed}", libraries, options["asks"], seed))
        if options["save"]:
            write_trace(made[-1], Path(options["save"]) / f"{made[-1].name}.jsonl")
    return made


def _libraries(options: dict[str, Any], folder: Path, count: CountTokens, say: Say) -> Sequence[RepositoryLibrary]:
    sets = questions.read_sets(Path(options["questions"] or questions.default_folder()))
    retrieval = Path(options["retrieval"]) if options["retrieval"] else None
    roots = [Path(path) for path in options["repos"]]
    if not roots:
        checkouts = folder / "checkouts"
        checkouts.mkdir(parents=True, exist_ok=True)
        roots = [questions.checked_out(item, checkouts) for item in sets]
    libraries = []
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is no folder", hint="give --repo a clone")
        say(f"indexing {root.name}")
        history = commit_subjects(root, options["commits"]) if options["repos"] else []
        asked = spread(prepared_questions(root.name, sets, retrieval), history)
        libraries.append(RepositoryLibrary(root, asked, Settings(), count))
    return libraries
