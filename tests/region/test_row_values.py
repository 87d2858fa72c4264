"""Tiles behind values of whole rows: which tensor they read instead of computing it again."""

from __future__ import annotations

from typing import Any

import pytest
from graphs import bf16, f32, traced, within_tile
from support.quantised import mx_both
from torch.fx import Graph

from mixorder import pipeline
from mixorder.options import Options
from mixorder.record import RegionRecord
from mixorder.region.row_values import behind_row_values
from mixorder.report import collect

ROWS, COLS = 4096, 4096
FULL = ((ROWS, COLS), bf16)


def backward(x: Any, dy: Any, w: Any, rstd: Any) -> tuple[Any, Any]:
    """RMSNorm's gradients, in float32 and in bf16."""
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    dx = rstd * (scaled - normed * (normed * scaled).mean(-1, keepdim=True))
    return dx, (dy.float() * normed).sum(0).to(bf16)


def with_residual(x: Any, dy: Any, w: Any, rstd: Any, res: Any) -> Any:
    """A gradient that the block before needs as well."""
    dx, dw = backward(x, dy, w, rstd)
    dx = (dx + res.float()).to(bf16)
    return dx, *mx_both(dx), dw


def alone(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    dx, dw = backward(x, dy, w, rstd)
    return *mx_both(dx.to(bf16)), dw


def scaled_by_rows(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    """A value for each row that no reduction of the graph gives."""
    return mx_both((x.float() * rstd).to(bf16))


def of_two(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    """Two tensors in front of the reductions."""
    dx, _ = backward(x, dy, w, rstd)
    return *mx_both(dx.to(bf16)), *mx_both((x.float() * dx).to(bf16))


def graph_of(function: Any) -> Graph:
    specs = [FULL, FULL, ((COLS,), bf16), ((ROWS, 1), f32)]
    return traced(function, *specs, *[FULL] * (function is with_residual))


@pytest.mark.parametrize(
    ("function", "width"), [(with_residual, 2), (alone, 2), (scaled_by_rows, 0), (of_two, 0)]
)
def test_the_tensor_that_is_read(function: Any, width: int) -> None:
    region = within_tile(graph_of(function))
    found = behind_row_values(region)
    assert (found is not None) == bool(width)
    if found is not None:
        part, tensor = found
        assert tensor.meta["val"].dtype.itemsize == width
        assert [n for n in part.inputs if part.seed.analysis.is_full(n)] == [tensor]
        assert set(part.nodes) < set(region.nodes) and set(part.inner) == set(region.inner)


def regions_of(function: Any) -> list[RegionRecord]:
    graph = graph_of(function)
    with collect() as records:
        pipeline.run(graph, Options(enabled=True, strict=True, interpret=True))
    graph.lint()
    return [r for r in records if isinstance(r, RegionRecord)]


def test_the_norm_is_a_pair_of_its_own() -> None:
    """The kernel that reduces the rows writes dx, which is needed anyway, and the tile reads it alone."""
    tile, pair = regions_of(with_residual)
    assert tile.outer_ops == ("amax",) and tile.inner_ops == ("amax",)
    assert pair.outer_ops == ("sum",) and pair.inner_ops == ("mean",)


def test_the_tile_s_kernel_reduces_the_rows() -> None:
    (tile,) = regions_of(alone)
    assert set(tile.outer_ops) == {"amax", "sum"} and tile.inner_ops == ("mean", "amax")
    assert tile.schedule.produced
