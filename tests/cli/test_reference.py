"""docs/commands.md is what the commands say of themselves. `python tests/cli/test_reference.py` writes it anew."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from kvd.config import FIELDS

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

`kvd config` shows them all with where they come from. A flag goes before the environment (`KVD_` and the key in
capitals: `KVD_BUDGET=1024`; an empty variable counts as none), that before the repository's `.kvd.toml`, that before
the user's `$XDG_CONFIG_HOME/kvd/config.toml` (`~/.config/kvd/config.toml`). Keys are at the top level of these files;
`kvd config set` and `unset` write the user's.

- Variables that are about one request count in the environment of the command, and come with its request. The others
  count in that of the daemon, from its start on; a command says so when its own have not reached the daemon that runs.
- Anybody may have written a `.kvd.toml`: it lies at the repository's root, is a regular file of at most 4 kB and no
  link, and can set only what the last column allows ("less": not above what it is without that file, `false` being
  less than `true`). Anything else in it is an error, for this repository alone.

| key | default | meaning | environment of | `.kvd.toml` |
|---|---|---|---|---|
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
    """A row for each setting."""
    rows = []
    for name, found in FIELDS.items():
        rule = found.metadata
        cells = (
            f"`{name}`",
            f"`{json.dumps(found.default)}`",
            rule["meaning"],
            "command" if rule["request"] else "daemon",
            rule["repository"] or "no",
        )
        rows.append(f"| {' | '.join(cells)} |")
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
