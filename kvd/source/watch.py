"""Noticing that something changes under a root, by the system's events. What follows from it is for others to decide.

One inotify instance of watchdog's serves all roots. watchdog's observers are not used: theirs would watch either
everything below a root, `node_modules` too, or one folder with a thread of its own.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import CallbackId, InotifyEvent, InotifyFD, Mask, WatchDescriptor

_MOST_PATHS = 2_000
"""More changed paths than that are told as "anything"."""

_MOST_MUTED = 10_000

_DECIDING = {".git", ".gitignore"}
"""Names that decide which folders count."""

_EVENTLESS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "vboxsf", "prl_fs"}
"""Types of file systems that others change without this kernel's knowledge; those of FUSE are left to `fuse.`."""


class NoEventsError(Exception):
    """The system gives no events for a root; the message says why, as the end of a sentence."""


@dataclass(slots=True)
class Changes:
    """What was noticed. `moment` is `time.monotonic()` of the last of it; folders' paths end with `/`.

    `anything`: too much to tell, or lost. `folders`: which folders count may have changed too.
    """

    moment: float = 0.0
    anything: bool = False
    folders: bool = False
    paths: set[str] = field(default_factory=set)

    @property
    def files(self) -> bool:
        """Whether it is known of a file in the work tree that it changed, or is gone."""
        return any(not path.endswith("/") and not path.startswith(".git/") for path in self.paths)


class Noticed:
    """Collects changes under one root. Any thread may add; `wake` is called there, for the first after each `take`.

    `ended` says why nothing more will be noticed, or "".
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._changes = Changes()
        self._muted: set[str] = set()
        self.ended = ""

    def add(self, path: str, folders: bool = False) -> None:
        with self._lock:
            if path in self._muted and not folders:
                return
            if len(self._changes.paths) < _MOST_PATHS:
                self._changes.paths.add(path)
            else:
                self._changes.anything = True
            self._note(time.monotonic(), folders)

    def add_anything(self) -> None:
        with self._lock:
            self._changes.anything = True
            self._note(time.monotonic(), folders=True)

    def end(self, why: str) -> None:
        with self._lock:
            self.ended = self.ended or why
            self._note(time.monotonic(), folders=False)

    def _note(self, moment: float, folders: bool) -> None:
        first = not self._changes.moment
        self._changes.moment = max(self._changes.moment, moment)
        self._changes.folders |= folders
        if first:
            self._wake()

    @property
    def moment(self) -> float:
        """When the last change was noticed that nobody took yet; 0.0: there is none."""
        return self._changes.moment

    def take(self) -> Changes:
        """All of it; what comes later is told anew."""
        with self._lock:
            taken, self._changes = self._changes, Changes()
            if taken.folders:
                self._muted.clear()
            return taken

    def put_back(self, taken: Changes) -> None:
        """Have `taken` told again."""
        with self._lock:
            now = self._changes
            now.anything |= taken.anything
            now.paths |= taken.paths
            self._note(taken.moment, taken.folders)

    def mute(self, paths: Iterable[str]) -> None:
        """Pass over these from now on, until which folders count may have changed."""
        with self._lock:
            if len(self._muted) < _MOST_MUTED:
                self._muted.update(paths)


class Watcher:
    """The system's events for any number of roots, read in one thread from the first root to `close`."""

    def __init__(self) -> None:
        self._inotify: InotifyFD | None = None

    def watch(
        self, root: Path, folders: Iterable[str], git_files: dict[str, set[str]], noticed: Noticed, most: int
    ) -> RootWatch:
        """Have changes in `folders` (relative to `root`, itself first, each watched before the next is asked for) and
        of `git_files` told to `noticed`.

        Blocks. Raises `NoEventsError`, also for more than `most` folders.
        """
        if sys.platform != "linux":
            raise NoEventsError("events are used on Linux only")
        kind = file_system(root)
        if kind in _EVENTLESS or kind.startswith("fuse."):
            raise NoEventsError(f"{kind} tells nothing of others' changes")
        try:
            watch = RootWatch(self._started(), root, noticed)
        except OSError as error:
            raise NoEventsError(_reason(error)) from error
        try:
            watch.add_all(folders, git_files, most)
        except OSError as error:
            watch.close()
            raise NoEventsError(_reason(error)) from error
        except BaseException:
            watch.close()
            raise
        return watch

    def _started(self) -> InotifyFD:
        from watchdog.observers.inotify_c import InotifyFD

        if self._inotify is None:
            inotify = InotifyFD()
            inotify.start()
            self._inotify = inotify
        return self._inotify

    def close(self) -> None:
        """End all watches and their thread."""
        if self._inotify is not None:
            self._inotify.stop()
            self._inotify.join()
            self._inotify = None


