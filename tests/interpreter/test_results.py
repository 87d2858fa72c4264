"""Results that are viewed, written, returned twice, or gathered in a larger buffer, of symbolic rows.

Those of static rows are run by Inductor's wrapper code (tests/inductor/test_layouts.py).
"""

from __future__ import annotations

import pytest
import torch
from graphs import f32, traced
from results import RESULTS, aliases
from running import ON
from torch import nn

from mixorder import pipeline
from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import LoopProgram
from mixorder.plugin import compile_for_interpreter, prepare_interpreter
from mixorder.region.gathers import is_gather
from mixorder.region.region import Region
from mixorder.report import RegionRecord, collect


@pytest.mark.parametrize("name", [*RESULTS][::2])
def test_results_of_symbolic_rows(name: str) -> None:
    function, shapes, regions = RESULTS[name]
    mine = tuple(torch.randn(shape) for shape in shapes)
    theirs, exact = tuple(t.clone() for t in mine), tuple(t.double() for t in mine)
    torch._dynamo.reset()
    for x in mine[:2]:
        torch._dynamo.maybe_mark_dynamic(x, 0)
    with torch.no_grad(), collect() as records:
        ours = torch.compile(function, backend=compile_for_interpreter(ON))(*mine)
        eager = function(*theirs)
        exact = (*function(*exact), *exact)
    assert [type(r) for r in records] == [RegionRecord] * regions
    assert all(isinstance(r.space.rows, str) for r in records if isinstance(r, RegionRecord))
    for ours_now, other, truth in zip((*ours, *mine), (*eager, *theirs), exact, strict=True):
        assert ours_now.shape == other.shape and ours_now.stride() == other.stride()
        torch.testing.assert_close(ours_now.double(), truth, atol=1e-4, rtol=1e-4)
    assert aliases((*ours, *mine)) == aliases((*eager, *theirs))


def test_unbacked_rows_are_left_alone() -> None:
    """Nothing is known of such a size, not even that it is not zero: no region, and no error."""
    module = nn.LayerNorm(16)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=compile_for_interpreter(ON))
    with collect() as records:
        for rows in (5, 9, 1, 0):
            x, dy = torch.randn(rows, 16, requires_grad=True), torch.randn(rows, 16)
            torch._dynamo.decorators.mark_unbacked(x, 0)
            inputs = [x, *module.parameters()]
            ours = torch.autograd.grad(compiled(x), inputs, dy)
            for mine, theirs in zip(ours, torch.autograd.grad(module(x), inputs, dy), strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert records == []


def test_a_region_declined_with_its_gathers_is_fused_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = torch.cat([z[:, 1:], z[:, :1]], 1)
        return value - x * (x * value).sum(-1, keepdim=True), (x * value).sum(0)

    def lower(region: Region) -> LoopProgram:
        if any(map(is_gather, region.nodes)):
            raise Decline(DeclineReason.UNSUPPORTED_OP, "for the test")
        return lowered(region)

    lowered = pipeline.lower
    monkeypatch.setattr(pipeline, "lower", lower)
    args = torch.randn(3, 40), torch.randn(3, 40)
    prepare_interpreter()
    graph = traced(function, *[((3, 40), f32)] * 2)
    with collect() as records:
        pipeline.run(graph, ON)
    assert [type(r) for r in records] == [RegionRecord] and any(map(is_gather, graph.nodes))
    ours = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)
    torch.testing.assert_close(list(ours), list(function(*args)))
