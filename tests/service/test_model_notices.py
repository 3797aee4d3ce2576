"""What is told about the model in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvd.models import active
from kvd.service.service import Service
from kvd_cli.states import lines
from tests.conftest import use_model

from .test_service import Values, question, run


def test_a_model_that_nobody_chose_is_told_of_once(
    repository: Path, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = isolated_home / "packaged.gguf"
    packaged.write_bytes(b"GGUF and nothing else")
    monkeypatch.setattr(active, "installed_smollm", lambda: packaged)

    async def body(service: Service, values: Values) -> None:
        asked = question("say something of sessions")
        first = await service.ask(str(repository), asked, lambda value: None)
        assert first["notices"] == [
            "no model is set up: smollm2-135m answers, a very small one (kvd setup gets a better one)"
        ]
        # While it is loaded that is known.
        assert "notices" not in await service.ask(str(repository), asked, lambda value: None)

    run(body)


def test_which_model_is_loaded_and_which_is_next(repository: Path, fake_model: Path, isolated_home: Path) -> None:
    other = isolated_home / "other.gguf"
    other.write_bytes(b"GGUF and something else")

    async def engine_line(service: Service) -> str:
        daemon = {"version": "1", "pid": 1, "uptime_seconds": 1, "stopping": False, "active": 0}
        state = {**await service.status(), "running": True, "daemon": daemon}
        return next(line for line in lines(state) if line.startswith("engine"))

    async def body(service: Service, values: Values) -> None:
        await service.ask(str(repository), question("say something of sessions"), lambda value: None)
        assert "still with" not in await engine_line(service)
        use_model("other", other)
        assert "still with fake: the next question loads other" in await engine_line(service)
        await service.ask(str(repository), question("say something of sessions"), lambda value: None)
        assert "still with" not in await engine_line(service)

    run(body)
