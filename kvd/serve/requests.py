"""What a chat completion asks for, out of its JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from kvd.errors import RepositoryError, UsageError
from kvd.rpc.messages import MAX_TOKENS, Message, check_text

PREFIX = "kvd:"
"""Before a folder's absolute path: the name of a model that answers from that repository."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`ignored` counts the messages that the answer takes no notice of: all but the last of the user."""

    model: str
    repo: str
    question: str
    max_tokens: int | None
    stream: bool
    with_usage: bool
    ignored: int


def parse(body: Any) -> ChatRequest:
    """Raises `UsageError` for what makes no sense, `RepositoryError` for a model that is no repository."""
    if not isinstance(body, dict):
        raise UsageError("the request is not a JSON object")
    model = body.get("model")
    if not isinstance(model, str):
        raise UsageError("model must be a text")
    if body.get("n") not in (None, 1):
        raise UsageError("n can only be 1")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise UsageError("messages must be a list")
    options = body.get("stream_options")
    return ChatRequest(
        model=model,
        repo=repository(model),
        question=check_text("question", _last_question(messages)),
        max_tokens=_max_tokens(body),
        stream=body.get("stream") is True,
        with_usage=isinstance(options, dict) and options.get("include_usage") is True,
        ignored=len(messages) - 1,
    )


def repository(model: str) -> str:
    """The folder that a model's name stands for."""
    folder = model.removeprefix(PREFIX)
    if folder == model or not os.path.isabs(folder):
        raise RepositoryError(
            f"there is no model {model!r}: a model is a repository, such as {PREFIX}/home/me/shop",
            hint="GET /v1/models lists those that are indexed",
        )
    return folder


def _last_question(messages: list[Any]) -> str:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return _text(message.get("content"))
    raise UsageError("there is no message of the user")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise UsageError("the user's message must be text")
    return "\n".join(map(str, texts))


def _max_tokens(body: Message) -> int | None:
    value = body.get("max_completion_tokens", body.get("max_tokens"))
    if value is None:
        return None
    if type(value) is not int or not MAX_TOKENS[0] <= value <= MAX_TOKENS[1]:
        raise UsageError(f"max_tokens must be a whole number from {MAX_TOKENS[0]} to {MAX_TOKENS[1]:,}")
    return value
