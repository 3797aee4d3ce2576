"""The endpoint's routes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from kvd.errors import KvdError, RepositoryError, UsageError
from kvd.plain import clean
from kvd.rpc.calls import Call, call
from kvd.rpc.framing import MAX_REQUEST
from kvd.rpc.messages import Message
from kvd.serve import errors, replies, requests
from kvd.serve.guard import Guard


def make_app(token: str, port: int, settings: Message) -> ASGIApp:
    """`settings`: of this process's environment, what is sent along with questions."""

    async def complete(request: Request) -> Response:
        return await _complete(request, settings)

    app = Starlette(
        routes=[
            Route("/v1/models", _models),
            Route("/v1/models/{name:path}", _model),
            Route("/v1/chat/completions", complete, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error, KvdError: _kvd_error, Exception: _fault},
    )
    return Guard(app, token, port)


def _kvd_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, KvdError)
    return errors.from_kvd(error)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return errors.response(error.status_code, message, "invalid_request_error", None)


def _fault(request: Request, error: Exception) -> Response:
    return errors.response(500, "a fault in kvd serve; what it prints says where", "server_error", None)


async def _models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": replies.models(await call("status", {}))})


async def _model(request: Request) -> Response:
    name = request.path_params["name"]
    if not os.path.isdir(folder := requests.repository(name)):
        raise RepositoryError(f"there is no folder {folder}")
    return JSONResponse(replies.model(name))


async def _complete(request: Request, settings: Message) -> Response:
    asked = requests.parse(await _json(request))
    params = {"question": asked.question, "repo": asked.repo, **settings}
    if asked.max_tokens is not None:
        params["max_tokens"] = asked.max_tokens
    running = Call("ask", params)
    running.start()
    watcher = asyncio.create_task(_cancel_when_gone(request, running))
    streaming = False
    try:
        if asked.stream:
            first = await _first_token(running)
            streaming = True
            return StreamingResponse(_events(running, replies.Reply(asked), first), media_type="text/event-stream")
        while await running.next() is not None:
            pass
        return JSONResponse(replies.Reply(asked).whole(running.result))
    finally:
        watcher.cancel()
        if not streaming:
            running.cancel()


async def _json(request: Request) -> object:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_REQUEST:
            raise HTTPException(413, f"a request has at most {MAX_REQUEST:,} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("the request is not JSON") from None


async def _cancel_when_gone(request: Request, running: Call) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    running.cancel()


async def _first_token(running: Call) -> str | None:
    """The answer's first token, None where it has none: until here an error still has a status of its own."""
    while (value := await running.next()) is not None:
        if value.get("kind") == "token":
            return str(value.get("text", ""))
    return None


async def _events(running: Call, reply: replies.Reply, first: str | None) -> AsyncIterator[bytes]:
    """A stream's events. Starlette ends this where the client is gone."""
    try:
        yield replies.event(reply.chunk({"role": "assistant", "content": ""}))
        text = first
        while text is not None:
            yield replies.event(reply.chunk({"content": clean(text)}))
            text = await _first_token(running)
        result = running.result
        # An answer without a model comes in one piece.
        rest = ("" if first is not None else clean(result["answer"])) + replies.sources_text(result)
        if rest:
            yield replies.event(reply.chunk({"content": rest}))
        for ending in reply.last_chunks(result):
            yield replies.event(ending)
        yield b"data: [DONE]\n\n"
    except KvdError as error:
        yield replies.event(errors.body_from_kvd(error))
    finally:
        running.cancel()
