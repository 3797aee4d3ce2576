"""Installing, removing and telling of the four hooks of a repository, by whichever way its git has."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from kvd import paths
from kvd.hooks import configured, script
from kvd.hooks.configured import Configured
from kvd.hooks.files import HookFile
from kvd.hooks.handover import is_off
from kvd.hooks.repository import Repository

Owner = Literal["kvd", "other", "none"]


@dataclass(frozen=True, slots=True)
class HookState:
    """One hook. `owner`: who has installed it; `place`: a file, or "git config hook.kvd".

    `runs`: whether git runs it; `why`: why not, or what keeps it from doing anything, or "". `before`: the file that
    kvd's runs first, or "".
    """

    event: str
    owner: Owner
    place: str
    runs: bool
    why: str = ""
    before: str = ""


def install(repository: Repository) -> None:
    """Have git tell kvd of what changes; does nothing where that is so. Raises `KvdError`."""
    if repository.configured:
        configured.install(repository, sys.executable)
        # Of an older git: kvd would be told twice.
        _remove_files(repository)
        return
    files = _own_files(repository)
    for file in files:
        # What can't be read is told of before anything is changed.
        file.content()
    for file in files:
        file.install(sys.executable)
    configured.uninstall(repository)


def uninstall(repository: Repository) -> None:
    """Take away what kvd has installed, by either way, and put back what was there before. Raises `KvdError`."""
    configured.uninstall(repository)
    _remove_files(repository)


def status(repository: Repository) -> dict[str, Any]:
    """`repo`, `git` (its version), `method` (`config` or `files`: how this git is served), `folder` (where hook files
    belong), `hooks` (a `HookState` for each), `notes` (lines for the user). Raises `KvdError`.
    """
    return {
        "repo": str(repository.root),
        "git": repository.version,
        "method": "config" if repository.configured else "files",
        "folder": str(repository.own_folder),
        "hooks": [asdict(state) for state in _states(repository)],
        "notes": list(_notes(repository)),
    }


def _remove_files(repository: Repository) -> None:
    for file in [*_own_files(repository), *_default_files(repository)]:
        file.uninstall()


def _own_files(repository: Repository) -> list[HookFile]:
    return [HookFile(event, repository.own_folder, repository.husky) for event in script.EVENTS]


def _default_files(repository: Repository) -> list[HookFile]:
    """Those that git passes over because of core.hooksPath."""
    if repository.own_folder == repository.default_folder:
        return []
    return [HookFile(event, repository.default_folder) for event in script.EVENTS]


def _states(repository: Repository) -> Iterator[HookState]:
    config = configured.read(repository)
    passed_over = {file.event: file for file in _default_files(repository)}
    for file in _own_files(repository):
        found = [_of_config(repository, config, file.event), _of_file(repository, file)]
        if not repository.configured:
            # Where a hook would be put is told where there is none.
            found.reverse()
        if file.event in passed_over:
            found.append(_of_file(repository, passed_over[file.event]))
        yield min(found, key=_rank)


def _rank(state: HookState) -> int:
    """What says most of an event comes first."""
    if state.owner == "kvd":
        return 0 if state.runs else 1
    return 2 if state.owner == "other" and state.runs else 3 if state.owner == "other" else 4


def _of_config(repository: Repository, config: Configured, event: str) -> HookState:
    place = "git config hook.kvd"
    if not config.command or event not in config.events:
        return HookState(event, "none", place, runs=False)
    if not repository.configured:
        return HookState(event, "kvd", place, runs=False, why=f"git {repository.version} runs no hooks of its config")
    off = config.switched_off(event)
    why = f"{off} is false" if off else _nothing_to_start(config.command)
    return HookState(event, "kvd", place, runs=not off, why=why)


def _of_file(repository: Repository, file: HookFile) -> HookState:
    content = file.content()
    if content is None:
        return HookState(file.event, "none", str(file.path), runs=False)
    ours = script.is_ours(content)
    why = _not_run(repository, file)
    before = str(file.saved) if ours and os.path.lexists(file.saved) else ""
    runs = not why
    if ours and runs:
        why = _nothing_to_start(os.fsdecode(content))
    return HookState(file.event, "kvd" if ours else "other", str(file.path), runs, why, before)


def _not_run(repository: Repository, file: HookFile) -> str:
    """Why git does not run a hook file that is there, or ""."""
    if file.folder != repository.own_folder:
        return f"core.hooksPath is {repository.hooks_path}"
    if not file.husky:
        return "" if os.access(file.path, os.X_OK) else "it is not executable"
    stub = repository.folder / file.event
    return "" if os.access(stub, os.X_OK) else f"husky has no {stub}: npx husky"


def _nothing_to_start(text: str) -> str:
    python = script.python_of(text)
    if os.access(python, os.X_OK) or shutil.which("kvd"):
        return ""
    return f"there is no {python} any more: kvd hooks install"


def _notes(repository: Repository) -> Iterator[str]:
    if is_off():
        yield "KVD_HOOKS=0 is set: they do nothing"
    if not paths.has_index(Path(os.path.realpath(repository.root))):
        yield f"there is no index of {repository.root}, and without one they do nothing: kvd index"
    if repository.configured or repository.hooks_path is None:
        return
    if repository.scope in ("global", "system"):
        yield f"core.hooksPath is in your {repository.scope} configuration: hooks there are those of all repositories"
    folder = repository.own_folder
    if folder.is_relative_to(repository.root) and not folder.is_relative_to(repository.common):
        yield f"{folder} is in the work tree: commit kvd's hooks only if all who work on it want them"
