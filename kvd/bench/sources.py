"""The traces of a run of `kvd bench paging`: recorded ones, or generated from clones and question sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvd.bench import questions
from kvd.bench.checkouts import checked_out
from kvd.bench.folders import writable
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


def traces(options: dict[str, Any], folder: Path, say: Say) -> tuple[list[Trace], str]:
    """Those that `options` name, else `seeds` generated ones; and whose tokens they count."""
    if options["traces"]:
        return [read_trace(Path(file)) for file in options["traces"]], "as recorded"
    _check(options)
    made = []
    roots = _roots(options, folder)
    count, counted = _token_counter()
    libraries = [_library(root, options, count, say) for root in roots]
    for seed in range(options["first_seed"], options["first_seed"] + options["seeds"]):
        say(f"trace of seed {seed}: {options['asks']} questions")
        made.append(generate(f"seed-{seed}", libraries, options["asks"], seed))
        if options["save"]:
            write_trace(made[-1], Path(options["save"]) / f"{made[-1].name}.jsonl")
    return made, counted


def _check(options: dict[str, Any]) -> None:
    """Raises `UsageError` for folders that are of no use; indexing takes minutes."""
    if options["save"]:
        writable(Path(options["save"]), "--save")
    if options["retrieval"] and not (Path(options["retrieval"]) / "annotations").is_dir():
        raise UsageError(
            f"{options['retrieval']} has no folder annotations", hint="give --retrieval the folder of a benchmark"
        )


def _token_counter() -> tuple[CountTokens, str]:
    """How many tokens a text has, and whose tokens these are: the active model's where there is one."""
    try:
        model = active_model()
    except NoModelError:
        return by_bytes, f"estimated, {BYTES_PER_TOKEN} bytes each"
    return by_vocabulary(model), f"of {model.name}"


def _roots(options: dict[str, Any], folder: Path) -> list[Path]:
    """The clones that `options` name, else the checkouts of the question sets."""
    roots = [Path(path) for path in options["repos"]]
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root} is no folder", hint="give --repo a clone")
    checkouts = folder / "checkouts"
    return roots or [checked_out(item.name, item.url, item.revision, checkouts) for item in _sets(options)]


def _sets(options: dict[str, Any]) -> list[questions.QuestionSet]:
    """Those of the option, else those of the source tree. A clone can be asked about without any."""
    folder = Path(options["questions"] or questions.default_folder())
    if options["repos"] and not options["questions"] and not folder.is_dir():
        return []
    return questions.read_sets(folder)


def _library(root: Path, options: dict[str, Any], count: CountTokens, say: Say) -> RepositoryLibrary:
    say(f"indexing {root.name}")
    # A checkout of a question set has no history.
    history = commit_subjects(root, options["commits"]) if options["repos"] else []
    retrieval = Path(options["retrieval"]) if options["retrieval"] else None
    asked = spread(prepared_questions(root.name, _sets(options), retrieval), history)
    return RepositoryLibrary(root, asked, Settings(), count)
