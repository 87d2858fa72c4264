"""Tensors of more than 2**31 elements, on a GPU with the memory for them: offsets that need 64 bits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import quantised
from support.compilers import STRICT

from mixorder.report import RegionRecord, collect

LONG, BLOCK = 16921600, 128
PIECE = BLOCK * 1024


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GB of free memory")
    yield
    torch.cuda.empty_cache()


def normal(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_()


def fused(function: Callable[..., Any], x: torch.Tensor) -> Any:
    with collect() as records:
        results = torch.compile(lambda x: function(x), options=STRICT, dynamic=False)(x)
    torch.cuda.synchronize()
    assert any(isinstance(r, RegionRecord) for r in records)
    return results


def pieces(tensor: torch.Tensor, dim: int, length: int, start: int) -> torch.Tensor:
    """Those elements of a tensor that belong to a piece of the long dim, which may be one for each block."""
    scale = tensor.shape[dim] / length
    return tensor.narrow(dim, int(start * scale), int(PIECE * scale))


@pytest.mark.parametrize(("shape", "dim"), [((BLOCK, LONG), 1), ((LONG, BLOCK), 0)], ids=["flat", "high"])
def test_casts_by_blocks_along_both_dims(shape: tuple[int, int], dim: int) -> None:
    """Of the last row, or column, every offset is beyond 2**31. Blocks are cast by themselves, so that those
    of a piece are those of the whole tensor."""
    x = normal(*shape)
    results = fused(quantised.blocks_both, x)
    along = (dim, dim, dim, 1 - dim)  # the factors of the transposed tensor are transposed
    for start in (0, LONG // 2 // PIECE * PIECE, LONG - PIECE):
        expected = quantised.blocks_both(x.narrow(dim, start, PIECE))
        for result, theirs, own in zip(results, expected, along, strict=True):
            mine = pieces(result, own, LONG, start)
            assert mine.shape == theirs.shape and quantised.different(mine, theirs) == 0


def of_squares(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    squares = wide * wide
    return (wide - wide * squares.mean(-1, keepdim=True)).to(x.dtype), squares.sum(0)


def test_columns_that_lie_far_apart() -> None:
    """A column's offset is its number times 2**20 rows."""
    rows, cols, piece = 2**20, 2080, 2**16
    x = normal(cols, rows).t()
    dx, dw = fused(of_squares, x)
    error = size = 0.0
    total = torch.zeros(cols, dtype=torch.float64, device="cuda")
    for start in range(0, rows, piece):
        truth, part = of_squares(x[start : start + piece].double())
        error += float((dx[start : start + piece].double() - truth).square().sum())
        size += float(truth.square().sum())
        total += part
    assert error <= 2.0**-16 * size
    assert float((dw.double() - total).norm()) <= 2e-6 * float(total.norm())
