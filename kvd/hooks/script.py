"""What git runs: POSIX sh that starts kvd in the background and is gone after some milliseconds.

It has no names of folders in it but that of the Python that it starts, so that a repository may be moved. It starts
nothing itself but after a second, once for all that happens until then, and `kvd hooks run` looks whether
there is an index at all.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass

EVENTS = ("post-commit", "post-checkout", "post-merge", "post-rewrite")

SAVED = ".before-kvd"
"""What the name of an existing hook gets at its end; kvd's runs it first."""

_MARK = "# kvd hooks: "
_HEAD = f"""\
#!/bin/sh
{_MARK}brings kvd's index up to date, in the background. `kvd hooks uninstall` removes it.
"""

# $1 is absent for post-commit alone. That of each commit of a rebase is passed over: post-rewrite follows, and knows
# what `git rebase` is, whereas a series of cherry-picks or merges has no hook at its end and counts once a second.
_NOTIFY = """\
kvd_python={python}
kvd_notify() {{
    [ "${{KVD_HOOKS-}}" != 0 ] || return 0
    [ -x "$kvd_python" ] || command -v kvd >/dev/null || return 0
    kvd_dir=${{GIT_DIR:-.git}}
    if [ -f "$kvd_dir" ]; then
        IFS= read -r kvd_dir <"$kvd_dir" || :
        kvd_dir=${{kvd_dir#gitdir: }}
    fi
    if [ $# -eq 0 ] && {{ [ -d "$kvd_dir/rebase-merge" ] || [ -d "$kvd_dir/rebase-apply" ]; }}; then
        return 0
    fi
    if {{ read -r kvd_pid <"$kvd_dir/kvd-hook.pid" && kill -0 "$kvd_pid"; }} 2>/dev/null; then
        return 0
    fi
    (
        trap '' HUP
        sleep 1
        rm -f "$kvd_dir/kvd-hook.pid"
        unset $(env | sed -n 's/^\\(GIT_[A-Za-z0-9_]*\\)=.*/\\1/p')
        [ ! -x "$kvd_python" ] || exec "$kvd_python" -P -m kvd_cli.main hooks run
        exec kvd hooks run
    ) </dev/null >/dev/null 2>&1 &
    {{ echo $! >"$kvd_dir/kvd-hook.pid"; }} 2>/dev/null || :
}}
"""

_SHELL = re.compile(rb"#![ \t]*((?:/\S*/)?(?:env[ \t]+)?(?:sh|bash|dash|ksh)(?:[ \t]+-[a-z]+)?)[ \t]*\n")


@dataclass(frozen=True, slots=True)
class Before:
    """The hook that was there before: its content, and whether husky ran it, which takes each for one of `sh -e`."""

    content: bytes
    husky: bool


def command(python: str) -> str:
    """The value of `hook.kvd.command`; git appends its arguments to the last line."""
    return _notify(python) + "kvd_notify"


def file_text(event: str, python: str, before: Before | None) -> bytes:
    """The whole hook file. Its exit status is that of the hook before it, or 0."""
    first = "" if before is None else _first(event, before)
    return os.fsencode(f'{_HEAD}{_notify(python)}kvd_status=0\n{first}kvd_notify "$@" || :\nexit $kvd_status\n')


def is_ours(content: bytes) -> bool:
    """Whether kvd has written this hook file."""
    return content.startswith(b"#!") and content.partition(b"\n")[2].startswith(_MARK.encode())


def python_of(text: str) -> str:
    """The Python that a command or a hook file starts, or ""."""
    found = re.search(r"^kvd_python=(.*)$", text, re.MULTILINE)
    return shlex.split(found[1])[0] if found else ""


def _notify(python: str) -> str:
    return _NOTIFY.format(python=shlex.quote(python))


def _first(event: str, before: Before) -> str:
    saved = '"${0%/*}/' + event + SAVED + '"'
    runs = saved
    shell = _shell_that_reads_its_name(before)
    if shell:
        # Read in by its shell instead, which takes $0 from its arguments: `basename "$0"` is still the event.
        runs = f"{shell} -c '. {saved}' " + '"${0%/*}/' + event + '"'
    there = "-f" if before.husky else "-x"
    return f'if [ {there} {saved} ]; then\n    {runs} "$@" || kvd_status=$?\nfi\n'


def _shell_that_reads_its_name(before: Before) -> str:
    """The shell of a script that looks at its own name, which may decide what it does, or ""."""
    if before.husky:
        return "sh -e"
    found = _SHELL.match(before.content)
    # In bash the two together tell whether a script was read in by another.
    named = b"$0" in before.content or b"${0" in before.content
    if found is None or not named or b"BASH_SOURCE" in before.content:
        return ""
    return found[1].decode()