class RootWatch:
    """Watches on the folders of one root: a `WatchCallback` of watchdog, which calls it in the watcher's thread."""

    def __init__(self, inotify: InotifyFD, root: Path, noticed: Noticed) -> None:
        self._inotify, self._root, self._noticed = inotify, root, noticed
        self._id: CallbackId = id(self)  # type: ignore[assignment]  # watchdog's own type for just that
        self._folders: dict[WatchDescriptor, str] = {}
        self._git: dict[WatchDescriptor, set[str]] = {}
        self._closed = False

    def __len__(self) -> int:
        """How many folders are watched."""
        return len(self._folders) + len(self._git)

    def add_all(self, folders: Iterable[str], git_files: dict[str, set[str]], most: int) -> None:
        for folder in folders:
            if len(self) >= most:
                raise NoEventsError(f"it has more than {most:,} folders")
            # Only of the root itself it must not be gone by now.
            descriptor = self._add(f"{self._root}/{folder}" if folder else str(self._root), needed=not folder)
            if descriptor is not None:
                self._folders[descriptor] = folder
        for path, names in git_files.items():
            descriptor = self._add(path, needed=False)
            if descriptor is not None:
                self._git[descriptor] = names

    def _add(self, path: str, needed: bool) -> WatchDescriptor | None:
        try:
            descriptor = self._inotify.add_callback(os.fsencode(path), _mask(), self, self._id)
        except OSError as error:
            if not needed and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        if descriptor < 0:
            # watchdog's way of saying that the folder can't be read.
            self._inotify.remove_callbacks([(descriptor, self._id)])
            if needed:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return None
        return descriptor

    def on_event(self, event: InotifyEvent) -> None:
        if self._closed:
            return
        name = os.fsdecode(event.name)
        if event.wd in self._git and name in self._git[event.wd]:
            self._noticed.add(f".git/{name}", folders=True)
        folder = self._folders.get(event.wd)
        if folder is None:
            if event.wd not in self._git:
                # Watched a moment ago, and not yet entered here.
                self._noticed.add_anything()
        elif name:
            self._noticed.add(_joined(folder, name, event.is_directory), event.is_directory or name in _DECIDING)
        elif not folder and (event.is_move_self or event.is_delete_self):
            self._noticed.end("its folder was moved or deleted")

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """The folder is gone: deleted, or its file system unmounted."""
        if not self._closed and self._folders.pop(wd, None) == "":
            self._noticed.end("its folder is gone")
        self._git.pop(wd, None)

    def on_queue_overflow(self) -> None:
        if not self._closed:
            self._noticed.add_anything()

    def close(self) -> None:
        """Nothing more is told."""
        self._closed = True
        self._inotify.remove_callbacks([(wd, self._id) for wd in {*self._folders, *self._git}])


def _mask() -> Mask:
    from watchdog.observers.inotify_c import InotifyConstants as C
    from watchdog.observers.inotify_c import Mask

    noticed = C.IN_MODIFY | C.IN_CLOSE_WRITE | C.IN_CREATE | C.IN_DELETE | C.IN_MOVE | C.IN_DELETE_SELF | C.IN_MOVE_SELF
    return Mask(noticed | C.IN_ONLYDIR | C.IN_DONT_FOLLOW | C.IN_EXCL_UNLINK)


def _joined(folder: str, name: str, is_directory: bool) -> str:
    return f"{folder}{'/' if folder else ''}{name}{'/' if is_directory else ''}"


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the system has no inotify watches left (fs.inotify.max_user_watches)"
    if error.errno == errno.EMFILE:
        return "the system has no inotify instances left (fs.inotify.max_user_instances)"
    return f"it can't be watched: {error.strerror}"


def file_system(root: Path) -> str:
    """The type of the file system that `root` is on, as Linux names it; "" where that can't be learned."""
    best, kind = b"", b""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return ""
    for line in mounts.splitlines():
        mount, _, about = line.partition(b" - ")
        # Blanks and the like are written as octal numbers.
        place = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), mount.split(b" ")[4]).rstrip(b"/")
        if os.fsencode(f"{root}/").startswith(place + b"/") and len(place) >= len(best):
            best, kind = place, about.split(b" ")[0]
    return kind.decode("ascii", "replace")
