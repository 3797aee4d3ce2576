"""docs/commands.md is what the commands say of themselves. `python tests/cli/test_reference.py` writes it anew."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "commands.md"
_HEAD = """\
# Commands and settings

Made from the program itself (`python tests/cli/test_reference.py`); a test holds it against it.
Exit codes: 0 done (also when nothing relevant was found), 1 failed, 2 usage, 3 daemon or engine unavailable,
4 no model set up, 5 not a readable repository, 6 busy, 130 interrupted. Errors are two lines on stderr, `kvd: ` and
`hint: `; with `--json` stdout holds one object, `{"error": {"code", "message", "hint"}}`.
"""
_SETTINGS = """
## Settings

Top-level keys of `$XDG_CONFIG_HOME/kvd/config.toml` (`~/.config/kvd/config.toml`):

| key | default | meaning |
|---|---|---|
"""


def _help(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kvd_cli.main", *command, "--help"],
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def _settings() -> list[str]:
    """A row for each field of `Settings`: its default and the docstring below it."""
    tree = ast.parse((ROOT / "kvd" / "config.py").read_text("utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings").body
    rows = []
    for field, text in zip(body[1::2], body[2::2], strict=True):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(text, ast.Expr)
        assert isinstance(text.value, ast.Constant)
        assert field.value is not None
        default = ast.unparse(field.value)
        rows.append(
            f"| `{ast.unparse(field.target)}` | {default.lower()} | {' '.join(str(text.value.value).split())} |"
        )
    return rows


def _names(text: str) -> list[str]:
    """The commands that a help text lists."""
    return re.findall(r"^  ([a-z]+) ", text.partition("Commands:")[2], re.MULTILINE)


def render() -> str:
    """The whole page."""
    top = _help()
    parts = [_HEAD, f"```text\n{top}\n```\n"]
    for name in _names(top):
        text = _help(name)
        parts.append(f"## kvd {name}\n\n```text\n{text}\n```\n")
        parts += [f"## kvd {name} {part}\n\n```text\n{_help(name, part)}\n```\n" for part in _names(text)]
    return "\n".join(parts) + _SETTINGS + "\n".join(_settings()) + "\n"


def test_the_page_says_what_the_commands_say() -> None:
    assert render() == PAGE.read_text("utf-8"), "run: python tests/cli/test_reference.py"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
