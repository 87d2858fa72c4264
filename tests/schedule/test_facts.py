"""Facts of programs that no digest shows by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import f32, merged, only, traced

from mixorder.schedule.facts import facts_of


@pytest.mark.parametrize(("function", "more"), [(torch.exp, 0), (torch.sin, 3), (torch.cos, 3)])
def test_what_is_live_beside_a_function_that_branches_is_held(
    function: Callable[[torch.Tensor], torch.Tensor], more: int
) -> None:
    """All elements of `a`, `b` and the result are live while a thread computes one after the other."""

    def sums(x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x * w, dy + x
        c = function(a)
        both = (a + b) * c
        return both.sum(-1), (dy * c).sum(0), both

    graph = traced(sums, ((512, 256), f32), ((256,), f32), ((512, 256), f32))
    held = facts_of(merged(only(graph))).held
    assert held.words == held.of_columns + more
