"""The tile of programs that keep whole groups: those that were measured, and what is left to two passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import Graph, bf16, f32, outcomes, traced

from mixorder.report import RegionRecord
from mixorder.schedule import whole_groups
from mixorder.schedule.device import MEASURED as H200


def instance_norm(samples: int, channels: int, places: int, dtype: Any = bf16) -> Graph:
    """The backward, of contiguous rows, with the gradients of a weight and a bias of each channel."""

    def function(dy: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        one = torch.ops.aten.native_batch_norm_backward
        dx, dw, db = one(dy, x, w, None, None, mean, rstd, True, 1e-5, [True] * 3)
        return dx, dw.view(samples, channels).sum(0), db.view(samples, channels).sum(0)

    full, small = ((1, samples * channels, places), dtype), ((samples * channels,), f32)
    return traced(function, full, full, small, small, small)


def record_of(graph: Graph) -> RegionRecord:
    (one,) = outcomes(graph, min_numel=0)
    assert isinstance(one, RegionRecord)
    return one


@pytest.mark.parametrize(
    ("shape", "why"),
    [((16, 64, 65536), "no registers"), ((2, 16, 4096), "too few")],
)
def test_what_does_not_fit_is_read_twice(shape: Any, why: str) -> None:
    assert record_of(instance_norm(*shape)).strategy == "two-pass", why


def test_a_program_computes_while_others_load() -> None:
    """Where a multiprocessor has one program, its computing takes time of its own."""
    facts = whole_groups.WholeGroupFacts(8192, 4096, load_bytes=4, sizes=(8192, 4096), words=2.0)
    assert whole_groups.resident(facts, 4096, 8, H200) == 4
    assert whole_groups.resident(facts, 16384, 32, H200) == 1
    assert whole_groups.resident(facts, 65536, 32, H200) == 0  # a thread has fewer registers
