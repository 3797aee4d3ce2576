"""Decoding on one engine: which sequence is for what, prefill in slices, the answer token by token."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from kvd.engine.llama import SEQUENCES, BatchToken, LlamaEngine, run

PREFIX, LIVE, WORK, SPARE = 0, 1, 2, 3
"""Sequences: the shared prefix (always there), the running prompt, a body being computed, cells in passing."""

RESIDENTS = range(4, 12)
"""Sequences of prompts that stay after their answer."""

HEADS = range(12, SEQUENCES)
"""One sequence for each chunk's head, so that many can be computed in one batch."""

HEAD_BATCH = 256
"""Tokens of heads in one batch. A single head is shorter: headers are cut, `recompute` is limited."""

SLICE = 128
"""Tokens between two looks at whether the asker is still there; llama.cpp is as fast as with whole batches."""

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


def generate(
    engine: LlamaEngine, start: int, index: int, limit: int, emit: Callable[[str], None], step: Step
) -> tuple[int, str]:
    """Decode an answer of at most `limit` tokens in the live sequence from position `start`.

    `index` is where the prompt's last logits are in their batch. `emit` gets the text as it comes, whole
    characters at a time. Returns (tokens, "stop" or "length").
    """
    text = codecs.getincrementaldecoder("utf-8")("replace")
    engine.start_answer()
    for count in range(limit):
        token = engine.sample(index)
        if engine.ends_answer(token):
            emit(text.decode(b"", final=True))
            return count, "stop"
        emit(text.decode(engine.piece(token)))
        step()
        engine.decode([BatchToken(token, start + count, (LIVE,), logits=True)])
        index = 0
    emit(text.decode(b"", final=True))
    return limit, "length"
