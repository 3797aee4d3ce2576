"""Download one file from the model hub over HTTPS, going on from what is there already."""

from __future__ import annotations

import errno
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from http.client import HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from kvd import __version__
from kvd.errors import DownloadError, UsageError
from kvd.models.files import open_private, size_of
from kvd.types import Progress, ProgressCallback

_HUB = "https://huggingface.co"
_CONNECT_SECONDS = 6.0
_READ_SECONDS = 30.0
_READ_BYTES = 1 << 16
_ATTEMPTS = 4
"""Tries in a row that bring nothing; one that brought something starts the count anew."""

_WAIT_SECONDS = 0.5
_PASSING = (408, 416, 425, 429, 500, 502, 503, 504)
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)$")


def mirrored(url: str) -> str:
    """The URL at the mirror that `HF_ENDPOINT` names, if it names one."""
    mirror = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    return mirror + url.removeprefix(_HUB) if mirror and url.startswith(_HUB) else url


def download(url: str, part: Path, size: int, report: ProgressCallback) -> None:
    """Bring `part` to `size` bytes. What it holds already is kept, so an interrupted download goes on.

    Raises `DownloadError` at once when the hub can't be reached, lacks the file or offers another size,
    and after a few tries when the connection keeps breaking; `UsageError` for a URL that is not HTTPS;
    `OSError` when the disk refuses.
    """
    if not _is_secure(url):
        raise UsageError(f"refusing to fetch a model over an open connection: {url}", hint="HF_ENDPOINT=https://...")
    host = urlsplit(url).hostname
    failed = 0
    reached = False
    while True:
        before = size_of(part)
        try:
            if _transfer(url, part, size, report):
                return
            problem = "the connection broke off"
        except OSError as error:
            problem = _passing_problem(error, f"the model hub {host}", reached)
            if (
                isinstance(error, urllib.error.HTTPError)
                and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            ):
                part.unlink(missing_ok=True)
        except http.client.HTTPException as error:
            problem = str(error) or type(error).__name__
        gained = size_of(part) > before
        reached = reached or gained
        failed = 0 if gained else failed + 1
        if failed >= _ATTEMPTS:
            raise DownloadError(f"the download from the model hub {host} keeps failing ({problem})")
        time.sleep(_WAIT_SECONDS * 2**failed)


def _passing_problem(error: OSError, hub: str, reached: bool) -> str:
    """What went wrong, where another try may help; else raises."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code not in _PASSING:
            raise DownloadError(f"{hub} does not have it ({error.code} {error.reason})") from error
        return f"{error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        problem = str(getattr(error.reason, "strerror", None) or error.reason)
        if not reached:
            raise DownloadError(f"{hub} can't be reached ({problem})") from error
        return problem
    if error.errno in _LOCAL:
        raise error
    return error.strerror or str(error) or type(error).__name__


def _transfer(url: str, part: Path, size: int, report: ProgressCallback) -> bool:
    """One request; true when `part` is complete."""
    have = size_of(part)
    if have > size:
        part.unlink()
        have = 0
    if have == size:
        return True
    headers = {"User-Agent": f"kvd/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    with _OPENER.open(request, timeout=_CONNECT_SECONDS) as response:
        done = _offset(response, have, size)
        message = f"from {urlsplit(url).hostname}"
        with open_private(part, append=done > 0) as file:
            while done < size and (block := response.read(min(_READ_BYTES, size - done))):
                file.write(block)
                done += len(block)
                report(Progress("download", done, size, message))
    return done == size


def _offset(response: HTTPResponse, have: int, size: int) -> int:
    """Where in the file the answer starts: at `have`, or at 0 from a server that knows no ranges."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if not match or int(match[1]) != have:
            raise http.client.HTTPException("an answer with the wrong range")
        offered = int(match[2])
    else:
        have = 0
        offered = int(response.headers.get("Content-Length") or size)
    if offered != size:
        raise DownloadError(f"the model hub offers a file of {offered} bytes, expected are {size}")
    return have


def _is_secure(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class _Connection(http.client.HTTPSConnection):
    """A short time to connect, a longer one for a slow line once connected."""

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(_READ_SECONDS)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Connection, request)


class _RedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if not _is_secure(newurl):
            raise DownloadError("the model hub leads to an open connection")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_HttpsHandler, _RedirectHandler)
