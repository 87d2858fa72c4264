"""One loop order, then one nest: in this order, once, and whatever the order of the nests."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
from graphs import only

from mixorder.ir.program import LoopProgram
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.transform.reorder import merge, reorder
from mixorder.transform.split import split_outer


def split(graph: Any) -> LoopProgram:
    return split_outer(lower(only(graph)))


def test_merge_before_reorder_is_refused() -> None:
    with pytest.raises(ValueError, match="reorder first"):
        merge(split(graphs.pair_graph()))


def test_reorder_is_idempotent() -> None:
    once = reorder(split(graphs.layer_norm_backward(512, 256)))
    assert reorder(once) == once


def test_merge_puts_definitions_first_whatever_order_they_come_in() -> None:
    program = reorder(split(graphs.layer_norm_backward(512, 256)))
    first, second, *rest = program.nests
    swapped = dataclasses.replace(program, nests=(second, first, *rest))
    assert str(verify(merge(swapped), Form.MERGED).nests[1]) == str(merge(program).nests[1])
