from pathlib import Path

import pytest

from kvd import paths
from kvd.config import Settings, load_settings
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
        ("n_ctx = ", "can't read"),
        ("n_ctx = '4096'", "n_ctx must be int, not '4096'"),
        ("n_ctx = true", "n_ctx must be int, not True"),
        ("reuse = 1", "reuse must be bool, not 1"),
        ("n_ctx = 1", "n_ctx must be between 1024 and 1048576, not 1"),
        ("store_bytes = -1", "store_bytes must be between 0"),
        ("threads = 100000", "threads must be between 0 and 512"),
        ("pool_bytes = 99999999999999999999999", "pool_bytes must be between"),
        ("eviction = 'clock'", "eviction must be one of lru, semantic, combined, not 'clock'"),
        ("eviction = 1", "eviction must be str, not 1"),
        ("modle = 'x'", "unknown setting 'modle'"),
        ("x = " + "[" * 100_000, "it is nested too deeply"),
        ("n_ctx = " + "9" * 5_000, "can't read"),
        ("n_ctx = 0x" + "f" * 5_000, "not a number of thousands of digits"),
    ],
)
def test_a_mistake_is_named_with_the_file(text: str, message: str) -> None:
    file = write(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_settings()
    assert str(file) in caught.value.message + caught.value.hint


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
