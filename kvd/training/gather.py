"""The pairs of all packages, each in a process of its own: parsers are native code that some inputs make crash."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path

from kvd.training.pairs import write

_WORKERS, _PATIENCE_S = 2, 120


def gather(archives: list[Path], target: Path, say: Callable[[str], None]) -> None:
    """Write `target/ARCHIVE.jsonl` for each archive that has none; one whose parser dies has none afterwards either."""
    target.mkdir(parents=True, exist_ok=True)
    wanted = [(archive, output) for archive in archives if not (output := target / f"{archive.name}.jsonl").exists()]
    say(f"{len(wanted)} archives to read")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kvd.training.pairs", "tree_sitter_language_pack"])
    with ThreadPoolExecutor(_WORKERS) as pool:
        for archive, done in zip(wanted, pool.map(lambda item: _one(context, *item), wanted), strict=True):
            if not done:
                say(f"left out: {archive[0].name}")


def _one(context: ForkServerContext, archive: Path, target: Path) -> bool:
    part = target.with_suffix(".part")
    process = context.Process(target=write, args=(archive, part))
    process.start()
    process.join(_PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()
    if process.exitcode == 0:
        part.rename(target)
    else:
        part.unlink(missing_ok=True)
    process.close()
    return target.exists()
