"""Who may talk to the endpoint: programs of this machine that know the key, and no web pages."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from kvd.serve import errors


class Guard:
    """Refuses requests with a foreign `Host` or without the key, before anything else of them is read.

    A page whose name was made to point to this machine (DNS rebinding) sends its own name as `Host`. There are no CORS
    headers, so browsers let no other page read anything.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        if port == 80:
            self._hosts |= {"127.0.0.1", "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            refusal = errors.response(403, "this Host is not served", "invalid_request_error", "host_not_allowed")
            await refusal(scope, receive, send)
        elif not self._knows(headers.get("authorization", "")):
            message = "no API key, or a wrong one (kvd serve prints where it is)"
            await errors.response(401, message, "invalid_request_error", "invalid_api_key")(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)
