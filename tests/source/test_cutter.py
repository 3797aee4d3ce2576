from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kvd.source import cutter as cutter_module
from kvd.source.cutter import Cutter, Item, prepared

DEEP = b"> " * 5_000 + b"deep\n"
"""Makes the Markdown grammar write past its buffer."""


def item(path: str, data: bytes) -> Item[str]:
    return Item(path, path, data)


def test_contents_come_in_order_and_from_a_child() -> None:
    items = [item(f"f{number}.py", b"def f%d():\n    pass\n" % number) for number in range(50)]
    with Cutter() as cutter:
        found = list(cutter.cut(items))
        assert cutter._child is not None
        assert cutter._child.pid != os.getpid()
    assert [got.key for got, _ in found] == [f"f{number}.py" for number in range(50)]
    assert [content.chunks[0].symbols for _, content in found] == [(f"f{number}",) for number in range(50)]
    assert not any(content.by_lines for _, content in found)
    assert cutter._child is None


def test_large_files_do_not_block_the_pipes() -> None:
    data = b"value = 'some text that is long enough to matter'\n" * 2_000
    with Cutter() as cutter:
        found = list(cutter.cut([item(f"f{number}.py", data) for number in range(9)]))
    assert len({content.chunks[-1].chunk.end_line for _, content in found}) == 1


def test_crash_of_a_parser_costs_its_file_the_syntax_only() -> None:
    items = [item("a.py", b"def a(): pass\n"), item("deep.md", DEEP), item("b.py", b"def b(): pass\n")]
    with Cutter() as cutter:
        found = {got.key: content for got, content in cutter.cut(items)}
    assert found["a.py"].chunks[0].symbols == ("a",)
    assert found["b.py"].chunks[0].symbols == ("b",)
    assert found["deep.md"].by_lines
    assert found["deep.md"].language == "markdown"
    assert "".join(chunk.chunk.text for chunk in found["deep.md"].chunks).endswith("deep")


def test_killed_child_is_started_again() -> None:
    with Cutter() as cutter:
        for number, (_, content) in enumerate(cutter.cut(item(f"{n}.py", b"def f(): pass\n") for n in range(30))):
            assert content.chunks[0].chunk.text == "def f(): pass"
            if number == 5 and cutter._child is not None:
                os.kill(cutter._child.pid, signal.SIGKILL)
        assert cutter._starts == 2


def test_a_prepared_child_is_taken_once_and_ended() -> None:
    with prepared():
        child = cutter_module._prepared.child
        for taken in (True, False):
            with Cutter() as cutter:
                list(cutter.cut([item("a.py", b"def a(): pass\n")]))
                assert (cutter._child is child) == taken
    with prepared():
        unused = cutter_module._prepared.child
    assert child.returncode == unused.returncode == -signal.SIGKILL
    assert cutter_module._prepared.child is None


def test_hanging_child(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cutter() as cutter:
        contents = cutter.cut([item("a.py", b"x = 1\n")] * 20)
        next(contents)
        assert cutter._child is not None
        os.kill(cutter._child.pid, signal.SIGSTOP)
        monkeypatch.setattr(cutter_module, "FILE_TIMEOUT_S", 0.05)
        for _ in range(12):
            _, content = next(contents)
        assert content.chunks[0].chunk.text == "x = 1"


def test_no_child_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with Cutter() as cutter:
        ((_, content),) = list(cutter.cut([item("a.py", b"def a(): pass\n")]))
    assert content.by_lines
    assert content.chunks[0].chunk.text == "def a(): pass"


def test_stops_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutter_module, "MAX_STARTS", 2)
    with Cutter() as cutter:
        found = [content for _, content in cutter.cut([item("deep.md", DEEP)] * 4)]
        assert cutter._starts == 2
    assert [content.by_lines for content in found] == [True] * 4


def test_leaving_early_ends_the_child() -> None:
    with Cutter() as cutter:
        next(cutter.cut([item("a.py", b"x = 1\n")] * 20))
        child = cutter._child
    assert child is not None
    assert child.returncode is not None


def test_folder_with_modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('evil')\n")
    monkeypatch.chdir(tmp_path)
    with Cutter() as cutter:
        ((_, content),) = list(cutter.cut([item("a.py", b"def a(): pass\n")]))
    assert content.chunks[0].symbols == ("a",)
    assert not content.by_lines
