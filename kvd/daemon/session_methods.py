"""The methods `session/...` and `note/...`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kvd.rpc.messages import Message, check_folder, check_text
from kvd.rpc.params import (
    NoteAddParams,
    NoteDeleteParams,
    NoteListParams,
    SessionCreateParams,
    SessionForkParams,
    SessionListParams,
    SessionParams,
    SessionSearchParams,
)
from kvd.service.service import Service

Method = tuple[type[Any], Callable[[Any, Any], Awaitable[Message]]]
"""The params, and what is done with them; the caller makes no difference."""


def session_methods(service: Service) -> dict[str, Method]:
    """By name."""
    talks, root_of = service.conversations, _finder(service)

    async def create(params: SessionCreateParams, caller: Any) -> Message:
        return await talks.create(await root_of(params), params.name)

    async def all_of(params: SessionListParams, caller: Any) -> Message:
        return await talks.all_of(await root_of(params))

    async def show(params: SessionParams, caller: Any) -> Message:
        return await talks.show(await root_of(params), params.name)

    async def fork(params: SessionForkParams, caller: Any) -> Message:
        return await talks.fork(await root_of(params), params.name, params.new_name)

    async def close(params: SessionParams, caller: Any) -> Message:
        return await talks.close(await root_of(params), params.name)

    async def delete(params: SessionParams, caller: Any) -> Message:
        return await talks.delete(await root_of(params), params.name)

    async def search(params: SessionSearchParams, caller: Any) -> Message:
        query = check_text("query", params.query)
        times = params.since, params.until
        return await service.search_sessions(check_folder(params.repo), query, params.limit, *times, caller.emit)

    return {
        "session/create": (SessionCreateParams, create),
        "session/list": (SessionListParams, all_of),
        "session/show": (SessionParams, show),
        "session/fork": (SessionForkParams, fork),
        "session/close": (SessionParams, close),
        "session/delete": (SessionParams, delete),
        "session/search": (SessionSearchParams, search),
    }


def note_methods(service: Service) -> dict[str, Method]:
    """By name."""
    talks, root_of = service.conversations, _finder(service)

    async def add_note(params: NoteAddParams, caller: Any) -> Message:
        return await talks.add_note(await root_of(params), check_text("note", params.text))

    async def notes(params: NoteListParams, caller: Any) -> Message:
        return await talks.notes(await root_of(params))

    async def delete_note(params: NoteDeleteParams, caller: Any) -> Message:
        return await talks.delete_note(await root_of(params), params.number)

    return {
        "note/add": (NoteAddParams, add_note),
        "note/list": (NoteListParams, notes),
        "note/delete": (NoteDeleteParams, delete_note),
    }


def _finder(service: Service) -> Callable[[Any], Awaitable[Path]]:
    return lambda params: service.find_root(check_folder(params.repo))
