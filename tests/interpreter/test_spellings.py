"""How people write scales along rows and columns: what is fused, and that every byte is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32
from running import ON, compiled, wide
from support import quantised
from support.quantised import F8, different

from mixorder.errors import DeclineReason
from mixorder.report import RegionRecord, collect
from mixorder.strategies.persistent import PERSISTENT
from mixorder.strategies.tile import TILE

E8 = torch.float8_e8m0fnu
Function = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def mixed_order(quantise: Function) -> Function:
    """Of a tensor's rows, and of the transposed tensor's."""

    def function(x: Any) -> Any:
        scales, data = quantise(x)
        others, transposed = quantise(x.t().contiguous())
        return scales, data, others, transposed.t()

    return function


def to_mx(
    rounded: Callable[[Any], Any], to: Callable[[Any], Any] = lambda x: x.clamp(-448, 448).to(F8)
) -> Function:
    """torchao's `to_mx`: `rounded` gives the exponent from the largest element of each block, float32."""

    def quantise(x: Any) -> Any:
        blocks = x.reshape(*x.shape[:-1], -1, 32)
        largest = torch.amax(torch.abs(blocks), -1).unsqueeze(-1).to(f32)
        largest, exponent = rounded(largest)
        biased = (exponent.clamp(-127, 128) + 127).to(torch.uint8)
        biased = torch.where(torch.isnan(largest), 255, biased)
        scale = torch.bitwise_left_shift(biased.to(torch.int32), 23).view(f32).clamp(min=2**-126)
        return biased.view(E8).squeeze(-1), to((blocks.to(f32) / scale).reshape(x.shape))

    return mixed_order(quantise)


def exponent_of(x: Any) -> Any:
    return (torch.bitwise_right_shift(x.view(torch.int32), 23) & 255) - 127


def floor(x: Any) -> Any:
    return x, exponent_of(x) - 8


def ceil(x: Any) -> Any:
    return x, exponent_of(x) + ((x.view(torch.int32) & 0x7FFFFF) > 0) - 8


def even(x: Any) -> Any:
    isnan = torch.isnan(x)
    x = ((x.view(torch.int32) + (1 << 19)) & (511 << 23)).view(f32)
    x[isnan] = torch.tensor(float("nan"), dtype=f32)
    return floor(x)


def rounded_up(x: Any) -> Any:
    """cuBLAS's rounding."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True).to(f32) / 448
    usual = (torch.ceil(torch.log2(scale)).clamp(-127, 127) + 127).to(torch.uint8)
    biased = torch.where(scale.isnan(), 255, torch.where(scale.isinf(), 254, usual))
    power = torch.where(biased == 0, 1.0, torch.exp2(127 - biased.to(f32)))
    power = torch.where(biased == 255, scale, torch.where(biased == 254, 2**-127, power))
    return biased.view(E8).squeeze(-1), (blocks * power).clamp(-448, 448).to(F8).reshape(x.shape)


def codes(x: Any) -> Any:
    """torchao's `f32_to_f4_unpacked`: a code of e2m1 in each byte."""
    bits = x.view(torch.int32)
    sign = bits & (1 << 31)
    bits = bits ^ sign
    value = bits.view(f32)
    saturates, tiny = value >= 6.0, value < 1
    subnormal = ((value + 4194304.0).view(torch.int32) - 1249902592).to(torch.uint8)
    normal = ((bits - 1054867457 + ((bits >> 22) & 1)) >> 22).to(torch.uint8)
    code = torch.where(saturates, 7, torch.where(tiny, subnormal, normal))
    return code | ((sign >> 28).to(torch.uint8) & 8)


def packed(x: Any) -> Any:
    flat = codes(x).contiguous().view(-1)
    return (flat[::2] | flat[1::2] << 4).view(*x.shape[:-1], -1)


def nvfp4(x: Any) -> Any:
    blocks = x.float().reshape(x.shape[0], -1, 16)
    scale = (blocks.abs().amax(-1) / 6.0).clamp(2**-6, 448).to(F8)
    data = blocks * (1.0 / scale.to(f32)).unsqueeze(-1)
    return scale, packed(data.clamp(-6.0, 6.0).view(x.shape))


def by_vector_norm(x: Any) -> Any:
    rows, columns = x.unflatten(-1, (-1, 32)), x.unflatten(0, (-1, 32))
    first = torch.linalg.vector_norm(rows, float("inf"), -1, keepdim=True)
    second = torch.linalg.vector_norm(columns, float("inf"), 1, keepdim=True)
    return first, second, (rows.float() / first).to(F8).flatten(-2), (columns.float() / second).to(F8)


