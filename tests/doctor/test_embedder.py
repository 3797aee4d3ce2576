from __future__ import annotations

from pathlib import Path

from kvd.doctor.native import embedder
from tests.fakes.tiny_bert import WIDTH, write_tiny_bert


def test_the_default_needs_no_trial() -> None:
    assert embedder("default") == []


def test_a_model_is_tried(tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "bert.gguf")
    (finding,) = embedder(str(model))
    assert (finding.part, finding.verdict) == ("embedder", "ok")
    assert finding.text == f"{model}, {WIDTH} numbers a vector (gguf)"
    model.write_bytes(b"GGUF and nothing else")
    (finding,) = embedder(str(model))
    assert finding.verdict == "fault"
    assert finding.hint == "kvd config unset embedder"
