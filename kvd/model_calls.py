"""Calls by which a model fetches what its prompt lacks: their grammar, and how they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass

ANSWER, RECALL, OPEN, REMEMBER, FORGET = "answer", "recall", "open", "remember", "forget"
PAGING = (RECALL, OPEN)
MEMORY = (REMEMBER, FORGET)
"""Of these only proposals are made: what a model has read must not write what it is told later on."""

CALL_TOKENS = 150
"""A call of printable ASCII is at its end by then, whatever the vocabulary: the longest has 144 characters."""

_QUERY, _PATH, _LINE = 64, 120, 6
"""Most characters of a query or note, of a path, and digits of a line number."""

_RULES = {
    ANSWER: '"answer()"',
    RECALL: f'"recall(" text{{{_QUERY}}} ")"',
    OPEN: f'"open(" text{{{_PATH}}} ", " line ", " line ")"',
    REMEMBER: f'"remember(" text{{{_QUERY}}} ")"',
    FORGET: f'"forget(" text{{{_QUERY}}} ")"',
}
_TEXT = re.compile(r" text\{(\d+)\}")
_PLAIN = re.compile(rf'[^"\\\x00-\x1f\x7f]{{1,{_PATH}}}')
_CALL = re.compile(r'(recall|remember|forget)\("([^"\\\x00-\x1f\x7f]+)"\)')
_OPENED = re.compile(r'open\("([^"\\\x00-\x1f\x7f]+)", ([1-9]\d*), ([1-9]\d*)\)', re.ASCII)


@dataclass(frozen=True, slots=True)
class Call:
    """`argument` is a query, a path or a note; `lines` the first and the last one to open, from 1."""

    name: str
    argument: str = ""
    lines: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        if self.name == OPEN:
            return f'open("{self.argument}", {self.lines[0]}, {self.lines[1]})'
        return f'{self.name}("{self.argument}")' if self.argument else f"{self.name}()"


@dataclass(frozen=True, slots=True)
class Choices:
    """What a model may call. `recall` takes one of the identifiers `unshown`, `open` one of the paths `files`; any text
    where there are none."""

    calls: tuple[str, ...]
    unshown: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def grammar(choices: Choices) -> str:
    """GBNF of a single one of the calls, or `answer()`. Texts have no quotes, backslashes, line ends."""
    rules = {name: _TEXT.sub(r' "\\"" char{1,\1} "\\""', _RULES[name]) for name in (ANSWER, *choices.calls)}
    lines = [r'char ::= [^"\\\x00-\x1f\x7f]', f"line ::= [1-9] [0-9]{{0,{_LINE - 1}}}"]
    for name, of in ((RECALL, choices.unshown), (OPEN, choices.files)):
        known = [text for text in of if _PLAIN.fullmatch(text)]
        if name in rules and known:
            rules[name] = _TEXT.sub(rf' "\\"" {name} "\\""', _RULES[name])
            alternatives = " | ".join(f'"{text}"' for text in known)
            lines.append(f"{name} ::= {alternatives}")
    return "\n".join([f"root ::= {' | '.join(rules.values())}", *lines, ""])


def read_call(text: str) -> Call | None:
    """The call that `text` is; None for anything else, such as one that was cut off."""
    if text == "answer()":
        return Call(ANSWER)
    if match := _CALL.fullmatch(text):
        argument = match[2].strip()
        # Who agrees to a note has to see all of it.
        shown = match[1] not in MEMORY or argument.isprintable()
        return Call(match[1], argument) if argument and shown else None
    if match := _OPENED.fullmatch(text):
        first, last = sorted((int(match[2]), int(match[3])))
        return Call(OPEN, match[1].strip(), (first, last))
    return None
