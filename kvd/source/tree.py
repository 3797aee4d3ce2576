"""The files of a repository: what `git ls-files -co --exclude-standard` names and the disk still holds, less what a
`.kvdignore` leaves out.

Without git (no repository, no binary, a repository that git refuses) the folder is walked and `.gitignore` files
are followed in Python. Links are never followed, neither as files nor as folders on the way to one.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kvd.errors import RepositoryError
from kvd.git import git_environment
from kvd.paths import git_root
from kvd.source.ignore import IGNORED, own_rules
from kvd.source.walk import walk_folder

MAX_FILES = 200_000
"""More are not looked at, so that `kvd index /` ends; the rest is counted as skipped."""

_GIT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file. `path` is relative to the root, with `/`, and is valid Unicode."""

    path: str
    size: int
    mtime_ns: int


@dataclass(slots=True)
class Listing:
    """The regular files in path order, and how many other things were passed over, by reason."""

    files: list[FileEntry] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def find_root(path: Path) -> Path:
    """The resolved git root at or above `path`, else the folder itself.

    Raises `RepositoryError` if there is no such path, it is not a folder, or it can't be read; also for folders
    without git that nobody means to have indexed: homes, the folder of temporary files, `/`.
    """
    folder = checked_folder(path)
    root = git_root(folder)
    if root is None and folder in _no_projects():
        raise RepositoryError(f"{folder} is no repository", hint="cd to a project, or name its folder")
    return root or folder


def _no_projects() -> set[Path]:
    home = Path.home()
    folders = (Path(home.anchor), home, home.parent, Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))
    return {Path(os.path.realpath(folder)) for folder in folders}


def checked_folder(path: Path) -> Path:
    """`path` resolved; raises `RepositoryError` unless it is a readable folder."""
    try:
        folder = Path(os.path.realpath(path, strict=True))
        if not folder.is_dir():
            raise RepositoryError(f"{path} is not a folder", hint="give the folder of a repository")
        with os.scandir(folder):
            pass
    except FileNotFoundError as error:
        raise RepositoryError(f"there is no {path}", hint="give the folder of a repository") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RepositoryError(f"can't read {path}: {reason}", hint="give a folder that you can read") from error
    return folder


def list_files(root: Path, most_without_git: int = MAX_FILES) -> Listing:
    """The files of the resolved folder `root`; deleted ones are left out, what is passed over is counted.

    Raises `RepositoryError` for a folder without git that has more files, or no file but other repositories.
    """
    names = _git_names(root)
    listing = _stat_all(root, walk_folder(root, MAX_FILES + 1) if names is None else names)
    if git_root(root) is None:
        _check_project(root, listing, most_without_git)
    left_out = own_rules(root, (entry.path for entry in listing.files))
    kept = [entry for entry in listing.files if not left_out(entry.path)]
    if len(kept) < len(listing.files):
        listing.skipped[IGNORED] += len(listing.files) - len(kept)
        listing.files = kept
    return listing


def _check_project(root: Path, listing: Listing, most: int) -> None:
    if len(listing.files) > most:
        raise RepositoryError(
            f"{root} is no git repository and has more than {most:,} files: is all of it one project?",
            hint=f"cd to a project, or: kvd config set folder_files {MAX_FILES}",
        )
    if not listing.files and (inner := listing.skipped["submodule"]):
        repositories = "a repository" if inner == 1 else f"{inner:,} repositories"
        raise RepositoryError(f"{root} holds {repositories} and no files of its own", hint="cd to one of them")


def _git_names(root: Path) -> list[str] | None:
    """Names from git, or None where git can't say."""
    top = git_root(root)
    if top is None:
        return None
    # core.fsmonitor would run a program that the repository's own configuration names.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(root)]
    command += ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(
            command, capture_output=True, env=git_environment(), timeout=_GIT_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    names = sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})
    # A folder that an outer repository ignores was asked for by name: git lists nothing there, the walk does.
    return names if names or root == top else None


def _stat_all(root: Path, names: Iterable[str]) -> Listing:
    listing = Listing()
    folders: dict[str, bool] = {"": True}
    base = str(root)
    for number, name in enumerate(names):
        if number >= MAX_FILES:
            listing.skipped["too many files"] += 1
            continue
        if not _is_unicode(name):
            listing.skipped["unreadable name"] += 1
        elif name.startswith("/") or ".." in name.split("/"):
            # git refuses to add such a name, but lists it where somebody has written it into the repository's index.
            listing.skipped["outside"] += 1
        elif not _plain_folder(base, name.rstrip("/").rpartition("/")[0], folders):
            listing.skipped["symlink"] += 1
        else:
            _stat_one(base, name, listing)
    listing.files.sort(key=lambda entry: entry.path)
    return listing


def _stat_one(base: str, name: str, listing: Listing) -> None:
    try:
        status = os.lstat(f"{base}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        listing.skipped["unreadable"] += 1
        return
    if stat.S_ISREG(status.st_mode):
        # Another file with an old time of modification may be moved here; the time of the last change is the kernel's.
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        listing.files.append(FileEntry(name, status.st_size, changed_ns))
    elif stat.S_ISLNK(status.st_mode):
        listing.skipped["symlink"] += 1
    elif stat.S_ISDIR(status.st_mode):
        # git names a folder only where another repository starts: a submodule, a worktree, a clone.
        listing.skipped["submodule"] += 1
    else:
        listing.skipped["not a file"] += 1


def _is_unicode(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _plain_folder(base: str, folder: str, known: dict[str, bool]) -> bool:
    """Whether no component of `folder` is a link: a tracked folder may have been replaced by one."""
    missing: list[str] = []
    while folder not in known:
        missing.append(folder)
        folder = folder.rpartition("/")[0]
    plain = known[folder]
    for name in reversed(missing):
        plain = plain and not os.path.islink(f"{base}/{name}")
        known[name] = plain
    return plain


def read_file(root: Path, path: str, limit: int) -> bytes | None:
    """The content, or None if it can't be read, is longer than `limit` bytes, or is not a plain file any more."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(root / path, flags)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            # It may be growing; so much memory is taken at once.
            data = file.read(min(limit, 2 * status.st_size + 1024) + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data if len(data) <= limit else None
