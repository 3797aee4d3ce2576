"""A file system for SQLite that can be full."""

from __future__ import annotations

import apsw

_SYSTEM = apsw.vfs_names()[0]


class FullDisk(apsw.VFS):
    """The default one while it exists; no file grows while it is `full`."""

    full = False

    def __init__(self) -> None:
        super().__init__("full-disk", _SYSTEM, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> File:  # noqa: N802
        return File(self, name, flags)


class File(apsw.VFSFile):
    def __init__(self, disk: FullDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(_SYSTEM, name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.full and offset + len(data) > self.xFileSize():
            raise apsw.FullError("database or disk is full")
        super().xWrite(data, offset)
