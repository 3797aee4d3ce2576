"""What a search is confined to: paths by patterns as in .gitignore, and languages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import apsw

from kvd.errors import UsageError
from kvd.recall import database


@dataclass(frozen=True, slots=True)
class Only:
    """Nothing named means everything. A file has to match one of `paths` and be in one of `languages`.

    What matches one of `paths` that begins with `!` is left out, whatever else it matches.
    """

    paths: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths or self.languages)


EVERYTHING = Only()

_MOST_NAMED = 8


def unmatched(db: apsw.Connection, only: Only) -> str:
    """What to tell where no indexed file is what `only` names, with what there is instead."""
    files = database.rows(db, "SELECT path, language FROM files WHERE skipped = ''")
    wanted, there = [], Counter(path.partition("/")[0] + "/" * ("/" in path) for path, _ in files)
    if only.paths:
        wanted.append(f"matches {' or '.join(only.paths)}")
    if only.languages:
        wanted.append(f"is in {' or '.join(only.languages)}")
        there = Counter(language for _, language in files if language)
    named = ", ".join(name for name, _ in there.most_common(_MOST_NAMED)) or "nothing"
    return f"no indexed file {' and '.join(wanted)}; there is {named}"


def allowed_chunks(db: apsw.Connection, only: Only) -> frozenset[int] | None:
    """The ids of the chunks that may be found; None for all. Raises as `path_matcher` does."""
    if not only:
        return None
    files = database.rows(db, "SELECT id, path, language FROM files WHERE skipped = ''")
    if only.languages:
        files = [file for file in files if file[2] in only.languages]
    if only.paths:
        matches = path_matcher(only.paths)
        files = [file for file in files if matches(file[1])]
    wanted = {file[0] for file in files}
    return frozenset(number for number, file in database.rows(db, "SELECT id, file_id FROM chunks") if file in wanted)


def path_matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a path is one of those that the patterns name. Raises `UsageError` for what is no pattern."""
    # It takes longer to import than a search takes.
    import pathspec

    wanted = [pattern.removeprefix("./") for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:].removeprefix("./") for pattern in patterns if pattern.startswith("!")]
    try:
        if not all((*wanted, *unwanted)):
            raise ValueError("it is empty")
        take = pathspec.GitIgnoreSpec.from_lines(wanted or ["**"])
        leave = pathspec.GitIgnoreSpec.from_lines(unwanted)
        return lambda path: take.match_file(path) and not leave.match_file(path)
    except ValueError as error:
        raise UsageError(f"no pattern of paths: {error}", hint="kvd search QUERY --path 'src/**'") from error
