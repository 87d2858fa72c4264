"""Results that are parts of one tensor, as the FX graph runs them: a kernel writes rows that lie apart."""

from __future__ import annotations

import pytest
import torch
from grids import crossed
from joining import JOINS, ORDERS, PARTS, SHAPES, program
from running import ON

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
