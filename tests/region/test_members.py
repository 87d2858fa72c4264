"""What a region writes for nodes outside that could read something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, find, only, traced

from mixorder.errors import Decline, DeclineReason
from mixorder.region.find import find_regions
from mixorder.region.nodes import CONSTANTS
from mixorder.region.region import Region
from mixorder.region.space_analysis import SpaceAnalysis
from mixorder.region.variants import smaller

FULL, SQUARE = ((512, 256), bf16), ((256, 256), bf16)
F8 = torch.float8_e4m3fn
aten = torch.ops.aten
NO_ROOM = Decline(DeclineReason.MEMORY, "for a test")


def scaled(x: Any, dim: int) -> tuple[Any, Any]:
    """A float32 tensor as float8, and one scale for each row or column."""
    scale = 448 / x.abs().amax(dim, keepdim=True)
    return (x * scale).to(F8), scale


def mixed_order(x: Any) -> tuple[Any, ...]:
    """A float32 tensor as float8, twice, with a scale for each row and for each column."""
    size = x.abs()
    rows, columns = (448 / size.amax(dim, keepdim=True) for dim in (1, 0))
    return (x * rows).to(F8), rows, (x * columns).to(F8), columns


def full_outputs(region: Region) -> list[str]:
    found = (n.meta["val"] for n in region.outputs)
    return sorted(str(val.dtype) for val in found if val.numel() == 512 * 256)


@pytest.mark.parametrize("returned", [True, False])
def test_a_cast_outside_reads_the_narrower_tensor(returned: bool) -> None:
    """The columns' cast comes after the region. It reads what float32 was computed from."""

    def function(x: Any, y: Any, z: Any) -> Any:
        total = x + y + z
        wide = total.float()
        return *scaled(wide, 1), *scaled(wide, 0), *([total] if returned else [])

    assert full_outputs(only(traced(function, FULL, FULL, FULL))) == ["torch.bfloat16", str(F8)]


def test_what_inductor_recomputes_need_not_be_written() -> None:
    """Where the graph's peak leaves no room for it: loops outside then read what it is computed from."""

    def function(x: Any, y: Any, z: Any) -> Any:
        return *mixed_order((x + y).float().sin()), *mixed_order((x * z).float().sin())

    region = next(find_regions(traced(function, FULL, FULL, FULL)))
    assert isinstance(region, Region) and len(region.inner) == len(region.outer) == 2
    sums = [n for n in region.outputs if n.meta["val"].dtype == bf16]
    assert full_outputs(region) == ["torch.bfloat16"] * 2 + [str(F8)] * 2
    both, one = [str(F8)] * 2, ["torch.bfloat16", *[str(F8)] * 2]
    for stored, expected in (([], both), (sums[:1], one), (sums, None)):  # Inductor writes `stored`
        found = [
            subregion for subregion in smaller(region, NO_ROOM, stored) if subregion.inner == region.inner
        ]
        told = [full_outputs(subregion) for subregion in found if subregion.outer == region.outer]
        assert [subregion for subregion in told if subregion in (both, one)] == (
            [expected] * 2 if expected else []
        )


def test_what_a_product_reads_is_written() -> None:
    def function(x: Any, y: Any, z: Any, w: Any) -> Any:
        total = (x + y + z).float()
        return *scaled(total, 1), *scaled(total, 0), total @ w

    region = only(traced(function, FULL, FULL, FULL, ((256, 256), f32)))
    assert full_outputs(region) == ["torch.float32", str(F8)]


def test_a_constant_that_a_product_reads_is_not_written() -> None:
    """It is made outside again, which reads nothing."""

    def function(x: Any, dy: Any, w: Any) -> Any:
        ones = torch.ones(512, 256, dtype=torch.bfloat16)
        scaled_dy = dy + ones
        dx = dy - x * (scaled_dy * x).sum(-1, keepdim=True)
        return dx, (scaled_dy * x).sum(0), ones @ w

    (region,) = find(traced(function, FULL, FULL, SQUARE))
    assert any(n.target in CONSTANTS for n in region.nodes)
    assert not any(n.target in CONSTANTS for n in region.outputs)


@pytest.mark.parametrize("asked_before", [False, True])
def test_what_is_recomputed_depends_on_no_question_before(asked_before: bool) -> None:
    """A sum of two inputs reads twice the bytes of its result."""
    graph = traced(lambda x, y: x + y, ((256, 256), f32), ((256, 256), f32))
    (total,) = graph.find_nodes(op="call_function", target=aten.add.Tensor)
    analysis = SpaceAnalysis(256 * 256)
    if asked_before:
        assert all(map(analysis.recomputed, total.all_input_nodes))
    assert not analysis.recomputed(total)
