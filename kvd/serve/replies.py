"""Answers in OpenAI's form."""

from __future__ import annotations

import json
import secrets
import time

from kvd.plain import clean, clean_line, printable
from kvd.rpc.messages import Message
from kvd.serve.requests import PREFIX, ChatRequest

_UNCOMPUTED = ("resident", "reused_hot", "reused_cold")


def models(status: Message) -> list[Message]:
    """A model for each indexed repository, of the daemon's `status`."""
    names = sorted(str(entry["repo"]) for entry in status["indexes"] if entry.get("repo"))
    # A name that is not UTF-8 could not be asked for.
    return [model(PREFIX + name) for name in names if name == printable(name)]


def model(name: str) -> Message:
    return {"id": name, "object": "model", "created": 0, "owned_by": "kvd"}


class Reply:
    """The parts of one completion, which share an id."""

    def __init__(self, asked: ChatRequest) -> None:
        self._asked = asked
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": asked.model,
        }

    def whole(self, result: Message) -> Message:
        content = clean(result["answer"]) + sources_text(result)
        message = {"role": "assistant", "content": content, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result["finish"]}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(result),
            "kvd": self._more(result),
        }

    def chunk(self, delta: Message) -> Message:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def last_chunks(self, result: Message) -> list[Message]:
        """What ends a stream whose text is all sent."""
        end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": result["finish"]}
        ending = [self._chunk([end]) | {"kvd": self._more(result)}]
        return ending + [self._chunk([]) | {"usage": _usage(result)}] * self._asked.with_usage

    def _chunk(self, choices: list[Message]) -> Message:
        return {**self._head, "object": "chat.completion.chunk", "choices": choices}

    def _more(self, result: Message) -> Message:
        """What OpenAI's form has no place for."""
        kept = {name: result[name] for name in ("tokens", "timings_ms", "model")}
        return {"sources": _sources(result), **kept, "ignored_messages": self._asked.ignored}


def sources_text(result: Message) -> str:
    """What stands below an answer: chats show nothing but its text."""
    if not result["sources"]:
        return ""
    lines = [
        f"- {it['path']}:{it['start_line']}-{it['end_line']} {it['symbol']}".rstrip() + " (cited)" * it["cited"]
        for it in _sources(result)
    ]
    return "\n".join(["\n\nSources:", *lines])


def _sources(result: Message) -> list[Message]:
    return [{**it, "path": printable(it["path"]), "symbol": clean_line(it["symbol"])} for it in result["sources"]]


def event(value: Message) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _usage(result: Message) -> Message:
    tokens = result["tokens"]
    prompt = tokens["recalled"] + tokens["fresh"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens["generated"],
        "total_tokens": prompt + tokens["generated"],
        "prompt_tokens_details": {"cached_tokens": sum(tokens[name] for name in _UNCOMPUTED)},
    }
