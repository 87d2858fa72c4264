"""What a region writes for nodes outside that could read something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import bf16, f32, find, only, traced

from mixorder.region.nodes import CONSTANTS
from mixorder.region.region import Region
from mixorder.region.space_analysis import SpaceAnalysis

FULL, SQUARE = ((512, 256), bf16), ((256, 256), bf16)
F8 = torch.float8_e4m3fn
aten = torch.ops.aten


def scaled(x: Any, dim: int) -> tuple[Any, Any]:
    """A float32 tensor as float8, and one scale for each row or column."""
    scale = 448 / x.abs().amax(dim, keepdim=True)
    return (x * scale).to(F8), scale


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
