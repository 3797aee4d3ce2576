"""llama.cpp's own server as a peer: the same model, threads, cells and number of slots, on a loopback port."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, perf_counter, sleep
from types import TracebackType
from typing import Any

from kvd.engine.machine import physical_cores
from kvd.errors import UnavailableError, UsageError

_START_SECONDS, _ASK_SECONDS = 120.0, 3600.0


class LlamaServer:
    """`program` is `llama-server`, built from the same llama.cpp. Ready when entered, gone when left."""

    def __init__(self, program: Path, model: Path, cells: int, slots: int, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        threads = str(physical_cores())
        self._command = [
            *(str(program), "--model", str(model), "--host", "127.0.0.1", "--port", str(self._port)),
            *("--ctx-size", str(cells), "--parallel", str(slots), "--kv-unified", "--flash-attn", "on"),
            *("--batch-size", "512", "--ubatch-size", "512", "--threads", threads, "--threads-batch", threads),
            *("--no-webui", "--no-warmup", "--cache-ram", "0"),
        ]
        self._log = log

    def __enter__(self) -> LlamaServer:
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            except OSError as error:
                raise UsageError(
                    f"can't start {self._command[0]}: {error.strerror}", hint="give --server llama.cpp's llama-server"
                ) from error
        deadline = monotonic() + _START_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or monotonic() > deadline:
                self._end()
                raise UnavailableError("llama-server does not start", hint=f"look at {self._log}")
            sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def complete(self, prompt: Sequence[int], max_tokens: int) -> tuple[float, float, int]:
        """The likeliest answer to a prompt of token ids: when its first and its last text came, and its tokens."""
        body = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0,
            "repeat_penalty": 1.05,
            "repeat_last_n": 256,
            "cache_prompt": True,
            "stream": True,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ASK_SECONDS)
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            return _read_stream(connection.getresponse())
        finally:
            connection.close()


def _read_stream(response: http.client.HTTPResponse) -> tuple[float, float, int]:
    if response.status != http.HTTPStatus.OK:
        raise UnavailableError(f"llama-server answers {response.status}", hint="look at its log")
    times: list[float] = []
    last: dict[str, Any] = {}
    for line in response:
        if line.startswith(b"data: "):
            last = json.loads(line[len(b"data: ") :])
            if last.get("content"):
                times.append(perf_counter())
    return times[0], times[-1], int(last["tokens_predicted"])
