"""Source files out of package archives, read in place: nothing is unpacked or run."""

from __future__ import annotations

import io
import lzma
import random
import re
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CalledProcessError

from kvd.source import filters
from kvd.source.languages import has_grammar, language_of
from kvd.source.text import decode

MAX_FILE = 200_000
MAX_PACKAGE = 800_000
"""Bytes of source taken of one package, files drawn at random, so that large packages don't outweigh the rest."""

_INSTALLED = re.compile(
    r"^usr/(?:share|lib)/(?:cargo/registry/[^/]+|ruby/vendor_ruby|rubygems-integration/[^/]+/gems/[^/]+"
    r"|gocode/src/[^/]+/[^/]+/[^/]+|lua/[\d.]+|php|perl5|nodejs/[^/]+|[^/]+)/"
)
"""Where a Debian package puts what is at the root of its source."""

_LEFT_OUT = re.compile(
    r"(^|/)(third[-_]?party|3rd[-_]?party|vendor(ed)?|_vendor|extern(al)?s?|ext[-_]?libs?|deps|node_modules|subprojects"
    r"|bundled|contrib/[^/]+/(src|include)|submodules?|dist|min|umd|cjs|lib-cjs|dist-cjs|dist-es|es5|fesm\w*|locales?|i18n|debian"
    # The benchmark's repositories and those that one like it is likely to have, wherever they are copied to.
    r"|cobra|gson|sinatra|click|zod|axum|fmt|fmtlib|lazy\.nvim|express|bats[-\w]*|gin|serde\w*|flask|requests|lodash"
    r"|tokio\w*|spdlog|nlohmann|rails|curl|jq|libuv|redis|hiredis|httpx|pydantic|fastapi|starlette|aiohttp|rack|axios"
    r"|chi|mux|monolog|guzzle|nvm|jinja2|werkzeug|chalk|commander|vite|vitest|trpc|vue)/"
    r"|(^|/)(json|catch|click|zod|fmt)\.hpp$|\.min\.|\.d\.[mc]?ts$|\.bundle\.",
    re.IGNORECASE,
)
_TEXT_KINDS = frozenset({"markdown", "rst"})
_NOT_CODE = frozenset(
    """
    json yaml toml xml html css scss ini csv properties text latex svelte vue graphql sql make cmake gomod
    """.split()  # noqa: SIM905  # a list of strings would take a line for each
)


def package_of(archive: Path) -> str:
    """The name of the package without its version."""
    return re.split(r"_|-\d|\.orig", archive.name)[0]


def sources(archive: Path, limit: int = MAX_PACKAGE) -> list[tuple[str, str, str]]:
    """(path, language, text) of some source files of an archive, some `limit` bytes of them, in a random order."""
    found = list(_entries(archive))
    random.Random(zlib.crc32(archive.name.encode())).shuffle(found)
    taken, size = [], 0
    for path, language, text in found:
        if size < limit:
            taken.append((path, language, text))
            size += len(text)
    return taken


def _entries(archive: Path) -> Iterator[tuple[str, str, str]]:
    for path, data in _members(archive):
        text = decode(data)
        if text is None or filters.content_reason(path, text):
            continue
        language = language_of(path, text)
        if has_grammar(language) and language not in _NOT_CODE:
            yield path, language, text


def _wanted(path: str, size: int) -> bool:
    return 0 < size <= MAX_FILE and not _LEFT_OUT.search(path)


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as opened:
                for item in opened.infolist():
                    if _wanted(item.filename, item.file_size):
                        yield item.filename, opened.read(item)
        elif archive.suffix == ".deb":
            unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
                yield from _tar_members(tar, lambda name: _INSTALLED.sub("", name))
        else:
            with tarfile.open(archive) as tar:
                yield from _tar_members(tar, lambda name: name.partition("/")[2])
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, CalledProcessError):
        return


def _tar_members(tar: tarfile.TarFile, shown: Callable[[str], str]) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        path = shown(member.name.removeprefix("./"))
        if member.isfile() and _wanted(path, member.size):
            handle = tar.extractfile(member)
            if handle is not None:
                yield path, handle.read()
