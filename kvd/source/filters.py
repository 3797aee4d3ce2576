"""Which files are not worth, or not safe, indexing, and why.

`path_reason` needs the name only and runs for every file each time; `content_reason` runs when a file is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvd.source.tree import FileEntry, read_file

if TYPE_CHECKING:
    import pathspec

SECRET = "secret"
GENERATED = "generated"
BINARY = "binary"
TOO_LARGE = "too large"
EMPTY = "empty"
UNREADABLE = "unreadable"


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BINARY_SUFFIXES = _set(
    """
    7z a aac ai apk avi avif bin blend bmp bz2 class cur dat db dex dll dmg doc docx dylib eot exe flac fig gguf gif
    glb gz h5 heic ico icns iso jar jpeg jpg lib lz4 m4a mkv mo mov mp3 mp4 mpeg npy npz o obj odt ogg onnx otf parquet
    pb pdf pickle pkl png ppt pptx psd pt pth pyc pyd pyo rar safetensors so sqlite sqlite3 svg swf tar tgz tif tiff
    ttf wasm wav webm webp whl wmv woff woff2 xls xlsx xz zip zst
    """
)

_LOCKFILES = _set(
    """
    bun.lock bun.lockb cargo.lock composer.lock conan.lock deno.lock flake.lock gemfile.lock go.sum gradle.lockfile
    mix.lock npm-shrinkwrap.json package-lock.json packages.lock.json pdm.lock pipfile.lock pixi.lock pnpm-lock.yaml
    podfile.lock poetry.lock pubspec.lock uv.lock yarn.lock
    """
)

_GENERATED_NAME = re.compile(
    r"\.min\.(js|css|mjs|cjs)$|\.(js|css|mjs|cjs|ts)\.map$|_pb2(_grpc)?\.pyi?$|\.pb\.(go|cc|h)$"
)

_SECRET_SUFFIXES = _set("asc gpg jks kdb kdbx key keystore kubeconfig p12 p8 pem pfx pkcs12 ppk tfstate tfvars")

_SECRET_NAMES = _set(
    """
    .credentials .dockercfg .dockerconfigjson .env .envrc .git-credentials .htpasswd .netrc .npmrc .pgpass .pypirc
    .s3cfg .secret .secrets .vault-token .yarnrc.yml _netrc credentials id_dsa id_ecdsa id_ecdsa_sk id_ed25519
    id_ed25519_sk id_rsa kubeconfig master.key secret secrets secring.gpg
    """
)

_SECRET_NAME = re.compile(
    r"^\.env[._ -](?!(example|sample|template|dist|defaults?|schema)$)"
    r"|^[\w.-]*(credentials?|secrets?|passwords?|service[-_]?account[\w-]*|client[-_]secret[\w.-]*|kubeconfig)"
    r"\.(json|ya?ml|toml|ini|cfg|conf|xml|txt|csv|properties|env)$"
    r"|\.env(\.(txt|local|dev|development|staging|prod|production))?$|\.tfvars\.json$"
)

_BACKUP = re.compile(r"[._ -](?:(?:bak|backup|old|orig|save|swo|swp)\d*|(?:- )?copy(?: \d+| \(\d+\))?|\(\d+\))(?=\.|$)")
"""What editors and people add to the name of a copy; a copy of a secret is one."""
_NUMBERED = re.compile(r"\.~\d+$")

_SECRET_PLACE = re.compile(r"(^|/)(\.(ssh|aws|gnupg|docker)/|\.kube/config([._~ -][^/]*)?$)")

# Between armour and body: lines of "Name: value", and what other formats put at line ends: comment signs, quotes and
# escaped line breaks. Possessive and bounded, so that no input takes long.
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----"
    rb"(?:\w[\w-]{0,40}+: [^\n\\]{0,200}+(?=[\n\\])|\\++[nrt]?|[\s#/*;%>|\"'`,+-]++){0,64}+[A-Za-z0-9+/]{32}"
)

_COMMENT = re.compile(r"\s*(#|//|/\*|\*|--|;|%|<!--|\"\"\"|'''|\(\*|\{-|@?rem\b)", re.IGNORECASE)
_MARKER = re.compile(
    r"@generated\b|\bDO NOT (EDIT|MODIFY)\b"
    r"|(?i:\bdo not (edit|modify)\b.*generated|generated.*\bdo not (edit|modify)\b)"
)
_HEAD_LINES = 20

_LONG_LINE = 1_000
_MINIFIED_BYTES = 5_000
_PROSE = _set("md markdown rst txt adoc org tex ipynb")


def suffix_of(path: str) -> str:
    """The lower-case extension without its dot, or ""."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name else ""


