"""`kvd bench kv` as its developers run it: the real small model on a small repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvd.bench import report
from kvd.bench.schemes import SHIPPED
from tests.conftest import Kvd

QUESTIONS = """
repository = "example/example"
url = "https://example.invalid"
revision = "0"
language = "python"

[[questions]]
id = "example-1"
question = "When is a session expired?"
answer = "When `time.monotonic()` is later than its `expires_at`, which `Session.is_expired` checks."
files = ["src/session.py"]
"""


@pytest.fixture
def arguments(tmp_path: Path, repository: Path) -> list[str]:
    """Question set and checkout in a folder for the run."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "example.toml").write_text(QUESTIONS)
    (tmp_path / "work" / "checkouts").mkdir(parents=True)
    (tmp_path / "work" / "checkouts" / "example").symlink_to(repository)
    return ["--questions", str(tmp_path / "sets"), "--work", str(tmp_path / "work")]


@pytest.mark.slow
def test_quality_alone(kvd: Kvd, arguments: list[str], isolated_home: Path) -> None:
    nothing_else = ("--variants", "0", "--timed", "0", "--peers", "0")
    done = kvd.run("bench", "kv", *arguments, *nothing_else, timeout=280)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[-1].startswith("what quantizing adds to the KL of float16: ")
    assert [line.split("  ")[0] for line in shown[-3:-1]] == ["kvd", "kvd, float16"]
    # The user's own daemon, index and store were left alone.
    assert not (isolated_home / "cache" / "kvd" / "kv.db").exists()
    assert kvd.json("status")["running"] is False


@pytest.mark.slow
def test_a_run_measures_everything(kvd: Kvd, arguments: list[str], tmp_path: Path) -> None:
    result = kvd.json("bench", "kv", *arguments, "--quick", "--plots", str(tmp_path / "plots"), timeout=280)
    assert "error" not in result, result
    assert result["gate"]["reuse"] == "on"
    assert result["questions"] == ["example-1"]
    rows = {row["name"]: row["outcomes"][0] for row in [*result["quality"], *result["variants"]]}
    assert 0 < rows["kvd"]["kl"] < 1
    assert rows["full prefill, other batches"]["kl"] < 0.01
    assert rows["INT8"]["kl"] == pytest.approx(rows["kvd, float16"]["kl"], abs=0.02)
    shares = [rows[f"float16, {count} recomputed"]["recompute_share"] for count in (0, 4, 8, 16, 32)]
    assert shares == sorted(shares)
    assert shares[0] == 0 < shares[1]
    times = result["speed"]["times"][0]
    recalled = result["recalled"][0]
    tiers = {"full": "prefilled", "cold": "reused_cold", "hot": "reused_hot", "resident": "resident"}
    for kind, source in tiers.items():
        tokens = times[kind][0]["tokens"]
        assert tokens["recalled"] == recalled
        assert tokens[source] + tokens["recomputed"] == recalled
        assert times[kind][0]["ttft_ms"] > 0
    f16, q4 = result["peers"]
    assert (f16["cells"], q4["cells"]) == ("f16", "q4_0")
    # The same state restored; only the last token is decoded in another batch.
    assert f16["outcome"]["kl"] < 0.01
    assert f16["outcome"]["top1"] > 0.9
    assert q4["bytes_per_token"] < 0.4 * f16["bytes_per_token"]
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {"kv-quality.png", "kv-ttft.png"}
    text = "\n".join(report.lines(result))
    expected = ("gate: reuse on", "kvd, float16", "quantizing adds", "full prefill / cold", "bits a value", "q4_0")
    for words in expected:
        assert words in text


def test_a_missing_set_is_one_line(kvd: Kvd, tmp_path: Path) -> None:
    done = kvd.run("bench", "kv", "--questions", str(tmp_path), "--json", timeout=120)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2].startswith("kvd: no question sets in ")
    assert json.loads(done.stdout)["error"]["code"] == "usage"


@pytest.mark.slow
def test_schemes_are_compared_on_real_kv(kvd: Kvd, arguments: list[str]) -> None:
    result = kvd.json("bench", "codec", *arguments, timeout=280)
    assert "error" not in result, result
    rows = {row["name"]: row for row in result["rows"]}
    shipped = rows[SHIPPED.name]
    assert rows["8 bits"]["key_error"] < shipped["key_error"] < rows["3 bits"]["key_error"]
    assert rows["8 bits"]["bits"] > shipped["bits"] > rows["3 bits"]["bits"]
    assert shipped["key_error"] < rows["one symmetric scale for a tensor"]["key_error"]
    assert rows["zstd -19"]["bits"] <= shipped["bits"]
    assert rows["zstd -19"]["kl"] == shipped["kl"]
    assert shipped["entropy_of_codes"] <= 4
