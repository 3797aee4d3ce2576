from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from kvd.bench import pages
from kvd.bench.pages import CONVERSATIONS, OWN, PAGE_SIZES, PAST, assembling, lines, measure, sharing, utilization
from kvd.bench.traces import TraceBuilder, TraceChunk
from kvd.kv.pool import HotPool
from kvd.types import KVShape

PAGE_BYTES = 16 * 28 * 2 * 256 * 2
"""Of 16 tokens in the 1.5B model's shape."""


def test_utilization_is_of_the_pages_that_blocks_take() -> None:
    # 200 tokens are two blocks of 100: seven pages of 16 each, or four of 32, or one of 128.
    assert [utilization([200], page) for page in PAGE_SIZES] == [200 / 224, 200 / 256, 200 / 256, 200 / 256]
    assert [utilization([128, 1], page) for page in PAGE_SIZES] == [129 / 144, 129 / 160, 129 / 192, 129 / 256]


@pytest.mark.parametrize("page_tokens", [1, 8, 64, 128])
def test_a_pool_with_other_pages_gives_back_what_was_put_in(page_tokens: int) -> None:
    shape = KVShape(n_layer=2, width=4)
    pool = HotPool(shape, 256 * shape.bytes_per_token, page_tokens=page_tokens)
    kv = torch.randn((2, 2, 100, 4)).half()
    block = pool.put(b"a", range(100), kv)
    assert len(block.pages) == -(-100 // page_tokens)
    assert torch.equal(pool.content(block), kv)
    rows = pool.rows([block])
    assert torch.equal(rows.keys(1), kv[1, 0])
    assert torch.equal(rows.values(0), kv[0, 1])
    pool.check_integrity()
    assert pool.stats()["used_bytes"] == len(block.pages) * page_tokens * shape.bytes_per_token


def test_sharing_by_hand() -> None:
    rows = {
        row["way"]: (row["past_bytes"] / PAGE_BYTES, row["bytes"] / PAGE_BYTES) for row in sharing(Path("/nowhere"))
    }
    # Seven whole blocks of eight pages, then a tail of 104 tokens: seven pages, and a whole block and a rest of one
    # page when 40 tokens have come behind it.
    assert (PAST, OWN, CONVERSATIONS) == (1000, 40, 100)
    assert rows["forked"] == (7 * 8 + 7, 7 * 8 + 100 * (8 + 1))
    assert rows["told"] == (7 * 8 + 100 * 7, 7 * 8 + 100 * (8 + 1))
    assert rows["apart"] == (100 * (7 * 8 + 7), 100 * (7 * 8 + 8 + 1))


def test_a_prompt_has_about_the_tokens_that_were_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ASSEMBLED", 300)
    for tokens, milliseconds in assembling([90, 120, 60, 200, 10], 2):
        assert 100 < tokens <= 300
        assert 0 < milliseconds.low <= milliseconds.value <= milliseconds.high


def test_distinct_chunks_of_all_traces_are_measured(tmp_path: Path) -> None:
    traces = []
    for asked in (("a", "b"), ("b", "c")):
        builder = TraceBuilder()
        builder.add(None, [TraceChunk(name, 200, None) for name in asked])
        traces.append(builder.trace("t"))
    result = measure(traces, tmp_path, 1, lambda text: None)
    assert json.loads(json.dumps(result)) == result
    assert result["bodies"] == 3
    assert [row["page_tokens"] for row in result["sizes"]] == [16, 32, 64, 128]
    assert [round(row["utilization"], 3) for row in result["sizes"]] == [0.893, 0.781, 0.781, 0.781]
    assert {row["assembled_tokens"] for row in result["sizes"]} == {600}
    text = "\n".join(lines(result))
    assert "3 bodies; gathering 600 tokens" in text
    assert "89.3%" in text
    assert "after 1,000 tokens" in text
    assert "after 40 more each" in text
    assert "nothing shared" in text
    # One round.
    assert "[95 %]" in text
    assert text.count("[") == 1
