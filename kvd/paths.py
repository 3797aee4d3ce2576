"""Where kvd keeps things: XDG folders, made with mode 0700 when first needed."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from kvd.errors import UnavailableError

_SOCKET = "daemon.sock"

_LONGEST_SOCKET_PATH = 100
"""In bytes: the kernel's field holds 107 on Linux and 103 on macOS."""


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification says to ignore relative paths.
    return Path(value) if os.path.isabs(value) else Path.home() / fallback


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"can't make the folder {folder}: {error.strerror}",
            hint="set XDG_CACHE_HOME, XDG_DATA_HOME, XDG_CONFIG_HOME and XDG_STATE_HOME to folders you can write",
        ) from error
    return folder


def cache_dir() -> Path:
    """Rebuildable: indexes and the cold KV store."""
    return _made(_base("XDG_CACHE_HOME", ".cache") / "kvd")


def data_dir() -> Path:
    """The user's own: models and which of them is active."""
    return _made(_base("XDG_DATA_HOME", ".local/share") / "kvd")


def config_home() -> Path:
    """Where all programs of this user have their settings; not made."""
    return _base("XDG_CONFIG_HOME", ".config")


def config_file() -> Path:
    """Settings; not made by reading them."""
    return config_home() / "kvd" / "config.toml"


def log_file() -> Path:
    return _made(_base("XDG_STATE_HOME", ".local/state") / "kvd") / "daemon.log"


def token_file() -> Path:
    """What `kvd serve` asks its clients for."""
    return _made(_base("XDG_STATE_HOME", ".local/state") / "kvd") / "serve-token"


def models_dir() -> Path:
    return _made(data_dir() / "models")


def store_file() -> Path:
    """The cold KV store, one for a user."""
    return cache_dir() / "kv.db"


def bytes_on_disk(database: Path) -> int:
    """What an SQLite file takes with its write-ahead log and the log's index."""
    total = 0
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            total += Path(f"{database}{suffix}").stat().st_size
    return total


def sessions_file() -> Path:
    """What was asked and answered in sessions, of all repositories."""
    return data_dir() / "sessions.db"


def gate_file() -> Path:
    """Which models may answer from reused KV."""
    return cache_dir() / "gate.json"


def vectors_file() -> Path:
    """Vectors by what was embedded, for all indexes."""
    return cache_dir() / "vectors.db"


def index_file(root: Path) -> Path:
    """The index of the repository at `root` (a resolved path)."""
    return _made(cache_dir() / "index") / _index_name(root)


def has_index(root: Path) -> bool:
    """Whether there is an index of the repository at `root` (a resolved path); makes no folders."""
    return os.path.isfile(_base("XDG_CACHE_HOME", ".cache") / "kvd" / "index" / _index_name(root))


def _index_name(root: Path) -> str:
    return f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.db"


def git_root(folder: Path) -> Path | None:
    """The folder at or above `folder` that holds a `.git`, or None."""
    for candidate in (folder, *folder.parents):
        marker = candidate / ".git"
        try:
            if (marker / "HEAD").is_file() or marker.is_file():
                return candidate
        except OSError:
            continue
    return None


def _session_dir() -> Path | None:
    """The login session's runtime folder, also where its variable is not passed on (cron, sudo, ssh commands)."""
    for candidate in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        folder = Path(candidate)
        if folder.is_absolute() and folder.is_dir() and folder.stat().st_uid == os.getuid():
            return folder
    return None


def runtime_dir() -> Path:
    """The folder of socket and lock, mode 0700 and owned by this user.

    `kvd` in `$XDG_RUNTIME_DIR` or `/run/user/UID`; `/tmp/kvd-UID` where there is neither, and a name made from the
    folder's where a socket's path would be too long. Raises `UnavailableError` when someone else owns the folder
    or can write to it.
    """
    base = _session_dir()
    folder = base / "kvd" if base else Path(f"/tmp/kvd-{os.getuid()}")
    if len(os.fsencode(folder / _SOCKET)) > _LONGEST_SOCKET_PATH:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
        folder = Path(f"/tmp/kvd-{os.getuid()}-{digest}")
    _made(folder)
    status = folder.stat(follow_symlinks=False)
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UnavailableError(
            f"the runtime folder {folder} is not yours alone",
            hint=f"remove it, or run: chmod 700 {folder}",
        )
    return folder


def lock_file() -> Path:
    """Held by the daemon, whose process id is in it."""
    return runtime_dir() / "daemon.lock"


def socket_file() -> Path:
    return runtime_dir() / _SOCKET
