"""Results that a graph copies into one tensor: what that costs. The parts of a `cat` are written there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import bf16, f32, fused, outcomes, traced
from torch.fx import Graph

from mixorder.region.layouts import is_joined
from mixorder.report import RegionRecord

aten = torch.ops.aten
ROWS = 16384
Join = Callable[[list[Any]], Any]

JOINED: dict[str, Join] = {
    "a loop reads what they are joined to": lambda parts: torch.cat(parts, -1).sin(),
    "twice": lambda parts: torch.cat(parts * 2, -1),
    "between boundaries": lambda parts: torch.cat([parts[-1][:, :8], *parts], -1),
    "of another dtype": lambda parts: torch.cat([parts[0], parts[-1].float()], -1),
    "in another order": lambda parts: torch.cat(
        [p.view(4, ROWS // 4, -1).transpose(0, 1) for p in parts], -1
    ),
}
UNJOINED: dict[str, Join] = {
    "as they are": lambda parts: parts,
    "the parts as well": lambda parts: [torch.cat(parts, -1), parts],
    "a loop of the same size reads them": lambda parts: [p.sin() for p in parts],
    "cat": lambda parts: torch.cat(parts, -1),
    "padding": lambda parts: [aten.constant_pad_nd(p, [0, 64]) for p in parts],
    "cat behind views": lambda parts: torch.cat([p.view(ROWS // 4, 4, -1) for p in parts], -1),
    "cat for a matrix product": lambda parts: torch.cat(parts, -1) @ parts[0].new_ones(512, 8),
    "stack": lambda parts: torch.stack([parts[0], parts[0].new_ones(ROWS, 448)], 1),
}


def norms(widths: list[int], join: Join) -> Graph:
    """The backward of RMSNorms without a factor, of parts of one tensor, and a part without a norm."""

    def function(x: Any, rstd: Any, *dys: Any) -> Any:
        gradients, sums = list[Any](), list[Any]()
        for part, dy in zip(x.split(widths, -1)[:-1], dys[:-1], strict=True):
            wide, normed = dy.float(), part.float() * rstd
            mean = (wide * normed).mean(-1, keepdim=True)
            gradients.append((rstd * (wide - normed * mean)).to(bf16))
            sums.append((wide * normed).sum(0))
        return join([*gradients, dys[-1] * 0.5]), sums

    parts = [((ROWS, width), bf16) for width in widths]
    return traced(function, ((ROWS, sum(widths)), bf16), ((ROWS, 1), f32), *parts)


@pytest.mark.parametrize("how", [*JOINED, *UNJOINED])
def test_what_is_joined(how: str) -> None:
    graph = norms([448, 64], (JOINED | UNJOINED)[how])
    record = fused(graph)
    moved, expected = record.traffic, record.expected
    dx = 2 * ROWS * 448
    assert moved.joined == (dx if how in JOINED else 0)
    assert moved.total == moved.read + moved.written + 2 * (moved.workspace + moved.joined)
    assert expected.launches == 2 + (how in JOINED)


def test_a_region_with_a_copy_has_another_key() -> None:
    """One of two equal norms is joined with the rest: its plan is not that of the other."""

    def join(parts: list[Any]) -> Any:
        return parts[0], torch.cat(parts[1:], -1).sin()

    first, second = outcomes(norms([1024, 1024, 64], join))
    assert isinstance(first, RegionRecord) and isinstance(second, RegionRecord)
    assert sorted([first.traffic.joined, second.traffic.joined]) == [0, 2 * ROWS * 1024]


def test_a_member_joins_nothing() -> None:
    graph = norms([448, 64], UNJOINED["cat"])
    (cat,) = (n for n in graph.nodes if n.target is aten.cat.default)
    dx = cat.args[0][0]
    assert is_joined(dx, []) and not is_joined(dx, [cat])
