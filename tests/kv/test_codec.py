import struct
import zlib

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kvd.kv.codec import (
    _HEADER,
    BLOCK_TOKENS,
    CODECS,
    DEFAULT,
    F16,
    INT4,
    INT4_SYMMETRIC,
    INT8,
    K5V3,
    BlockError,
    Codec,
    decode,
    encode,
)
from kvd.types import KVShape

SHAPE = KVShape(n_layer=3, width=128)


def a_block(tokens: int, shape: KVShape = SHAPE, seed: int = 0) -> torch.Tensor:
    """Values as a model's: keys with large offsets per channel, values around zero."""
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn((shape.n_layer, 2, tokens, shape.width), generator=generator)
    kv[:, 0] += 100 * torch.randn((shape.n_layer, 1, shape.width), generator=generator)
    return kv.half()


@pytest.mark.parametrize("codec", [K5V3, INT4, INT8])
@pytest.mark.parametrize("tokens", [1, 2, 37, BLOCK_TOKENS])
def test_decodes_to_within_half_a_step_of_each_channel(tokens: int, codec: Codec) -> None:
    kv = a_block(tokens)
    block = decode(encode(range(tokens), kv, codec), SHAPE)
    assert block.tokens == tuple(range(tokens))
    levels = torch.tensor([grid.levels for grid in codec.grids if grid]).view(1, 2, 1)
    step = (kv.float().amax(2) - kv.float().amin(2)) / levels
    # Half a step, and the grid of float16 around offsets of a few hundred.
    bound = step * 0.51 + kv.float().abs().amax(2) * 2**-10
    assert ((block.kv.float() - kv.float()).abs().amax(2) <= bound).all()


def test_the_textbook_formula_decodes_to_within_half_of_its_larger_step() -> None:
    kv = a_block(50)
    block = decode(encode(range(50), kv, INT4_SYMMETRIC), SHAPE)
    step = kv.float().abs().amax(2) / 7
    assert ((block.kv.float() - kv.float()).abs().amax(2) <= step * 0.51 + 2**-9).all()
    zero_point = decode(encode(range(50), kv, INT4), SHAPE)
    assert (block.kv - kv).float().norm() > 5 * (zero_point.kv - kv).float().norm()


@pytest.mark.parametrize("tokens", [1, 99])
def test_unquantized_blocks_come_back_to_the_bit(tokens: int) -> None:
    kv = a_block(tokens)
    assert torch.equal(decode(encode(range(tokens), kv, F16), SHAPE).kv, kv)


def test_codecs_have_names_numbers_and_ids_of_their_own() -> None:
    for attribute in ("name", "number", "id"):
        assert len({getattr(codec, attribute) for codec in CODECS.values()}) == len(CODECS)
    assert CODECS["int4"] is INT4
    assert CODECS["k5v3"] is DEFAULT


def test_constant_channels_come_back_exactly() -> None:
    kv = torch.full((3, 2, 20, 128), 7.5, dtype=torch.float16)
    assert torch.equal(decode(encode(range(20), kv), SHAPE).kv, kv)


def test_encoding_what_was_decoded_changes_nothing_visible() -> None:
    once = decode(encode(range(100), a_block(100)), SHAPE).kv
    twice = decode(encode(range(100), once), SHAPE).kv
    step = (once[:, 0].float().amax(1) - once[:, 0].float().amin(1)) / 31
    assert ((twice[:, 0].float() - once[:, 0].float()).abs().amax(1) <= step * 0.1 + 0.13).all()


def test_same_block_same_frame() -> None:
    assert encode(range(64), a_block(64)) == encode(range(64), a_block(64))


def test_a_block_of_a_hundred_tokens_costs_under_four_and_a_quarter_bits_a_value() -> None:
    kv = a_block(100, KVShape(24, 128))
    assert len(encode(range(100), kv)) * 8 / kv.numel() < 4.25


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    frame = bytearray(encode(range(9), a_block(9)))
    index = data.draw(st.integers(0, len(frame) - 1))
    frame[index] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BlockError):
        decode(bytes(frame), SHAPE)


@pytest.mark.parametrize("length", [0, 1, 23, 24, 25, 100])
def test_a_cut_frame_is_noticed(length: int) -> None:
    with pytest.raises(BlockError):
        decode(encode(range(9), a_block(9))[:length], SHAPE)


@pytest.mark.parametrize("other", [KVShape(2, 128), KVShape(3, 64), KVShape(3, 256)])
def test_a_frame_of_another_model_is_refused(other: KVShape) -> None:
    with pytest.raises(BlockError):
        decode(encode(range(9), a_block(9)), other)


@pytest.mark.parametrize("width", [64, 96, 80, 1024])
def test_any_even_width_will_do(width: int) -> None:
    shape = KVShape(2, width)
    kv = a_block(5, shape)
    assert torch.allclose(decode(encode(range(5), kv), shape).kv[:, 1].float(), kv[:, 1].float(), atol=0.5)


def resealed(frame: bytes, body: bytes) -> bytes:
    """The frame with another body and a checksum that fits it: what chance does not make, but somebody may."""
    fields = _HEADER.unpack_from(frame)[:-1]
    crc = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)))
    return _HEADER.pack(*fields, crc) + body


@pytest.mark.parametrize("claimed", [0, 1, 1 << 30, 1 << 46, (1 << 64) - 3])
def test_a_claimed_size_takes_no_memory(claimed: int) -> None:
    body = struct.pack("<IBQ", 0xFD2FB528, 0xE0, claimed) + b"\1\0\0"
    with pytest.raises(BlockError):
        decode(resealed(encode(range(9), a_block(9)), body), SHAPE)


def test_what_follows_the_compressed_bytes_is_noticed() -> None:
    frame = encode(range(9), a_block(9))
    body = frame[_HEADER.size :]
    assert decode(resealed(frame, body), SHAPE).tokens == tuple(range(9))
    for more in (b"\0", body):
        with pytest.raises(BlockError):
            decode(resealed(frame, body + more), SHAPE)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_neither_encoded_nor_decoded(value: float) -> None:
    kv = a_block(9)
    frame = encode(range(9), kv)
    payload = bytearray(zstandard.ZstdDecompressor().decompress(frame[_HEADER.size :]))
    payload[4 * 9 : 4 * 9 + 2] = struct.pack("<e", value)
    with pytest.raises(BlockError, match="not finite"):
        decode(resealed(frame, zstandard.ZstdCompressor().compress(payload)), SHAPE)
    kv[1, 1, 3, 5] = value
    with pytest.raises(BlockError, match="not finite"):
        encode(range(9), kv)


@pytest.mark.parametrize("tokens", [0, BLOCK_TOKENS + 1])
def test_a_block_of_no_or_too_many_tokens_is_not_encoded(tokens: int) -> None:
    with pytest.raises(BlockError, match=f"{tokens} tokens"):
        encode(range(tokens), a_block(tokens))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_frame_and_values(codec: Codec) -> None:
    kv = a_block(100)
    frame = encode(range(100), kv.cuda(), codec)
    assert frame == encode(range(100), kv, codec)
    # A GPU fuses product and sum: one rounding less, which float16's own can show.
    values = decode(frame, SHAPE, torch.device("cuda")).kv.cpu().float()
    assert torch.allclose(values, decode(frame, SHAPE).kv.float(), rtol=2**-10, atol=2**-10)
