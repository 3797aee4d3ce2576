"""`python -m kvd.training STEP FOLDER`; the steps are in `kvd/training/__init__.py`."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from kvd.recall.features import Features
from kvd.recall.table import DEFAULT_FILE
from kvd.training.corpus import Corpus, corpus_part, joined, vocabulary
from kvd.training.fetch import fetch, packages
from kvd.training.gather import gather
from kvd.training.held import write_benchmark


def _fetch(folder: Path, _: argparse.Namespace) -> None:
    fetch(folder / "archives", print)


def _pairs(folder: Path, _: argparse.Namespace) -> None:
    trained = [folder / "archives" / package.archive for package in packages() if not package.held]
    gather([archive for archive in trained if archive.exists()], folder / "pairs", print)


def _held(folder: Path, _: argparse.Namespace) -> None:
    held = [folder / "archives" / package.archive for package in packages() if package.held]
    write_benchmark([archive for archive in held if archive.exists()], folder / "held")


def _train(folder: Path, options: argparse.Namespace) -> None:
    from kvd.training.export import export
    from kvd.training.train import RECIPES, trained

    names = [f"{package.archive}.jsonl" for package in packages() if not package.held]
    files = [file for name in sorted(names) if (file := folder / "pairs" / name).exists()]
    started = time.perf_counter()
    words, corpus = _corpus(files, RECIPES[0].words, RECIPES[0].buckets)
    print(f"{len(files)} packages, {len(corpus.package):,} pairs, {time.perf_counter() - started:.0f} s to read them")
    export(trained(words, corpus, RECIPES, print), words, options.table_version, options.output)
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


def _corpus(files: list[Path], size: int, buckets: int) -> tuple[list[str], Corpus]:
    words = vocabulary(files, size)
    features = Features(words, buckets)
    return words, joined([corpus_part(file, features, number) for number, file in enumerate(files)])


def main() -> None:
    steps = {"fetch": _fetch, "pairs": _pairs, "held": _held, "train": _train}
    parser = argparse.ArgumentParser(prog="python -m kvd.training", description=__doc__)
    parser.add_argument("step", choices=steps)
    parser.add_argument("folder", type=Path, help="where archives, pairs and the held-out benchmark are kept")
    parser.add_argument("--output", type=Path, default=DEFAULT_FILE, help="the table's file")
    parser.add_argument("--table-version", type=int, default=1, help="raise it with every table that ships")
    options = parser.parse_args()
    steps[options.step](options.folder, options)


if __name__ == "__main__":
    main()