def by_both_signs(x: Any) -> Any:
    rows, columns = x.view(x.shape[0], -1, 32), x.view(-1, 32, x.shape[1])
    found = []
    for blocks, dim in ((rows, 2), (columns, 1)):
        largest = torch.maximum(blocks.amax(dim, keepdim=True), -blocks.amin(dim, keepdim=True))
        found += [largest, (blocks.float() / largest).to(F8)]
    return tuple(found)


def of_a_view(x: Any) -> Any:
    """Along the columns, without a transposed copy."""
    columns = x.movedim(0, 1).unflatten(1, (-1, 32))
    largest = columns.abs().amax(-1, keepdim=True)
    return *quantised.mx_rows(x), largest, (columns.float() / largest).to(F8).flatten(1, 2)


def of_three_dims(x: Any) -> Any:
    batches = x.view(2, -1, x.shape[-1])
    return *quantised.mx_rows(batches), *quantised.mx_rows(batches.flatten(0, 1).t().contiguous())


SPELLINGS: dict[str, tuple[Function, list[torch.dtype]]] = {
    "mx ceil": (to_mx(ceil), [torch.uint8, F8] * 2),
    "mx even": (to_mx(even), [torch.uint8, F8] * 2),
    "mx rounded up": (mixed_order(rounded_up), [torch.uint8, F8] * 2),
    "mx e5m2": (
        to_mx(floor, lambda x: x.clamp(-57344, 57344).to(torch.float8_e5m2)),
        [torch.uint8, torch.float8_e5m2] * 2,
    ),
    "mxfp4": (to_mx(floor, packed), [torch.uint8, torch.uint8] * 2),
    "nvfp4": (mixed_order(nvfp4), [F8, torch.uint8] * 2),
    "vector_norm": (by_vector_norm, [bf16, F8] * 2),
    "amax and amin": (by_both_signs, [bf16, F8] * 2),
    "a transposed view": (of_a_view, [torch.uint8, F8, bf16, F8]),
    "three dims": (of_three_dims, [torch.uint8, F8] * 2),
}


# A code of NaN depends on its bits; the largest of 0.0 and -0.0 is either.
NUMBERS_ONLY = ("nvfp4", "amax and amin")


def input_with(special: bool = True) -> torch.Tensor:
    """256 rows of very different numbers; with a square of zeros, infinities and NaN, if asked for."""
    x = wide(256, 512)
    if special:
        x[:32, :32] = 0
        x[40, 3], x[100, 511], x[255, 200] = float("inf"), -float("inf"), float("nan")
    return x


def check(function: Function, x: torch.Tensor) -> list[Any]:
    """Assert that the results are eager's bit by bit; what became of each region."""
    with collect() as records, torch.no_grad():
        ours = compiled(ON)(lambda x: function(x))(x)
    for mine, eager in zip(ours, function(x), strict=True):
        assert mine.dtype == eager.dtype
        if mine.dtype == E8:
            mine, eager = mine.view(torch.uint8), eager.view(torch.uint8)
        assert different(mine, eager) == 0
    return records


def written(record: RegionRecord) -> list[torch.dtype]:
    return [b.dtype for b in record.loops.buffers if b.role.name == "OUTPUT"]


@pytest.mark.parametrize("name", SPELLINGS)
def test_scales_and_casts_of_blocks_are_one_kernel(name: str) -> None:
    function, dtypes = SPELLINGS[name]
    (record,) = check(function, input_with(name not in NUMBERS_ONLY))
    assert isinstance(record, RegionRecord) and record.strategy == TILE.name
    assert len(record.kernels) == 1 and written(record) == dtypes


def test_scales_of_whole_rows_and_columns() -> None:
    """torchao's recipe rowwise: the columns' cast needs a scale that exists when all rows were read."""
    first, second = check(quantised.rowwise_both, input_with())
    assert isinstance(first, RegionRecord) and first.strategy == PERSISTENT.name
    assert sorted(map(str, written(first))) == sorted(map(str, [f32, f32, F8]))
    assert isinstance(second, RegionRecord) and second.strategy == TILE.name and written(second) == [F8]


def test_a_cast_of_exponents_gives_a_reason() -> None:
    """Neither Inductor nor mixorder has a loop for it: only the scales are fused."""

    def function(x: Any) -> Any:
        found = []
        for blocks, dim in ((x.view(256, 16, 32), 2), (x.view(8, 32, 512), 1)):
            scale = (blocks.abs().amax(dim, keepdim=True).float() / 448).clamp(min=2**-126).to(E8)
            found += [scale, (blocks.float() / scale.float()).clamp(-448, 448).to(F8)]
        return tuple(found)

    record, decline = check(function, input_with())
    assert isinstance(record, RegionRecord) and written(record) == [f32, f32]
    assert decline.reason is DeclineReason.UNSUPPORTED_DTYPE and "float8_e8m0fnu" in decline.detail
