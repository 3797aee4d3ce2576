from __future__ import annotations

import pytest

from kvd_cli.progress import Stages


def test_what_may_take_a_minute_is_told_at_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stages = Stages()
    for done in range(3):
        stages.show({"stage": "check", "done": done, "total": 4})
    stages.show({"stage": "prefill", "done": 0, "total": 4})
    stages.close()
    told = capsys.readouterr().err
    assert told == "kvd: checking once whether the model can reuse KV: that may take a minute\n"
