"""An embedder that runs in a child process, `python -m kvd.worker.embedding`; see there for its requests.

Native code can kill or hang that process. Then this call fails, and after a while the next one starts another.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from kvd.errors import KvdError, ModelError, UnavailableError, error_from_json
from kvd.worker.protocol import ProtocolError, encode_frame, read_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "kvd.worker.embedding")
LONGEST_S = 120.0
"""For loading the model, and for the texts of one request; a child that takes longer is ended."""

QUERY_S = 3.0
"""So long a question waits for its vector, or for what is done before it."""

HANGS_S = 10.0
"""A child that is at one question's vector for so long is ended."""

_STOP_S = 5.0
_FIRST_REST_S, _LONGEST_REST_S = 5.0, 300.0
"""After a failure no other child is started for so long, twice as long after each further one."""

Result = TypeVar("Result")


class EmbeddingChild:
    """An `Embedder`. `name` holds the hash of the model's files, so that others of the same shape have other vectors.

    `load`: what the process is told of the model, by default that it is a GGUF file; `prompts`: what is put before
    a question, and before a document. Any thread may use it; requests wait for one another. All of them are made by
    one thread, as the system ends the child with the thread that started it.
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
        self._thread = ThreadPoolExecutor(1, "embedder")
        self._process: subprocess.Popen[bytes] | None = None
        self._used = 0.0
        self._began: float | None = None
        """When the request at work began, as `time.monotonic()`."""
        self._interrupted = False
        self._failures = 0
        self._fault: KvdError | None = None
        self._rests_until = 0.0

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape [number of texts, dimension]. Raises `UnavailableError` when the child dies or hangs, `ModelError` for
        its errors; the same again for a while after that."""
        texts = [self._before_document + text for text in texts]
        return self._vectors(texts, self._submit(lambda: self._ask(texts, LONGEST_S)).result())

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Shape [dimension]. As `embed_documents`, but raises `UnavailableError` also where it takes too long."""
        began = self._began
        if began is not None and time.monotonic() - began > QUERY_S:
            # It is slow, loads its model or hangs: whoever comes next need not find that out.
            raise _late(QUERY_S)
        waiting = self._submit(lambda: self._ask([self._before_question + text], HANGS_S))
        try:
            blob = waiting.result(QUERY_S)
        except FutureTimeoutError:
            waiting.cancel()
            raise _late(QUERY_S) from None
        vector: NDArray[np.float32] = self._vectors([text], blob)[0]
        return vector

    def _vectors(self, texts: Sequence[str], blob: bytes) -> NDArray[np.float32]:
        import numpy as np

        vectors = np.frombuffer(blob, "<f4").astype(np.float32)
        if vectors.size != len(texts) * self.dimension:
            raise ModelError(f"{self._path} gave vectors of another size", hint="kvd logs")
        return vectors.reshape(len(texts), self.dimension)

    def close(self) -> None:
        """End the process; a later call starts another."""
        self._submit(self._end).result()
        self._interrupted, self._fault = False, None

    def interrupt(self) -> None:
        """Kill the process, whatever it is at; until `close`, whoever waits for it or comes gets `UnavailableError`."""
        self._interrupted = True
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

    def _submit(self, work: Callable[[], Result]) -> Future[Result]:
        return self._thread.submit(work)

    def _ask(self, texts: Sequence[str], patience: float) -> bytes:
        """In the embedder's thread, as all that follows."""
        if self._interrupted:
            raise UnavailableError("the embedder was ended", hint="kvd logs")
        if self._fault is not None and time.monotonic() < self._rests_until:
            raise type(self._fault)(self._fault.message, self._fault.hint)
        self._began = self._used = time.monotonic()
        try:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            blob = self._exchange("embed", {"texts": list(texts)}, patience)
        except KvdError as error:
            self._rest(error)
            raise
        finally:
            self._began = None
        self._failures, self._fault = 0, None
        return blob

    def _rest(self, fault: KvdError) -> None:
        seconds = min(_FIRST_REST_S * 2**self._failures, _LONGEST_REST_S)
        self._failures, self._fault = min(self._failures + 1, 10), fault
        self._rests_until = time.monotonic() + seconds
        _log.warning("embedder: %s; not tried again for %.0f s", fault.message, seconds)

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env=os.environ.copy()
            )
        except OSError as error:
            raise UnavailableError(f"can't start the embedder: {error.strerror}", hint="kvd logs") from error
        try:
            self._exchange("load", self._load, LONGEST_S)
        except KvdError:
            # Without its model it is of no use to the next request.
            self._end()
            raise

    def _exchange(self, method: str, params: dict[str, Any], patience: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(patience, end)
        watchdog.daemon = True
        watchdog.start()
        try:
            answer = _answer(process.stdin, process.stdout, {"id": 1, "method": method, "params": params})
        finally:
            watchdog.cancel()
        if answer is None:
            self._end()
            raise _late(patience) if late.is_set() else UnavailableError("the embedder stopped", hint="kvd logs")
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


def _late(seconds: float) -> UnavailableError:
    return UnavailableError(f"the embedder did not answer within {seconds:g} s", hint="kvd logs")


def _answer(requests: IO[bytes], answers: IO[bytes], message: dict[str, Any]) -> tuple[dict[str, Any], bytes] | None:
    """None where the child is gone or sends what is no frame."""
    try:
        requests.write(encode_frame(message))
        requests.flush()
        return read_frame(answers)
    except (OSError, ProtocolError, ValueError):
        return None
