"""Which repository a call is about."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mcp.server.mcpserver import Context, ListRoots
from mcp.types import ListRootsResult

from kvd import paths
from kvd.errors import RepositoryError, UsageError


def client_roots(ctx: Context, repo: str | None = None) -> ListRootsResult | ListRoots:
    """The client's roots, asked for only where they are needed and the client has some."""
    capabilities = ctx.session.client_capabilities
    if repo or capabilities is None or capabilities.roots is None:
        return ListRootsResult(roots=[])
    return ListRoots()


def choose(repo: str | None, roots: ListRootsResult) -> Path:
    """The root of the repository: of `repo`, else of the client's only root, else of the working folder.

    Raises `UsageError` where the client has several roots, `RepositoryError` where the working folder is gone.
    """
    try:
        return _root(Path(os.path.realpath(os.path.expanduser(repo or _only(roots) or "."))))
    except FileNotFoundError:
        raise RepositoryError("the working folder does not exist any more", hint="give repo") from None
    except ValueError:
        raise UsageError("repo has a NUL character in it, which no path can have") from None


def _only(roots: ListRootsResult) -> str | None:
    found = [unquote(url.path) for root in roots.roots if (url := urlsplit(str(root.uri))).scheme == "file"]
    distinct = sorted({str(_root(Path(os.path.realpath(folder)))) for folder in found})
    if len(distinct) > 1:
        raise UsageError(f"there are several repositories here: {', '.join(distinct)}", hint="give one of them as repo")
    return distinct[0] if distinct else None


def _root(folder: Path) -> Path:
    return paths.git_root(folder) or folder
