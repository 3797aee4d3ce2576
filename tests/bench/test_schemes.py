from __future__ import annotations

import pytest
import torch

from kvd.bench.schemes import SCHEMES, SHIPPED, Scheme, code, compressed_bytes
from kvd.kv.codec import decode, encode
from kvd.types import KVShape


def a_body(tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    kv = torch.randn((4, 2, tokens, 128), generator=generator)
    kv[:, 0] += 30 * torch.randn((4, 1, 128), generator=generator)
    return kv.half()


def test_the_shipped_scheme_is_the_codecs() -> None:
    kv = a_body(100)
    assert torch.equal(code(kv, SHIPPED).kv, decode(encode(range(100), kv), KVShape(4, 128)).kv)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_scheme_gives_back_something_near(scheme: Scheme) -> None:
    kv = a_body(300)
    coded = code(kv, scheme)
    assert len(coded.payloads) == -(-300 // scheme.block)
    values = kv[:, 1].float()
    assert float((coded.kv[:, 1].float() - values).norm() / values.norm()) < 0.5
    assert 0 < compressed_bytes([coded], scheme) * 8 / kv.numel() < (9 if scheme.keys.bits == 8 else 20)
    assert coded.entropy_bits <= 8 * kv.numel()
    assert torch.equal(coded.kv[:, :, : scheme.exact_first], kv[:, :, : scheme.exact_first])


def test_fewer_bits_lose_more_and_take_less() -> None:
    kv = a_body(256)
    by_name = {scheme.name: scheme for scheme in SCHEMES}
    sizes, errors = [], []
    for name in ("8 bits", SHIPPED.name, "3 bits"):
        coded = code(kv, by_name[name])
        sizes.append(compressed_bytes([coded], by_name[name]))
        errors.append(float((coded.kv.float() - kv.float()).norm()))
    assert sizes == sorted(sizes, reverse=True)
    assert errors == sorted(errors)
