from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kvd.source import cutter as cutter_module
from kvd.source.cutter import Cutter, Item, WarmCutters

DEEP = b"> " * 5_000 + b"deep\n"
"""Makes the Markdown grammar write past its buffer."""


def item(path: str, data: bytes) -> Item[str]:
    return Item(path, path, data)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_contents_come_in_order_and_from_a_child() -> None:
    items = [item(f"f{number}.py", b"def f%d():\n    pass\n" % number) for number in range(50)]
    with Cutter() as cutter:
        found = list(cutter.cut(items))
        assert cutter.pids
        assert os.getpid() not in cutter.pids
    assert [got.key for got, _ in found] == [f"f{number}.py" for number in range(50)]
    assert [content.chunks[0].symbols for _, content in found] == [(f"f{number}",) for number in range(50)]
    assert not any(content.by_lines for _, content in found)
    assert not cutter.pids


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
        for number, (_, content) in enumerate(cutter.cut(item(f"{n}.py", b"def f(): pass\n") for n in range(300))):
            assert content.chunks[0].chunk.text == "def f(): pass"
            if number == 5:
                os.kill(cutter.pids[0], signal.SIGKILL)
        assert cutter._starts == 2


def test_a_prepared_child_is_the_one_that_is_used() -> None:
    with Cutter() as cutter:
        cutter.prepare()
        (pid,) = cutter.pids
        cutter.prepare()
        ((_, content),) = cutter.cut([item("a.py", b"def a(): pass\n")])
        assert cutter.pids == [pid]
    assert content.chunks[0].symbols == ("a",)


def test_hanging_child(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cutter() as cutter:
        contents = cutter.cut([item("a.py", b"x = 1\n")] * 20)
        next(contents)
        os.kill(cutter.pids[0], signal.SIGSTOP)
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
        contents = cutter.cut([item("a.py", b"x = 1\n")] * 100)
        next(contents)
        (pid,) = cutter.pids
    assert not alive(pid)


def test_folder_with_modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('evil')\n")
    monkeypatch.chdir(tmp_path)
    with Cutter() as cutter:
        ((_, content),) = list(cutter.cut([item("a.py", b"def a(): pass\n")]))
    assert content.chunks[0].symbols == ("a",)
    assert not content.by_lines


def large(number: int) -> Item[str]:
    text = "".join(f"def f{number}_{part}():\n    return {part} + 1\n" for part in range(2_000))
    return item(f"f{number}.py", text.encode())


def test_children_work_side_by_side_and_answers_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutter_module, "_MUCH_BYTES", 100_000)
    items = [large(number) if number % 3 else item(f"f{number}.py", b"def f(): pass\n") for number in range(20)]
    with Cutter(most=3) as cutter:
        found = list(cutter.cut(items))
        assert len(cutter.pids) == 3
        pids = cutter.pids
    assert [got.key for got, _ in found] == [f"f{number}.py" for number in range(20)]
    assert [content.chunks[0].symbols[0] for _, content in found] == [
        f"f{number}_0" if number % 3 else "f" for number in range(20)
    ]
    assert not any(alive(pid) for pid in pids)


def test_death_of_one_of_several_children_costs_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutter_module, "_MUCH_BYTES", 100_000)
    with Cutter(most=2) as cutter:
        found = []
        for got, content in cutter.cut([large(number) for number in range(12)]):
            found.append((got.key, content.by_lines, content.chunks[-1].chunk.end_line))
            if len(found) == 1:
                os.kill(cutter.pids[1], signal.SIGKILL)
    assert [key for key, _, _ in found] == [f"f{number}.py" for number in range(12)]
    assert {end for _, _, end in found} == {4_000}
    assert sum(by_lines for _, by_lines, _ in found) <= 1


def test_what_was_left_early_does_not_answer_the_next_run() -> None:
    with Cutter() as cutter:
        next(cutter.cut([item("a.py", b"x = 1\n")] * 60))
        ((_, content),) = cutter.cut([item("b.py", b"def b(): pass\n")])
    assert content.chunks[0].symbols == ("b",)


def test_a_warm_child_is_used_again_until_it_is_idle() -> None:
    cutters = WarmCutters()
    with cutters.lend() as cutter:
        list(cutter.cut([item("a.py", b"a = 1\n")]))
        (pid,) = cutter.pids
    with cutters.lend() as cutter, cutters.lend() as other:
        assert other is not cutter
        ((_, content),) = cutter.cut([item("b.py", b"def b(): pass\n")])
        assert cutter.pids == [pid]
        list(other.cut([item("a.py", b"a = 1\n")]))
        (second,) = other.pids
    assert content.chunks[0].symbols == ("b",)
    # One is kept, whichever came back first.
    assert alive(pid) + alive(second) == 1
    cutters.close_if_idle(60.0)
    assert alive(pid) + alive(second) == 1
    cutters.close_if_idle()
    assert not alive(pid)
    assert not alive(second)


def test_a_warm_child_that_died_is_replaced() -> None:
    cutters = WarmCutters()
    for _ in range(2):
        with cutters.lend() as cutter:
            ((_, content),) = cutter.cut([item("a.py", b"def a(): pass\n")])
            os.kill(cutter.pids[0], signal.SIGKILL)
            os.waitid(os.P_PID, cutter.pids[0], os.WEXITED | os.WNOWAIT)
    assert content.chunks[0].symbols == ("a",)
    cutters.close_if_idle()
