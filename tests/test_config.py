import json
from pathlib import Path

import pytest

from kvd import paths
from kvd.config import FIELDS, Settings, environment, gather, load_settings
from kvd.errors import UsageError
from tests.test_regular import NOT_FILES, put


def write(text: str) -> Path:
    file = paths.config_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_no_file_means_the_defaults() -> None:
    assert load_settings() == Settings()


def test_a_file_overrides() -> None:
    write("n_ctx = 4096\nreuse = false\neviction = 'lru'\n")
    assert load_settings() == Settings(n_ctx=4096, reuse=False, eviction="lru")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_ctx = ", ":1: Invalid value"),
        ("n_ctx = 4096\n\nbudget", ":3: Expected '='"),
        ("n_ctx = 4096\nn_ctx = 4096\n", ":2: Cannot overwrite a value"),
        ("n_ctx = '4096'", ":1: n_ctx must be a whole number, not '4096'"),
        ("# n_ctx = 1\n\nn_ctx = true", ":3: n_ctx must be a whole number, not True"),
        ("reuse = 1", ":1: reuse must be true or false, not 1"),
        ("n_ctx = 1", ":1: n_ctx must be between 1024 and 1048576, not 1"),
        ("store_bytes = -1", "store_bytes must be between 0"),
        ("threads = 100000", "threads must be between 0 and 512"),
        ("pool_bytes = 99999999999999999999999", "pool_bytes must be between"),
        ("eviction = 'clock'", "eviction must be one of lru, semantic, combined, not 'clock'"),
        ("eviction = 1", "eviction must be text, not 1"),
        ("\n'modle' = 'x'", ":2: there is no setting 'modle'"),
        ("\r\n[table]\r\nx = 1", ":2: there is no setting 'table'"),
        ("n_ctx.x = 1", ":1: n_ctx must be a whole number, not {'x': 1}"),
        ("'' = 1", ":1: there is no setting ''"),
        ("x = " + "[" * 100_000, "it is nested too deeply"),
        ("n_ctx = " + "9" * 5_000, "Exceeds the limit"),
        ("n_ctx = 0x" + "f" * 5_000, "not a number of thousands of digits"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(text: str, message: str) -> None:
    file = write(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_settings()
    assert caught.value.message.startswith(f"{file}:")
    assert len(caught.value.message.splitlines()) == 1


def test_bytes_that_are_no_text_are_named_with_the_line() -> None:
    write("").write_bytes(b"n_ctx = 4096\n# \xff\n")
    with pytest.raises(UsageError, match=":2: not UTF-8"):
        load_settings()


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_not_waited_for(kind: str) -> None:
    file = paths.config_file()
    file.parent.mkdir(parents=True)
    put(file, kind)
    with pytest.raises(UsageError, match=f"it is a (named )?{kind}, not a file") as caught:
        load_settings()
    assert str(file) in caught.value.hint


@pytest.mark.parametrize("text", ["eviction = '{}'", "n_ctx = '{}'", "{} = 1"])
def test_a_long_mistake_is_cut(text: str) -> None:
    write(text.format("x" * 500_000))
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert len(caught.value.message) < 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


def write_repository(root: Path, text: str) -> None:
    (root / ".kvd.toml").write_text(text)


def test_the_environment_goes_before_the_repository_and_that_before_the_user(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("budget = 1000\ntop_k = 5\nmax_tokens = 50\n")
    write_repository(root, "budget = 900\n\ntop_k = 4\n")
    monkeypatch.setenv("KVD_BUDGET", "800")
    found = gather(root, environment(request=True))
    assert {name: (item.value, item.source) for name, item in found.items() if item.source != "default"} == {
        "budget": (800, "environment"),
        "top_k": (4, "repository"),
        "max_tokens": (50, "user"),
    }
    assert found["budget"].where == "KVD_BUDGET"
    assert found["top_k"].where == f"{root}/.kvd.toml:3"
    assert found["max_tokens"].where == f"{paths.config_file()}:3"


def test_what_is_about_one_request_is_not_taken_from_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVD_BUDGET", "800")
    monkeypatch.setenv("KVD_N_CTX", "4_096")
    monkeypatch.setenv("KVD_WATCH", "off")
    monkeypatch.setenv("KVD_THREADS", "")
    monkeypatch.setenv("KVD_SOMETHING", "else")
    assert load_settings() == Settings(n_ctx=4096, watch=False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("KVD_N_CTX", "many", "KVD_N_CTX must be a whole number, not 'many'"),
        ("KVD_N_CTX", "1_", "KVD_N_CTX must be between 1024 and 1048576, not 1"),
        ("KVD_WATCH", "perhaps", "KVD_WATCH must be true or false, not 'perhaps'"),
        ("KVD_EVICTION", "clock", "KVD_EVICTION must be one of lru, semantic, combined, not 'clock'"),
        ("KVD_POOL_BYTES", "9" * 5_000, "KVD_POOL_BYTES must be a whole number, not '999"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message) as caught:
        load_settings()
    assert caught.value.hint == f"unset {name}"


ALLOWED = {"budget", "top_k", "max_tokens", "max_file_bytes", "folder_files", "memory", "watch"}


@pytest.mark.parametrize("name", FIELDS)
def test_a_repository_sets_only_what_is_harmless(root: Path, name: str) -> None:
    default = FIELDS[name].default
    write_repository(root, f"\n{name} = {json.dumps(default)}\n")
    if name in ALLOWED:
        assert load_settings(root) == Settings()
        return
    with pytest.raises(UsageError, match=rf"/\.kvd\.toml:2: a repository can't set {name}"):
        load_settings(root)
    assert load_settings() == Settings()


def test_a_repository_can_have_less_indexed_and_never_more(root: Path) -> None:
    write("max_file_bytes = 1000\nwatch = false\n")
    write_repository(root, "max_file_bytes = 2000\nwatch = true\n")
    assert load_settings(root) == Settings(max_file_bytes=1000, watch=False)
    assert gather(root, {})["watch"].source == "user"
    write("")
    write_repository(root, "max_file_bytes = 2000\nwatch = false\n")
    assert load_settings(root) == Settings(max_file_bytes=2000, watch=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget = 'all'", ":1: budget must be a whole number, not 'all'"),
        ("top_k = 201", ":1: top_k must be between 1 and 200, not 201"),
        ("\nmodle = 1", ":2: there is no setting 'modle'"),
        ("budget", ":1: Expected '='"),
        ("#" * 20_000, "it has more than 4,096 bytes"),
    ],
)
def test_a_mistake_in_a_repository_is_named(root: Path, text: str, message: str) -> None:
    write_repository(root, text)
    with pytest.raises(UsageError, match=message) as caught:
        load_settings(root)
    assert str(root / ".kvd.toml") in caught.value.message
    assert str(root / ".kvd.toml") in caught.value.hint


def test_a_repositorys_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.toml"
    outside.write_text("budget = 100\n")
    (root / ".kvd.toml").symlink_to(outside)
    with pytest.raises(UsageError, match="it is a link, not a file"):
        load_settings(root)


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_in_a_repository_is_not_waited_for(root: Path, kind: str) -> None:
    put(root / ".kvd.toml", kind)
    with pytest.raises(UsageError, match="not a file"):
        load_settings(root)
