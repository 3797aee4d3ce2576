"""Decoding on one engine: which sequence is for what, prefill in slices, the answer token by token."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvd.engine.llama import BatchToken, LlamaEngine, run

PREFIX, LIVE, WORK, SPARE = 0, 1, 2, 3
"""Sequences: the shared prefix (always there), a running prompt, a body being computed, cells in passing."""

RESIDENTS = range(4, 12)
"""Sequences of prompts that stay after their answer."""

HEADS = range(12, 28)
"""One sequence for each chunk's head, so that many can be computed in one batch."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The sequences that one of the questions answered at the same time has for itself."""

    live: int = LIVE
    work: int = WORK
    spare: int = SPARE

    @property
    def sequences(self) -> tuple[int, int, int]:
        return self.live, self.work, self.spare


FIRST = Slot()


def slots(parallel: int) -> list[Slot]:
    """Slots for so many questions at the same time."""
    more = range(HEADS.stop, HEADS.stop + 3 * (parallel - 1), 3)
    return [FIRST, *(Slot(number, number + 1, number + 2) for number in more)]


def sequences_for(parallel: int) -> int:
    """Sequence ids that so many slots need, with all others."""
    return HEADS.stop + 3 * (parallel - 1)


HEAD_BATCH = 256
"""Tokens of heads in one batch. A single head is shorter: headers are cut, `recompute` is limited."""

SLICE = 128
"""Tokens between two looks at whether the asker is still there; llama.cpp is as fast as with whole batches."""

LOOK_SECONDS = 0.1
"""The same for who waits for another question."""

Step = Callable[[], None]
"""Called between decode steps; raises `CancelledError` to stop."""


def decode_run(
    engine: LlamaEngine, tokens: Sequence[int], start: int, sequence: int, step: Step, logits: bool = False
) -> int:
    """Prefill consecutive tokens in slices. Returns the index of the last one in its batch, for its logits."""
    size = 0
    for offset in range(0, len(tokens), SLICE):
        part = tokens[offset : offset + SLICE]
        size = len(part)
        engine.decode(run(part, start + offset, sequence, logits and offset + size == len(tokens)))
        step()
    return size - 1


class Answering:
    """An answer of at most `limit` tokens, decoded in `sequence` from position `start` on.

    `emit` gets the text as it comes, whole characters at a time. `finish` is "stop" or "length" in the end.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        sequence: int,
        start: int,
        limit: int,
        emit: Callable[[str], None],
        grammar: str = "",
    ) -> None:
        self._engine, self._sequence, self._start, self._limit, self._emit = engine, sequence, start, limit, emit
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._sampler = engine.new_sampler(grammar)
        self.said: list[int] = []
        """The tokens of the answer. When it ends by its length the last one has not been computed."""
        self.finish = ""
        self.following: BatchToken | None = None
        """What to decode next: the token that was chosen last; None in the end."""

    def choose(self, index: int) -> None:
        """Choose the next token by the `index`-th logits of the last batch, and emit it."""
        token = self._engine.sample(self._sampler, index)
        if self._engine.ends_answer(token):
            self._end("stop")
            return
        self._emit(self._text.decode(self._engine.piece(token)))
        self.said.append(token)
        if self.tokens == self._limit:
            self._end("length")
        else:
            self.following = BatchToken(token, self._start + self.tokens - 1, (self._sequence,), logits=True)

    @property
    def tokens(self) -> int:
        return len(self.said)

    def _end(self, finish: str) -> None:
        self._emit(self._text.decode(b"", final=True))
        self.following, self.finish = None, finish

    def close(self) -> None:
        self._engine.free_sampler(self._sampler)
