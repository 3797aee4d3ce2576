from __future__ import annotations

import json
from collections.abc import Iterable

from kvd.source.chunker import MAX_BYTES
from kvd.source.content import read_content


def notebook(cells: list[dict[str, object]], **metadata: object) -> bytes:
    data = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data, indent=1, ensure_ascii=False).encode()


def code(source: object, outputs: Iterable[object] = ()) -> dict[str, object]:
    return {"cell_type": "code", "metadata": {}, "outputs": list(outputs), "source": source}


def test_notebook_holds_sources_and_not_outputs() -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" * 5_000}}
    data = notebook(
        [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Title\n", "\n", 'Words "quoted".\n']},
            code(["import numpy\n", "\n", "def mean(x):\n", "    return numpy.mean(x)  # ünï\n"], [picture]),
            code([]),
        ]
    )
    content = read_content("a.ipynb", data)
    assert content.skipped == ""
    assert [item.chunk.text for item in content.chunks] == [
        '# Title\n\nWords "quoted".',
        "import numpy\n\ndef mean(x):\n    return numpy.mean(x)  # ünï",
    ]
    assert [item.chunk.language for item in content.chunks] == ["markdown", "python"]
    assert content.chunks[1].symbols == ("mean",)
    lines = data.decode().split("\n")
    chunk = content.chunks[1].chunk
    assert lines[chunk.start_line - 1].strip() == '"import numpy\\n",'
    assert lines[chunk.end_line - 1].strip() == '"    return numpy.mean(x)  # ünï\\n"'
    assert data[chunk.start_byte : chunk.end_byte].startswith(b'"import numpy')


def test_large_cell_is_split_and_each_part_cites_its_own_lines() -> None:
    source = [f"value_{number} = {number}\n" for number in range(400)]
    data = notebook([code(source)], language_info={"name": "python"})
    chunks = [item.chunk for item in read_content("a.ipynb", data).chunks]
    assert len(chunks) > 3
    lines = data.decode().split("\n")
    for chunk in chunks:
        assert len(chunk.text.encode()) <= MAX_BYTES
        assert json.loads(lines[chunk.start_line - 1].strip(" ,")).strip() == chunk.text.split("\n")[0]
        assert json.loads(lines[chunk.end_line - 1].strip(" ,")).strip() == chunk.text.split("\n")[-1]
    assert "\n".join(chunk.text for chunk in chunks).split("\n") == [line.strip() for line in source]


def test_cell_in_one_string_is_cited_by_its_line() -> None:
    data = notebook([code("a = 1\nb = 2\n")], kernelspec={"language": "R"})
    (item,) = read_content("a.ipynb", data).chunks
    assert item.chunk.language == "r"
    assert item.chunk.text == "a = 1\nb = 2"
    assert item.chunk.start_line == item.chunk.end_line
    assert '"a = 1\\nb = 2\\n"' in data.decode().split("\n")[item.chunk.start_line - 1]


def test_broken_notebooks() -> None:
    assert read_content("a.ipynb", b'{"cells": [').skipped == "unreadable"
    assert read_content("a.ipynb", b"[1, 2]").skipped == "unreadable"
    assert read_content("a.ipynb", b'{"cells": 3}').skipped == "unreadable"
    assert read_content("a.ipynb", notebook([])).skipped == "empty"
    assert (
        read_content("a.ipynb", b'{"cells": [{"cell_type": "code", "source": ["a\\ud800b"]}]}').chunks[0].chunk.text
        == "a?b"
    )


def test_reasons() -> None:
    key = b"-----BEGIN EC PRIVATE KEY-----\n" + b"A" * 64 + b"\n"
    assert read_content("a.py", key).skipped == "secret"
    assert read_content("a.py", b"a\0b").skipped == "binary"
    assert read_content("a.py", b"# @generated\nx = 1\n").skipped == "generated"
    assert read_content("a.py", b"\xef\xbb\xbf  \n").skipped == "empty"


def test_line_numbers_of_carriage_return_files() -> None:
    data = b"\xef\xbb\xbf" + b"# x\r" * 3 + b"def found():\r\n    return 1\r"
    (item,) = read_content("a.py", data).chunks
    assert (item.chunk.start_line, item.chunk.end_line) == (1, 5)
    assert item.symbols == ("found",)


def test_utf_16_source() -> None:
    (item,) = read_content("a.py", "def naïve():\n    pass\n".encode("utf-16")).chunks
    assert item.symbols == ("naïve",)
