"""Results that are parts of one tensor, as the FX graph runs them: a kernel writes rows that lie apart."""

from __future__ import annotations

import pytest
import torch
from grids import crossed
from joining import JOINS, ORDERS, PARTS, SHAPES, program
from running import ON
from torch.nn.functional import pad

from mixorder.plugin import compile_for_interpreter
from mixorder.report import RegionRecord, collect


@pytest.mark.parametrize(("part", "join", "order"), crossed(PARTS, JOINS, ORDERS)[::2])
def test_joined_results(part: str, join: str, order: str) -> None:
    function = program(part, join, order)
    given = [torch.randn(shape) for shape in SHAPES]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)
    with torch.no_grad(), collect() as records:
        ours, exact = compiled(*given), function(*(t.double() for t in given))
    assert [type(r) for r in records] == [RegionRecord] * 2
    copied = [r.traffic.joined > 0 for r in records if isinstance(r, RegionRecord)]
    assert copied == [join == "cat of permuted"] * 2
    for result, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(result.double(), truth, atol=1e-4, rtol=1e-4)


def test_a_part_that_is_read_where_it_was_put() -> None:
    """The second slice is computed by the region, and the first one, of rows with gaps, is read by it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = pad(x.sin(), (1, 1), value=0.5)[..., 1:][..., : x.shape[-1]] * y
        scaled = part * (x * y).sum(-1, keepdim=True)
        return part, (scaled * part).sum(0), (scaled * scaled).sum(-1)

    given = [torch.randn(21, 768) for _ in range(2)]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compile_for_interpreter(ON), dynamic=False)
    with torch.no_grad(), collect() as records:
        ours, exact = compiled(*given), function(*(t.double() for t in given))
    assert [type(r) for r in records] == [RegionRecord]
    for result, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(result.double(), truth, atol=1e-3, rtol=1e-4)
