"""Models of every kind that llama.cpp tells apart, tiny and random: none may kill the engine child, each is told apart.

What they answer means nothing; the checks are on what is computed, shared and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from kvd.engine.llama import SEQUENCES, BatchToken, LlamaEngine
from kvd.types import KVShape
from kvd.worker.answerer import Answerer, Question
from kvd.worker.bringing import Listener
from kvd.worker.decoding import LIVE, PREFIX, SPARE, WORK, decode_run
from kvd.worker.probe import NotMovableError, probe
from kvd.worker.prompt import Piece, PromptBuilder
from tests.fakes.tiny_models import KINDS, WINDOW, write_tiny_model

from .conftest import SOURCES
from .test_child import Wire

MOVABLE = {"llama": "norm", "qwen2": "neox"}
"""How the channels of keys are paired."""
REFUSED = {
    "llama3-factors": r"keys of layer 0 moved by 97 positions are off by",
    "qwen2vl": r"rope type 8",
    "gemma3": r"sliding window",
    "mamba": r"recurrent",
    "jamba": r"hybrid",
    "lfm2": r"hybrid",
}
"""Why keys can't be moved."""
ROOM = 2048
"""Cells for a question: with this vocabulary a token is hardly two characters."""

TEXT = SOURCES["src/auth.py"] + SOURCES["src/retry.py"]

Rows = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: write_tiny_model(folder / f"{kind}.gguf", kind) for kind in KINDS}


@pytest.fixture
def engine(models: dict[str, Path], kind: str) -> Iterator[LlamaEngine]:
    engine = LlamaEngine(models[kind], n_ctx=ROOM, threads=1)
    yield engine
    engine.close()


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path / "kv.db")
    yield wire
    wire.close()


def test_every_kind_is_expected_to_be_movable_or_not() -> None:
    assert {*MOVABLE, *REFUSED} == set(KINDS)


def test_a_kind_is_the_same_file_every_time(models: dict[str, Path], tmp_path: Path) -> None:
    again = write_tiny_model(tmp_path / "again.gguf", "llama")
    assert again.read_bytes() == models["llama"].read_bytes()
    assert all(path.stat().st_size < 2_000_000 for path in models.values())


@pytest.mark.parametrize("kind", MOVABLE)
def test_plain_attention_is_movable(engine: LlamaEngine, kind: str) -> None:
    movable = probe(engine, (LIVE, WORK, SPARE))
    assert movable.shape == KVShape(3, 64)
    assert (movable.rope.pairing, movable.rope.head_dim, movable.rope.n_rot) == (MOVABLE[kind], 32, 32)


@pytest.mark.parametrize("kind", REFUSED)
def test_other_kinds_are_refused_for_their_reason(engine: LlamaEngine, kind: str) -> None:
    with pytest.raises(NotMovableError, match=REFUSED[kind]):
        probe(engine, (LIVE, WORK, SPARE))
    assert [engine.last_position(sequence) for sequence in (LIVE, WORK, SPARE)] == [-1, -1, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_text_survives_the_vocabulary(engine: LlamaEngine, kind: str) -> None:
    text = TEXT + "\tname = 'Zoë'  # <s></s><|im_end|>\r\n"
    tokens = engine.tokenize(text)
    assert b"".join(engine.piece(token) for token in tokens).decode() == text
    assert engine.special_text(engine.eos) == "</s>"
    assert not any(engine.ends_answer(token) for token in tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_child_answers_with_every_kind(wire: Wire, models: dict[str, Path], kind: str) -> None:
    loaded = wire.load(models[kind], n_ctx=ROOM, threads=1, model_name=kind)["result"]
    assert loaded["reuse"] == loaded["gate"]["reuse"] == ("on" if kind in MOVABLE else "prefix-only")
    assert (loaded["gate"]["figures"] is None) == (kind in REFUSED)
    if kind in REFUSED:
        assert re.search(REFUSED[kind], loaded["reuse_reason"])
    answers = [wire.ask(number, chunks=_two_chunks())["result"] for number in (2, 3)]
    assert answers[0]["answer"] == answers[1]["answer"]
    for answer in answers:
        assert sorted(answer["chunks"]) == [0, 1]
        assert (answer["finish"], answer["tokens"]["generated"]) == ("length", 8) or answer["finish"] == "stop"
    counts = answers[1]["tokens"]
    tier = "reused_hot" if loaded["reuse"] == "on" else "prefilled"
    assert counts[tier] == counts["recalled"] > 100
    assert wire.call(4, "shutdown") == {"id": 4, "result": {}}
    assert wire.process.wait(10) == 0


def _two_chunks() -> list[dict[str, object]]:
    return [
        {
            "path": path,
            "start_line": 1,
            "end_line": 9,
            "scope": "",
            "language": "python",
            "text": SOURCES[path],
            "vector": "",
        }
        for path in ("src/retry.py", "src/auth.py")
    ]


def _decode(engine: LlamaEngine, tokens: list[int], start: int, sequence: int) -> Rows:
    """The logits behind every token, `[len(tokens), vocab_size]`."""
    engine.decode([BatchToken(token, start + index, (sequence,), True) for index, token in enumerate(tokens)])
    return np.stack([engine.logits(index) for index in range(len(tokens))])


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prefix_goes_on_as_if_it_were_the_sequences_own(engine: LlamaEngine, kind: str) -> None:
    """States of recurrent layers too, and in windows that have left the prefix's start behind; to the last bit."""
    tokens = engine.tokenize(TEXT)
    prefix, rest, other = tokens[: 3 * WINDOW], tokens[-64:-32], tokens[-32:]
    _decode(engine, prefix, 0, PREFIX)
    own = _decode(engine, rest, len(prefix), PREFIX)
    engine.clear((PREFIX,))
    _decode(engine, prefix, 0, PREFIX)
    for tail in (rest, other, rest):
        engine.share(PREFIX, LIVE)
        shared = _decode(engine, tail, len(prefix), LIVE)
        engine.clear((LIVE,))
    assert np.array_equal(shared, own)
    assert engine.last_position(PREFIX) == len(prefix) - 1
    # The prefix is in them: without it they are others.
    assert np.abs(_decode(engine, rest, len(prefix), LIVE) - own).max() > 0.1


@pytest.mark.parametrize("prefix_reuse", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_computed_whole_starts_with_the_prefix(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch, kind: str, prefix_reuse: bool
) -> None:
    """The logits before the first token are those of one sequence that holds prefix, chunk and question."""
    met: list[Rows] = []
    sample = engine.sample

    def looked_at(sampler: object, index: int) -> int:
        met.append(engine.logits(index))
        return sample(sampler, index)

    monkeypatch.setattr(engine, "sample", looked_at)
    prompts = PromptBuilder(engine)
    piece = Piece(0, "src/auth.py", 1, 9, "", prompts.body(SOURCES["src/auth.py"]))
    question = Question("How is a password checked?", [piece], 600, 8)
    listener = Listener(lambda _: None, lambda _: None, lambda _: None, lambda _: None, lambda: None)
    decode_run(engine, prompts.prefix, 0, PREFIX, lambda: None)
    Answerer(engine, prompts, None, 0, prefix_reuse).answer(question, listener)
    engine.clear(range(SEQUENCES))
    position = index = 0
    for part in (prompts.prefix, (*prompts.header(1, piece), *piece.body), prompts.ending(question.text)):
        index = decode_run(engine, part, position, LIVE, lambda: None, logits=True)
        position += len(part)
    # Cells in another order are summed in another order; without the prefix logits are off by 0.5 and more.
    assert np.abs(met[0] - engine.logits(index)).max() < 0.02
