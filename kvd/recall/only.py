"""What a search is confined to: paths by patterns as in .gitignore, and languages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import apsw

from kvd.errors import UsageError
from kvd.recall import database


@dataclass(frozen=True, slots=True)
class Only:
    """Nothing named means everything. A file has to match one of `paths` and be in one of `languages`.

    Of patterns the last one that matches counts; where all begin with `!`, they tell what to leave out.
    """

    paths: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths or self.languages)


EVERYTHING = Only()


def allowed_chunks(db: apsw.Connection, only: Only) -> frozenset[int] | None:
    """The ids of the chunks that may be found; None for all. Raises `UsageError` for what is no pattern."""
    if not only:
        return None
    files = database.rows(db, "SELECT id, path, language FROM files WHERE skipped = ''")
    if only.languages:
        files = [file for file in files if file[2] in only.languages]
    if only.paths:
        matches = _matcher(only.paths)
        files = [file for file in files if matches(file[1])]
    wanted = {file[0] for file in files}
    return frozenset(number for number, file in database.rows(db, "SELECT id, file_id FROM chunks") if file in wanted)


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    # It takes longer to import than a search takes.
    import pathspec

    lines = [pattern.removeprefix("./") for pattern in patterns]
    if all(line.startswith("!") for line in lines):
        lines.insert(0, "**")
    try:
        return pathspec.GitIgnoreSpec.from_lines(lines).match_file
    except ValueError as error:
        raise UsageError(f"no pattern of paths: {error}", hint="kvd search QUERY --path 'src/**'") from error
