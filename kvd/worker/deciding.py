"""What a model wants before it answers: one call, made behind the prompt that the answer is to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvd.engine.llama import LlamaEngine
from kvd.model_calls import CALL_TOKENS, FORGET, OPEN, RECALL, REMEMBER, grammar, read_call
from kvd.worker.answerer import Answerer, Question
from kvd.worker.bringing import Listener
from kvd.worker.decoding import Answering
from kvd.worker.turn import Turn

Emit = Callable[[str], None]

_OF_NAMES = "recall with one of the names below fetches its definition"

_EXPLAINED = {
    RECALL: 'recall("words") searches the repository for a name or words that are not shown',
    OPEN: 'open("path", 1, 80) shows these lines of a file',
    REMEMBER: 'remember("note") proposes to keep what the user asked you to remember',
    FORGET: 'forget("note") proposes to drop a note that the user asked you to forget',
}


def cue(names: Sequence[str], unshown: Sequence[str]) -> str:
    """What follows the question in place of an answer."""
    explained = {**_EXPLAINED, RECALL: _OF_NAMES} if unshown else _EXPLAINED
    known = "; ".join(explained[name] for name in names)
    there = f"\nUsed above, defined elsewhere: {', '.join(unshown)}\n" if unshown else " "
    return (
        "\n\nDo not answer yet. Write one call. If the code above uses something that the question depends on and "
        f"whose body is not shown, fetch it: {known}.{there}If the code above suffices: answer()"
    )


class Decision(Turn):
    """A turn that nothing is remembered of. Its chunks' cells stay, so that the answer's prompt finds them there."""

    def __init__(
        self,
        answerer: Answerer,
        question: Question,
        listener: Listener,
        names: Sequence[str],
        unshown: Sequence[str] = (),
    ) -> None:
        super().__init__(answerer, question, listener, remember=False)
        self._names, self._unshown = names, unshown

    def _ending(self) -> list[int]:
        return self._prompts.ending(self._question.text + cue(self._names, self._unshown))

    def _answering(self, sequence: int, start: int) -> Answering:
        return _Calling(self._engine, sequence, start, grammar(self._names, self._unshown), self._emit)

    def _unremembered(self) -> None:
        """The cells stay."""

    def _emit(self, text: str) -> None:
        self._answer.append(text)


class _Calling(Answering):
    """Ends with the call: what a vocabulary without an end token would say behind it, no grammar allows."""

    def __init__(self, engine: LlamaEngine, sequence: int, start: int, rules: str, emit: Emit) -> None:
        self._call = ""
        self._told = emit
        super().__init__(engine, sequence, start, CALL_TOKENS, self._hear, rules)

    def _hear(self, text: str) -> None:
        self._call += text
        self._told(text)

    def choose(self, index: int) -> None:
        super().choose(index)
        if self.following is not None and read_call(self._call) is not None:
            self.following, self.finish = None, "stop"
