"""Hook files: kvd's beside what was there before, which is kept under another name and comes back untouched."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvd.errors import KvdError
from kvd.hooks import script
from kvd.regular import check_regular

_LOOKED_AT = 1 << 16
"""Bytes of a hook file that are looked at."""


@dataclass(frozen=True, slots=True)
class HookFile:
    """The place of one hook file. `husky`: it is run by husky, whatever its mode."""

    event: str
    folder: Path
    husky: bool = False

    @property
    def path(self) -> Path:
        """Where the pre-commit framework was installed over kvd's, it has moved that, and runs it there."""
        moved = self.folder / f"{self.event}.legacy"
        content = _begin(moved)
        return moved if content is not None and script.is_ours(content) else self.folder / self.event

    @property
    def saved(self) -> Path:
        """Where what was there before is kept."""
        return self.folder / (self.event + script.SAVED)

    def content(self) -> bytes | None:
        """The beginning of what is there; None: nothing. Raises `KvdError` for what can't be read."""
        return _begin(self.path)

    def is_ours(self) -> bool:
        """Raises `KvdError` for what can't be read."""
        content = self.content()
        return content is not None and script.is_ours(content)

    def install(self, python: str) -> None:
        """Have kvd's run here, after what there is. Raises `KvdError`."""
        content = self.content()
        ours = content is not None and script.is_ours(content)
        takes = content is not None and not ours
        if takes and os.path.lexists(self.saved):
            raise KvdError(
                f"{self.path} was replaced since kvd kept {self.saved.name}: one of them has to go",
                hint=f"ls -l {shlex.quote(str(self.path))} {shlex.quote(str(self.saved))}",
            )
        before = content if takes else _begin(self.saved)
        text = script.file_text(self.event, python, None if before is None else script.Before(before, self.husky))
        if text == content and os.access(self.path, os.X_OK):
            return
        with _writing(self.path):
            if not self.folder.is_dir() and os.path.lexists(self.folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self.folder.mkdir(parents=True, exist_ok=True)
            _replace(self.path, text, lambda: os.rename(self.path, self.saved) if takes else None)

    def uninstall(self) -> bool:
        """Put back what was there before; false: this is not kvd's. Raises `KvdError`."""
        content = self.content()
        if content is not None and not script.is_ours(content):
            return False
        if content is None and not os.path.lexists(self.saved):
            return False
        with _writing(self.path):
            if os.path.lexists(self.saved):
                os.replace(self.saved, self.path)
            else:
                self.path.unlink()
        return True


def _begin(path: Path) -> bytes | None:
    if not os.path.lexists(path):
        return None
    try:
        check_regular(path)
        with open(path, "rb") as file:
            return file.read(_LOOKED_AT)
    except FileNotFoundError:
        # A link to nowhere, which git does not run either.
        return b""
    except OSError as error:
        raise KvdError(
            f"can't read the hook {path}: {error.strerror}", hint=f"ls -ld {shlex.quote(str(path))}"
        ) from error


def _replace(path: Path, text: bytes, before: Callable[[], None]) -> None:
    """Write `text` to `path` at once; `before` is called when all of it is on the disk."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
        os.chmod(name, 0o755)
        before()
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KvdError(
            f"can't write the hook {path}: {error.strerror}", hint=f"ls -ld {shlex.quote(str(path.parent))}"
        ) from error
