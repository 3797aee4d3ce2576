"""Questions on one engine: what they are, what all of them share, and what else can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvd.engine.llama import LlamaEngine
from kvd.kv.bodies import Vector
from kvd.kv.prefetch import prefetch
from kvd.worker.admission import Admission
from kvd.worker.batcher import Batcher
from kvd.worker.bringing import Listener
from kvd.worker.conversation import Conversation
from kvd.worker.decoding import RESIDENTS
from kvd.worker.fitting import fitted
from kvd.worker.layout import body_of
from kvd.worker.memory import Memory
from kvd.worker.prompt import Piece, PromptBuilder, select
from kvd.worker.resident import ResidentPrompts
from kvd.worker.reuse import Reuse
from kvd.worker.turn import Turn


@dataclass(frozen=True, slots=True)
class Question:
    """`pieces` best first; `budget` and `max_tokens` in tokens; without `reuse` everything is computed.

    `vector` says what the question is about. `conversation` is what was said before, which the answer becomes part of;
    None for a question that belongs to none. `pinned` stands ahead of what was said.
    """

    text: str
    pieces: Sequence[Piece]
    budget: int
    max_tokens: int
    reuse: bool = True
    vector: Vector | None = None
    conversation: Conversation | None = None
    pinned: str = ""


class Answerer:
    """Answers questions on one engine, up to `parallel` at a time, each in a thread of its own if `batcher` is served.

    The shared prefix must be computed. `reuse` is None where bodies' KV can't be reused: all but the prefix is then
    computed, and without `prefix_reuse` that too. `recompute` is how many tokens at the start of each body are
    computed in place although they are stored; `residents` how many prompts may stay in the cells after their answer.
    `model` names what decides a prompt's tokens.
    """

    def __init__(
        self,
        engine: LlamaEngine,
        prompts: PromptBuilder,
        reuse: Reuse | None,
        recompute: int,
        prefix_reuse: bool = True,
        residents: int = len(RESIDENTS),
        parallel: int = 1,
        batcher: Batcher | None = None,
        model: str = "",
    ) -> None:
        self.engine, self.prompts, self.reuse, self.recompute = engine, prompts, reuse, recompute
        self.prefix_reuse, self.model = prefix_reuse, model
        self.batcher = batcher or Batcher(engine)
        self.resident = ResidentPrompts(engine, len(prompts.prefix), residents, parallel)
        self.admission = Admission(self.batcher, self.resident)
        self.memory = Memory(engine, self.batcher, reuse) if reuse else None

    def answer(self, question: Question, listener: Listener) -> dict[str, Any]:
        """The result of the `ask` request. Raises `UsageError`, `CancelledError`, `ModelError`."""
        return Turn(self, fitted(self, question, listener), listener).run()

    def quoted(self, question: Question) -> dict[str, list[str]]:
        """Keys of what may be stored of the pieces that are turns of conversations, by index."""
        if self.reuse is None:
            return {}
        addresses = self.reuse.pager.addresses
        return {
            str(piece.index): [block.key.hex() for block in addresses(body_of(piece, self.prompts))]
            for piece in question.pieces
            if piece.is_said
        }

    def prefetch(self, draft: Question, client: int, interrupted: Callable[[], bool]) -> dict[str, Any]:
        """Bring what is stored of the chunks that `draft` would have in its prompt into the pool, leased to `client`.

        `hot`, `loaded` and `missing` blocks; why nothing can be done is `dropped`, else "".
        """
        if self.reuse is None or not draft.reuse:
            return {"dropped": "no-reuse", "hot": 0, "loaded": 0, "missing": 0}
        room = self.room(draft, len(self.prompts.ending(draft.text)))
        bodies = [body_of(piece, self.prompts) for piece in select(draft.pieces, draft.budget, room)]
        with self.reuse.lock:
            return {"dropped": "", **asdict(prefetch(self.reuse.pager, bodies, client, interrupted))}

    def forget(self, conversation: Conversation) -> None:
        """A conversation's cells and its blocks in the pool do not stay any longer."""
        contents = [item.content for item in conversation.items]
        self.batcher.call(lambda: self.resident.forget(contents))
        if self.reuse is not None:
            with self.reuse.lock:
                self.reuse.pager.pool.forget(block.address.key for block in conversation.blocks)

    def memory_parts(self, pinned: str, summary: str) -> list[tuple[int, ...]]:
        """What a conversation's prompt has ahead of its turns; neither takes more than an eighth of the context."""
        return [part[: self.engine.longest // 8] for part in self.prompts.memory(pinned, summary)]

    def longest_answer(self, question: Question) -> int:
        """Tokens: an answer may take half of a small context, whatever the limit allows."""
        return min(question.max_tokens, self.engine.longest // 2)

    def room(self, question: Question, ending: int) -> int:
        """Tokens that a prompt which ends with so many has for chunks and their headers; may be negative."""
        prompt = min(self.engine.longest, self.engine.n_ctx - self.unshared)
        return prompt - len(self.prompts.prefix) - ending - self.longest_answer(question)

    @property
    def unshared(self) -> int:
        """Cells that a prompt needs for the prefix beside those that lie under all prompts."""
        return 0 if self.prefix_reuse else len(self.prompts.prefix)

    def check_integrity(self) -> None:
        """Raises `IntegrityError` when the pool's or the cells' books are wrong. While no question is answered."""
        self.batcher.call(self.resident.check_integrity)
        if self.reuse is not None:
            with self.reuse.lock:
                self.reuse.pager.pool.check_integrity()
