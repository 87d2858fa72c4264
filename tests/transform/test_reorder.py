"""One loop order, then one nest: in this order, once, and whatever the order of the nests."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
from graphs import only

from mixorder.ir.program import LoopProgram
from mixorder.lowering.lower import lower
from mixorder.transform.reorder import merge
from mixorder.transform.split import split_outer


def split(graph: Any) -> LoopProgram:
    return split_outer(lower(only(graph)))


def test_merge_before_reorder_is_refused() -> None:
    with pytest.raises(ValueError, match="reorder first"):
        merge(split(graphs.pair_graph()))
