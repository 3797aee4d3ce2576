"""Who has which of llama.cpp's cells: running prompts, and those that stay after their answer (the resident tier).

A resident prompt is a sequence of its own whose cells are shared (`llama_memory_seq_cp` copies nothing): a prompt that
begins like it shares its first runs of cells and gets cells of its own behind them, so that none is ever written twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from kvd.engine.llama import LlamaEngine
from kvd.kv.integrity import require
from kvd.worker.decoding import RESIDENTS, Slot, slots


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


@dataclass(slots=True, eq=False)
class LivePrompt:
    """A running prompt. It has cells of `runs`, which it shares with a resident one, and may take `reserved` more."""

    slot: Slot
    runs: tuple[Run, ...]
    reserved: int


class ResidentPrompts:
    """Resident prompts leave when cells or sequences run out, least recently used first; running ones stay.

    `start` is the length of the shared prefix, whose cells lie under all prompts; `limit` the most resident prompts,
    `parallel` the most running ones. All methods are for the thread that runs the engine.
    """

    def __init__(self, engine: LlamaEngine, start: int, limit: int, parallel: int = 1) -> None:
        self._engine, self._start = engine, start
        self.capacity = engine.n_ctx - start
        """Cells behind the shared prefix."""
        self._free = list(RESIDENTS[: max(0, limit)])
        self._slots = slots(parallel)
        self._kept: list[ResidentPrompt] = []
        """Least recently used first."""
        self._live: list[LivePrompt] = []

    def begin(self, runs: Sequence[tuple[Hashable, int]], rest: int, together: int | None = None) -> LivePrompt | None:
        """Let a prompt of these contents and numbers of cells run, with `rest` more cells behind them.

        The longest start of the contents that is resident is put into its live sequence; of those from number
        `together` on, only all will do. Others leave for the rest. None where running prompts leave no slot or too few
        cells; a prompt that is alone may run in any case.
        """
        if not self._slots:
            return None
        contents = [content for content, _ in runs]
        best, length = self._longest(contents, len(contents) if together is None else together)
        shared = best.runs[:length] if best else ()
        needed = sum(cells for _, cells in runs[length:]) + rest
        if self._live and needed > self.capacity - self._live_cells(shared):
            return None
        live = LivePrompt(self._slots.pop(0), shared, needed)
        self._live.append(live)
        if best is not None:
            self._kept.remove(best)
            self._kept.append(best)
            self._engine.share(best.sequence, live.slot.live, 0, self._start + _cells(shared))
        while self._kept and self.free_cells < 0:
            self._drop(self._kept[0])
        return live

    def _longest(self, contents: Sequence[Hashable], together: int) -> tuple[ResidentPrompt | None, int]:
        """The resident prompt that has the longest start in common, and how many runs of it are of use."""
        best, length = None, 0
        for resident in self._kept:
            same = _common(resident.runs, contents)
            same = same if same == len(contents) else min(same, together)
            if same > length:
                best, length = resident, same
        return best, length

    def keep(self, live: LivePrompt, runs: Iterable[tuple[Hashable, int]]) -> None:
        """A running prompt's cells stay, as a resident prompt, when it has ended.

        `runs` are the contents and numbers of cells of what lies behind those that it shares; cells beyond them are
        given up with `end`.
        """
        live.runs = (*live.runs, *(Run(content, cells) for content, cells in runs))
        contents = [run.content for run in live.runs]
        for resident in [item for item in self._kept if _common(item.runs, contents) == len(item.runs)]:
            # What the new one says too.
            self._drop(resident)
        if not self._free and self._kept:
            self._drop(self._kept[0])
        if live.runs and self._free:
            resident = ResidentPrompt(self._free.pop(), live.runs)
            self._engine.share(live.slot.live, resident.sequence, 0, self._start + _cells(live.runs))
            self._kept.append(resident)

    def end(self, live: LivePrompt) -> None:
        """The prompt runs no more: its sequences are empty again."""
        self._engine.clear(live.slot.sequences)
        self._live.remove(live)
        self._slots.insert(0, live.slot)

    def forget(self, contents: Sequence[Hashable]) -> None:
        """Prompts that end with these contents do not stay any longer."""
        last = len(contents)
        for resident in [item for item in self._kept if [run.content for run in item.runs[-last:]] == list(contents)]:
            self._drop(resident)

    def clear(self) -> None:
        while self._kept:
            self._drop(self._kept[0])

    def _drop(self, resident: ResidentPrompt) -> None:
        self._kept.remove(resident)
        self._engine.remove(resident.sequence)
        self._free.append(resident.sequence)

    def _live_cells(self, shared: Sequence[Run] = ()) -> int:
        """Cells that running prompts have or may take, with those of `shared`."""
        runs = {*shared, *itertools.chain.from_iterable(live.runs for live in self._live)}
        return _cells(runs) + sum(live.reserved for live in self._live)

    @property
    def used_cells(self) -> int:
        """Cells behind the shared prefix that hold resident prompts or what running ones share."""
        return _cells(self._runs())

    @property
    def free_cells(self) -> int:
        """Cells that are neither used nor reserved; negative where a prompt that was alone reserved too many."""
        return self.capacity - self.used_cells - sum(live.reserved for live in self._live)

    @property
    def running(self) -> int:
        return len(self._live)

    def _runs(self) -> set[Run]:
        prompts: Iterable[LivePrompt | ResidentPrompt] = (*self._live, *self._kept)
        return set(itertools.chain.from_iterable(prompt.runs for prompt in prompts))

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
        idle = (*self._free, *itertools.chain.from_iterable(slot.sequences for slot in self._slots))
        empty = all(self._engine.last_position(sequence) == -1 for sequence in idle)
        require(empty, "a free sequence has cells")


def _cells(runs: Iterable[Run]) -> int:
    return sum(run.cells for run in runs)


def _common(runs: Sequence[Run], contents: Sequence[Hashable]) -> int:
    """How many runs the two have in common from the start."""
    same = itertools.takewhile(lambda pair: pair[0].content == pair[1], zip(runs, contents, strict=False))
    return sum(1 for _ in same)
