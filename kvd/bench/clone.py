"""A clone whose files change as in a day's work: functions come and go, and branches are switched."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from kvd.errors import RepositoryError

_NEVER_SAID = "quaggafish"
_COMMITS = 60
"""So many before today's is the other branch's, or the first one where there are fewer."""


class Clone:
    """A clone at `root` of the repository at `source`, in place of what was there."""

    def __init__(self, source: Path, root: Path, random: Random) -> None:
        self.root, self._random = root, random
        self.added: dict[str, Path] = {}
        """Names of functions that were added to files, while they are there."""
        self._made = 0
        shutil.rmtree(root, ignore_errors=True)
        self._git("clone", "--quiet", "--no-hardlinks", str(source), str(root), at=root.parent)
        self._branches = self._two_branches()

    def edit(self) -> tuple[str, Path]:
        """Add a function to a file of the repository; its name, and the file."""
        file = self._random.choice(self._sources())
        self._made += 1
        name = f"{_NEVER_SAID}_{self._made:04d}"
        with file.open("a") as text:
            text.write(f"\n\ndef {name}(value):\n    return value + {self._made}\n")
        self.added[name] = file
        return name, file

    def undo(self) -> list[str]:
        """Take back what was added to one of the files; the names that are gone."""
        file = self._random.choice(list(self.added.values()))
        self._git("checkout", "--quiet", "--", str(file.relative_to(self.root)))
        gone = [name for name, place in self.added.items() if place == file]
        for name in gone:
            del self.added[name]
        return gone

    def switch(self) -> list[str]:
        """To the other branch, whatever was edited; the names that are gone."""
        self._git("checkout", "--quiet", "--force", self._branches[0])
        self._branches.reverse()
        gone = list(self.added)
        self.added.clear()
        return gone

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """The same files somewhere else, for a while."""
        root = self.root.with_name("fresh")
        self._git("worktree", "add", "--quiet", "--detach", str(root), "HEAD")
        try:
            for file in {*self.added.values()}:
                shutil.copy(file, root / file.relative_to(self.root))
            yield root
        finally:
            self._git("worktree", "remove", "--force", str(root))

    def _sources(self) -> list[Path]:
        listed = self._git("ls-files", "-z").split("\0")
        return [self.root / name for name in sorted(listed) if name.endswith(".py")]

    def _two_branches(self) -> list[str]:
        commits = self._git("rev-list", "--first-parent", f"--max-count={_COMMITS}", "HEAD").split()
        if len(commits) < 2 or not self._sources():
            raise RepositoryError("a day needs a repository with a history and Python files", hint="give --repo one")
        self._git("branch", "--force", "today", commits[0])
        self._git("branch", "--force", "before", commits[-1])
        self._git("checkout", "--quiet", "--detach", "today")
        return ["before", "today"]

    def _git(self, *arguments: str, at: Path | None = None) -> str:
        command = ("git", "-C", str(at or self.root), *arguments)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RepositoryError(f"git {arguments[0]}: {done.stderr.strip()}", hint="give --repo a clone")
        return done.stdout
