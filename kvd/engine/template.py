"""A model's chat template, taken from its GGUF file."""

from __future__ import annotations

import datetime
from typing import NoReturn

import jinja2
import jinja2.sandbox

from kvd.errors import ModelError

_PLAIN = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"
"""For base models, which carry no template."""

_MARK = "\x02kvd\x02"


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _render(source: str, messages: list[dict[str, str]], bos: str, eos: str) -> str:
    # The template comes from a file that anyone may have made: nothing but text may come of it.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.date(2024, 1, 1).strftime(form)
    template = environment.from_string(source)
    return template.render(messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos)


def split_template(source: str | None, instructions: str, bos: str, eos: str) -> tuple[str, str]:
    """The text before and after the user's words, with `instructions` as the system message.

    The date that some templates print is a fixed one: the text before is the shared prefix of all stored KV.
    Models that take no system message get the instructions at the head of the user's. Raises `ModelError` for a
    template that can't be used.
    """
    reason = "it does not print the user's words once"
    for messages in _beginnings(instructions):
        try:
            before, *rest = _render(source or _PLAIN, messages, bos, eos).split(_MARK)
        except Exception as error:
            reason = str(error)
            continue
        if len(rest) == 1 and instructions in before:
            return before, rest[0]
    raise ModelError(f"the model's chat template can't be used: {reason}", hint="kvd setup --model ANOTHER.gguf")


def _beginnings(instructions: str) -> tuple[list[dict[str, str]], ...]:
    """Conversations that begin with the instructions and the user's words, in the order in which they are tried."""
    return (
        [{"role": "system", "content": instructions}, {"role": "user", "content": _MARK}],
        [{"role": "user", "content": f"{instructions}\n\n{_MARK}"}],
    )


def text_between_turns(source: str | None, instructions: str, bos: str, eos: str) -> str | None:
    """What stands between an answer and the user's next words; None where the template prints no conversations, or
    what goes before and after the user's words is not what `split_template` says."""
    before, after = split_template(source, instructions, bos, eos)
    more = [{"role": "assistant", "content": _MARK}, {"role": "user", "content": _MARK}]
    for messages in _beginnings(instructions):
        try:
            parts = _render(source or _PLAIN, [*messages, *more], bos, eos).split(_MARK)
        except Exception:
            # Whatever a template may raise: the other way may do.
            continue
        # How an earlier answer begins does not matter: its tokens are there already.
        if len(parts) == 4 and (parts[0], parts[3]) == (before, after):
            return parts[2]
    return None
