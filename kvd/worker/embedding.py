"""`python -m kvd.worker.embedding`: the child that makes vectors with an embedding model. The daemon starts it.

Frames are those of `kvd.worker.protocol`. `load {kind, path, threads, ...}` comes first, with what
`kvd.models.embedding` says of the model; `embed {texts}` is answered with the vectors as a blob: float32,
little-endian, one row after the other, each of length 1. It ends at the end of its input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from kvd.errors import KvdError, UsageError
from kvd.worker.process import prepare
from kvd.worker.protocol import Message, encode_frame, read_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Engine(Protocol):
    """Texts to vectors."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape [number of texts, dimension]; rows have length 1."""
        ...


def main() -> None:
    answers = prepare()
    serve(sys.stdin.buffer, answers)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends; only what is told in a `KvdError` is survived."""
    engine: Engine | None = None
    while (frame := read_frame(requests)) is not None:
        message, _ = frame
        number, blob = message["id"], b""
        try:
            if message["method"] == "load":
                engine = load_engine(message["params"])
            elif engine is None:
                raise UsageError("no model is loaded")
            else:
                blob = engine.embed([str(text) for text in message["params"]["texts"]]).astype("<f4").tobytes()
            answer: Message = {"id": number, "result": {}}
        except KvdError as error:
            answer = {"id": number, "error": error.to_json()}
        answers.write(encode_frame(answer, blob))
        answers.flush()


def load_engine(params: Message) -> Engine:
    """Load the model that `params`, those of `load`, name. Raises `ModelError`."""
    kind, threads = params["kind"], int(params["threads"])
    if kind == "onnx":
        from kvd.engine.onnx import OnnxEngine

        return OnnxEngine(params, threads)
    if kind == "sentence-transformers":
        from kvd.engine.sentences import SentencesEngine

        return SentencesEngine(params, threads)
    from kvd.engine.embedding import EmbeddingEngine
    from kvd.engine.log import quiet_llama_log

    # It warns of contexts that are larger than what a text may have.
    quiet_llama_log(warnings=False)
    return EmbeddingEngine(Path(params["path"]), threads)


if __name__ == "__main__":
    main()
