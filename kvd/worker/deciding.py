"""What a model wants before it answers: one call, made behind the prompt that the answer is to have."""

from __future__ import annotations

from collections.abc import Callable

from kvd.engine.llama import LlamaEngine
from kvd.model_calls import CALL_TOKENS, FORGET, OPEN, RECALL, REMEMBER, Choices, grammar, read_call
from kvd.worker.answerer import Answerer, Question
from kvd.worker.bringing import Listener
from kvd.worker.decoding import Answering
from kvd.worker.turn import Turn

Emit = Callable[[str], None]

_EXPLAINED = {
    RECALL: "recall(NAME OR WORDS) to search for what the code above uses and does not show",
    OPEN: "open(FILE, FIRST, LAST) to see other lines of a file above",
    REMEMBER: "remember(NOTE) to keep what the user asked you to remember",
    FORGET: "forget(NOTE) to drop a note that the user asked you to forget",
}
_OF_NAMES = "recall(NAME) to see the definition of one of these, which the code above uses and does not show: "


def cue(choices: Choices) -> str:
    """What follows the question in place of an answer."""
    explained = {**_EXPLAINED, **({RECALL: _OF_NAMES + ", ".join(choices.unshown)} if choices.unshown else {})}
    calls = "".join(f"\n- {explained[name]}" for name in choices.calls)
    return (
        "\n\nDo not answer yet. Which code is needed to answer? Write one call:"
        f"{calls}\n- answer() if the code above shows all of the answer"
    )


class Decision(Turn):
    """A turn that nothing is remembered of. Its chunks' cells stay, so that the answer's prompt finds them there."""

    def __init__(self, answerer: Answerer, question: Question, listener: Listener, choices: Choices) -> None:
        super().__init__(answerer, question, listener, remember=False)
        self._choices = choices

    def _ending(self) -> list[int]:
        return self._prompts.ending(self._question.text + cue(self._choices))

    def _answering(self, sequence: int, start: int) -> Answering:
        return _Calling(self._engine, sequence, start, grammar(self._choices), self._emit)

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
