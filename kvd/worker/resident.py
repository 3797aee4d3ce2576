"""The resident tier: cells that stay after an answer, for the next prompt that begins the same way.

A resident prompt is a sequence of its own whose cells are shared (`llama_memory_seq_cp` copies nothing): a prompt that
begins like it shares its first runs of cells and gets cells of its own behind them, so that none is ever written twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from kvd.engine.llama import LlamaEngine
from kvd.kv.integrity import require
from kvd.worker.decoding import LIVE, RESIDENTS


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive cells behind those of the run before. Two runs of equal `content` behind equal ones hold the same
    state; each is only itself, so that cells which prompts share are counted once."""

    content: Hashable
    cells: int


@dataclass(slots=True)
class ResidentPrompt:
    """A prompt in its cells: the shared prefix, then `runs`."""

    sequence: int
    runs: tuple[Run, ...]


class ResidentPrompts:
    """The least recently used leave first, when cells or sequences run out; the live sequence is never touched.

    `start` is the length of the shared prefix, whose cells lie under all prompts; `limit` the most prompts kept.
    """

    def __init__(self, engine: LlamaEngine, start: int, limit: int) -> None:
        self._engine, self._start = engine, start
        self._capacity = engine.n_ctx - start
        self._free = list(RESIDENTS[: max(0, limit)])
        self._kept: list[ResidentPrompt] = []
        """Least recently used first."""
        self._live: tuple[Run, ...] = ()

    def begin(self, contents: Sequence[Hashable], whole: bool = False) -> int:
        """Put the longest start of `contents` that is resident into the live sequence; how many runs that is.

        With `whole`, only all of them will do.
        """
        best, length = None, len(contents) - 1 if whole else 0
        for resident in self._kept:
            same = _common(resident.runs, contents)
            if same > length:
                best, length = resident, same
        if best is None:
            return 0
        self._kept.remove(best)
        self._kept.append(best)
        self._live = best.runs[:length]
        self._engine.share(best.sequence, LIVE, 0, self._start + _cells(self._live))
        return length

    def make_room(self, cells: int) -> None:
        """Let go of prompts until so many cells are free beside those of the live sequence, or none is left."""
        while self._kept and self.free_cells < cells:
            self._drop(self._kept[0])

    def keep(self, runs: Iterable[tuple[Hashable, int]]) -> None:
        """The live sequence becomes a resident prompt and is empty again.

        `runs` are the contents and numbers of cells of what lies behind those that `begin` gave; cells beyond
        them are given up.
        """
        whole = (*self._live, *(Run(content, cells) for content, cells in runs))
        self._live = ()
        contents = [run.content for run in whole]
        for resident in [item for item in self._kept if _common(item.runs, contents) == len(item.runs)]:
            # What the new one says too.
            self._drop(resident)
        if not self._free and self._kept:
            self._drop(self._kept[0])
        if whole and self._free:
            resident = ResidentPrompt(self._free.pop(), whole)
            self._engine.share(LIVE, resident.sequence, 0, self._start + _cells(whole))
            self._kept.append(resident)
        self._engine.remove(LIVE)

    def abandon(self) -> None:
        """The live sequence was given up."""
        self._live = ()

    def clear(self) -> None:
        while self._kept:
            self._drop(self._kept[0])

    def _drop(self, resident: ResidentPrompt) -> None:
        self._kept.remove(resident)
        self._engine.remove(resident.sequence)
        self._free.append(resident.sequence)

    @property
    def used_cells(self) -> int:
        """Cells behind the shared prefix that hold resident prompts or the start of the live one."""
        return _cells(self._runs())

    @property
    def free_cells(self) -> int:
        return self._capacity - self.used_cells

    def _runs(self) -> set[Run]:
        return {*self._live, *itertools.chain.from_iterable(resident.runs for resident in self._kept)}

    def stats(self) -> dict[str, int]:
        """`{"total", "prefix", "resident", "prompts", "runs"}`: cells, resident prompts, and what they consist of."""
        return {
            "total": self._engine.n_ctx,
            "prefix": self._start,
            "resident": self.used_cells,
            "prompts": len(self._kept),
            "runs": len(self._runs()),
        }

    def check_integrity(self) -> None:
        """Raises `IntegrityError` when sequences are lost or llama.cpp's cells end elsewhere than they should."""
        held = [resident.sequence for resident in self._kept]
        require(len({*held, *self._free}) == len(held) + len(self._free), "a sequence is held twice")
        for resident in self._kept:
            last = self._start + _cells(resident.runs) - 1
            require(self._engine.last_position(resident.sequence) == last, "a prompt's cells end elsewhere")
        empty = all(self._engine.last_position(sequence) == -1 for sequence in self._free)
        require(empty, "a free sequence has cells")


def _cells(runs: Iterable[Run]) -> int:
    return sum(run.cells for run in runs)


def _common(runs: Sequence[Run], contents: Sequence[Hashable]) -> int:
    """How many runs the two have in common from the start."""
    same = itertools.takewhile(lambda pair: pair[0].content == pair[1], zip(runs, contents, strict=False))
    return sum(1 for _ in same)
