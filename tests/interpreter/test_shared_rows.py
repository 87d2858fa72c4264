"""Rows that several programs share: at widths where they must, and what they tell each other.

In the interpreter programs run one after the other. Of the programs that share a row all but the last find
words missing, and make their second attempt; the last one goes the way that all should go on a GPU.
test_matrix.py has the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import matrix
import pytest
import torch
from graphs import f32
from matrix import Case, Space, bits
from running import ON, compiled, fused_graph
from support.cases import CASES, Example
from torch.fx import GraphModule, Interpreter

from mixorder.errors import Decline, DeclineReason
from mixorder.report import collect
from mixorder.schedule.plan import Plan
from mixorder.transform.cooperative import EMPTY

SHARED = [way for way in matrix.WAYS if way.name.startswith("shared")]


class Rerun(Interpreter):
    """Runs a graph again with the words that the last run left."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.words: torch.Tensor | None = None
        self.empty = 0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.full.default and args[1] == EMPTY and kwargs["dtype"] == torch.int32:
            if self.words is None:
                self.words = super().call_function(target, args, kwargs)
            return self.words
        result = super().call_function(target, args, kwargs)
        if isinstance(result, dict) and "mailbox_ptr" in result:
            self.words = result["mailbox_ptr"]
        return result


def missing(words: torch.Tensor, plan: Plan, rows: int) -> int:
    """Words of parts that have not been told, of the rows of all tiles; others are never written."""
    tile_rows = plan.tile_rows * plan.period
    lanes = 1 << (plan.group - 1).bit_length()
    records = words.view(rows + tile_rows, -1, lanes)
    tile_rows *= -(-rows // tile_rows)
    assert bool((records[:, :, plan.group :] == EMPTY).all())
    assert bool((records[tile_rows:] == EMPTY).all())
    return int((records[:tile_rows, :, : plan.group] == EMPTY).sum())


@pytest.mark.parametrize(
    "case", [c for c in matrix.cases() if c.way in SHARED and not c.symbolic][::4], ids=str
)
def test_both_ways_give_the_same_bits(case: Case, plan_with: Callable[..., None]) -> None:
    """First most programs find words missing; at last all words are there, and each reads them."""
    plan_with(**case.way.setting)
    args = matrix.arguments(case.function, case.space, case.dtype)
    graph, record = fused_graph(case.on(case.space), args)
    rerun = Rerun(graph)
    first = rerun.run(*args)
    before = rerun.words
    again = rerun.run(*args)
    assert rerun.words is not None and before is not None
    rows = int(record.space.rows)
    assert [missing(words, record.schedule, rows) for words in (before, rerun.words)] == [0, 0]
    for mine, theirs in zip(first, again, strict=True):
        assert torch.equal(bits(mine), bits(theirs))


def test_a_wrong_word_is_seen_in_the_result(plan_with: Callable[..., None]) -> None:
    """The test above would not fail if words were never read."""
    plan_with(**SHARED[1].setting)
    space = Space("rows", (12, 40), (1,), (0,))
    args = matrix.arguments(matrix.norm, space, f32)
    graph, _ = fused_graph(functools.partial(matrix.norm, space), args)
    rerun = Rerun(graph)
    first = rerun.run(*args)
    assert rerun.words is not None
    rerun.words = rerun.words.clone().fill_(0)
    assert not torch.equal(first[0], rerun.run(*args)[0])


@pytest.mark.parametrize("name", matrix.NOT_SHARED[::5])
def test_what_cannot_be_shared_is_left_alone(name: str, plan_with: Callable[..., None]) -> None:
    plan_with(**SHARED[1].setting)
    example = Example(CASES[name], CASES[name].shapes.small, f32, "cpu")
    with collect() as records:
        example.step(compiled(ON))()
    reasons = {r.reason for r in records if isinstance(r, Decline)}
    # Reduction groups have no rows.
    assert reasons & {DeclineReason.ROW_TOO_WIDE, DeclineReason.AXIS_CLASS}
