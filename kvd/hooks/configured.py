"""Hooks of git's configuration: `hook.kvd.command`, and `hook.kvd.event` for each event.

Git runs them before the hook file, in whatever folder that is, so there is nothing to chain.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvd.hooks import script
from kvd.hooks.repository import Repository

COMMAND = "hook.kvd.command"
EVENT = "hook.kvd.event"
_NOTHING_THERE = 5
"""Git's exit status where there is nothing to unset, ..."""
_NOT_FOUND = 1
"""... and where nothing is found."""

_FALSE = {"false", "no", "off", "0", ""}


@dataclass(frozen=True, slots=True)
class Configured:
    """All values of `hook.*`, by key, the one that counts last."""

    values: dict[str, list[str]]

    @property
    def command(self) -> str:
        return self.values.get(COMMAND, [""])[-1]

    @property
    def events(self) -> list[str]:
        """An empty value takes back those before it."""
        found = self.values.get(EVENT, [])
        last = max((number for number, value in enumerate(found) if not value), default=-1)
        return found[last + 1 :]

    def switched_off(self, event: str) -> str:
        """The key that keeps kvd's hook from being run for `event`, or ""."""
        keys = (f"hook.{name}.enabled" for name in ("kvd", event))
        return next((key for key in keys if self.values.get(key, ["true"])[-1].lower() in _FALSE), "")


def read(repository: Repository, *options: str) -> Configured:
    """What the configuration has of hooks; `--local`: the repository's own alone."""
    listed = repository.git("config", *options, "-z", "--get-regexp", r"^hook\.", ok=(0, _NOT_FOUND))
    values: dict[str, list[str]] = {}
    for entry in listed.split("\0")[:-1]:
        key, _, value = entry.partition("\n")
        values.setdefault(key, []).append(value)
    return Configured(values)


def install(repository: Repository, python: str) -> None:
    """Write both into the repository's own configuration. Raises `KvdError`."""
    command, held = script.command(python), read(repository, "--local")
    if held.command == command and held.events == list(script.EVENTS):
        return
    # An event without a command would be an error of every git command.
    repository.git("config", "--local", "--replace-all", COMMAND, command)
    repository.git("config", "--local", "--unset-all", EVENT, ok=(0, _NOTHING_THERE))
    for event in script.EVENTS:
        repository.git("config", "--local", "--add", EVENT, event)


def uninstall(repository: Repository) -> None:
    """Take kvd's section out of the repository's own configuration. Raises `KvdError`."""
    if any(key.startswith("hook.kvd.") for key in read(repository, "--local").values):
        repository.git("config", "--local", "--remove-section", "hook.kvd")