def path_reason(entry: FileEntry, max_bytes: int, trusted: bool = False) -> str:
    """Why not to read this file, or ""; `trusted`: the user says that it holds no secrets."""
    name = entry.path.rpartition("/")[2].lower()
    suffix = name.rpartition(".")[2] if "." in name else ""
    if not trusted and _is_secret(entry.path, name):
        return SECRET
    if suffix in _BINARY_SUFFIXES:
        return BINARY
    if entry.size == 0:
        return EMPTY
    if name in _LOCKFILES or _GENERATED_NAME.search(name):
        return GENERATED
    return TOO_LARGE if entry.size > max_bytes else ""


def _is_secret(path: str, name: str) -> bool:
    if name.endswith("~"):
        name = _NUMBERED.sub("", name.rstrip("~"))
    name = _BACKUP.sub("", name)
    if name in _SECRET_NAMES or suffix_of(name) in _SECRET_SUFFIXES:
        return True
    if _SECRET_NAME.search(name):
        return True
    return "/." in "/" + path and _SECRET_PLACE.search(path) is not None


def holds_private_key(data: bytes) -> bool:
    """Whether a private key's armour with a body stands anywhere in the file, in a string or comment too."""
    return b"PRIVATE KEY" in data and _PRIVATE_KEY.search(data) is not None


def content_reason(path: str, text: str) -> str:
    """Why not to index this text, or "": written by a program, or minified."""
    if not text.strip():
        return EMPTY
    if _generated_header(text) or _minified(path, text):
        return GENERATED
    return ""


def _generated_header(text: str) -> bool:
    """A marker in a comment near the top, or in the lines of a comment that runs on."""
    head = text[:4_000].split("\n")[:_HEAD_LINES]
    for number, line in enumerate(head):
        if _COMMENT.match(line):
            # "Generated by protoc.\n# DO NOT EDIT": the two halves may stand on neighbouring lines.
            following = head[number + 1] if number + 1 < len(head) and _COMMENT.match(head[number + 1]) else ""
            if _MARKER.search(f"{line} {following}"):
                return True
    return False


def _minified(path: str, text: str) -> bool:
    if len(text) < _MINIFIED_BYTES or suffix_of(path) in _PROSE:
        return False
    long = sum(len(line) for line in text.split("\n") if len(line) > _LONG_LINE)
    return long > len(text) * 0.8


def generated_by_attribute(root: Path, files: Iterable[FileEntry]) -> Callable[[str], bool]:
    """A test for paths that a `.gitattributes` file of the tree marks as `linguist-generated`."""
    rules: list[_AttributeRule] = []
    for entry in sorted(files, key=lambda entry: entry.path.count("/")):
        if entry.path.rpartition("/")[2] == ".gitattributes":
            rules += _attribute_rules(root, entry.path)

    def is_generated(path: str) -> bool:
        for rule in reversed(rules):
            if path.startswith(rule.folder) and rule.spec.match_file(path[len(rule.folder) :]):
                return rule.generated
        return False

    return is_generated


@dataclass(frozen=True, slots=True)
class _AttributeRule:
    folder: str
    spec: pathspec.GitIgnoreSpec
    generated: bool


def _attribute_rules(root: Path, path: str) -> list[_AttributeRule]:
    import pathspec

    data = read_file(root, path, 1_000_000) or b""
    folder = path.rpartition("/")[0]
    rules = []
    for line in data.decode("utf-8", "replace").splitlines():
        pattern, *attributes = line.split() or [""]
        for attribute in attributes:
            name, _, value = attribute.partition("=")
            # A pattern that begins with "!" is forbidden here and would mean the opposite to pathspec.
            if name.lstrip("-!") == "linguist-generated" and not pattern.startswith(("#", "!")):
                wanted = name == "linguist-generated" and value != "false"
                spec = pathspec.GitIgnoreSpec.from_lines([pattern])
                rules.append(_AttributeRule(f"{folder}/" if folder else "", spec, wanted))
    return rules
