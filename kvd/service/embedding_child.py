"""An embedder that runs in a child process, `python -m kvd.worker.embedding`; see there for its requests.

Native code can kill that process. Then this call fails, and the next one starts another.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvd.errors import KvdError, ModelError, UnavailableError, error_from_json
from kvd.worker.protocol import ProtocolError, encode_frame, read_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COMMAND = (sys.executable, "-m", "kvd.worker.embedding")
LONGEST_S = 120.0
"""For one request; a child that takes longer is ended."""

_STOP_S = 5.0


class EmbeddingChild:
    """An `Embedder`. `name` holds the hash of the model's files, so that others of the same shape have other vectors.

    `load`: what the process is told of the model, by default that it is a GGUF file; `prompts`: what is put before
    a question, and before a document. Any thread may use it; requests wait for one another.
    """

    version = 1

    def __init__(
        self,
        path: Path,
        sha256: str,
        dimension: int,
        threads: int,
        command: Sequence[str] = COMMAND,
        load: Mapping[str, Any] | None = None,
        prompts: tuple[str, str] = ("", ""),
    ) -> None:
        self._load = {**(load or {"kind": "gguf", "path": str(path)}), "threads": threads}
        self.name = f"{self._load['kind']}-{sha256[:16]}"
        self.dimension = dimension
        self._path, self._command = path, tuple(command)
        self._before_question, self._before_document = prompts
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._used = 0.0

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape [number of texts, dimension]. Raises `UnavailableError` when the child dies, `ModelError` for its
        errors."""
        return self._embed([self._before_document + text for text in texts])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._embed([self._before_question + text])[0]
        return vector

    def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        with self._lock:
            self._used = time.monotonic()
            blob = self._ask("embed", {"texts": list(texts)})
        vectors = np.frombuffer(blob, "<f4").astype(np.float32)
        if vectors.size != len(texts) * self.dimension:
            raise ModelError(f"{self._path} gave vectors of another size", hint="kvd logs")
        return vectors.reshape(len(texts), self.dimension)

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._end()

    def interrupt(self) -> None:
        """Kill the process, whatever it is at; who waits for it gets `UnavailableError`."""
        process = self._process
        if process is not None:
            process.kill()

    def close_if_idle(self, seconds: float) -> None:
        """`close` if nothing was asked for so long."""
        if self._process is not None and time.monotonic() - self._used > seconds:
            self.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _ask(self, method: str, params: dict[str, Any]) -> bytes:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
        return self._exchange(method, params)

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env=os.environ.copy()
            )
        except OSError as error:
            raise UnavailableError(f"can't start the embedder: {error.strerror}", hint="kvd logs") from error
        try:
            self._exchange("load", self._load)
        except KvdError:
            # Without its model it is of no use to the next request.
            self._end()
            raise

    def _exchange(self, method: str, params: dict[str, Any]) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(LONGEST_S, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            answer = _answer(process.stdin, process.stdout, {"id": 1, "method": method, "params": params})
        finally:
            watchdog.cancel()
        if answer is None:
            self._end()
            raise UnavailableError("the embedder stopped", hint="kvd logs")
        message, blob = answer
        if "error" in message:
            raise error_from_json(message["error"])
        return blob

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        # Its end is the end of its input; one that computes does not see that.
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answer(requests: IO[bytes], answers: IO[bytes], message: dict[str, Any]) -> tuple[dict[str, Any], bytes] | None:
    """None where the child is gone or sends what is no frame."""
    try:
        requests.write(encode_frame(message))
        requests.flush()
        return read_frame(answers)
    except (OSError, ProtocolError, ValueError):
        return None
