"""Which members a region leaves to nodes outside, because nodes that it waits for depend on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import (
    bf16,
    f32,
    node,
    only,
    pair,
    traced,
)

from mixorder.region.space_analysis import SpaceAnalysis

FULL = ((512, 256), f32)
HALF = ((512, 256), bf16)


@pytest.mark.parametrize(
    ("make", "again"),
    [
        (lambda x, y: (x.to(f32) * 2).to(bf16), True),
        (lambda x, y: (x.to(f32) * x.to(f32).exp()).to(bf16), True),
        (lambda x, y: (x.to(f32) * y).to(bf16), False),
        (lambda x, y: x.to(f32) * y, True),
        (lambda x, y: x.to(f32) + (y + x).to(f32), True),
    ],
)
def test_what_is_recomputed_reads_no_more_than_it_has_bytes(make: Any, again: bool) -> None:
    graph = traced(lambda x, y: (make(x, y), x @ y.t()), HALF, HALF)
    ((result, _),) = (n.args[0] for n in graph.nodes if n.op == "output")
    assert SpaceAnalysis(512 * 256).recomputed(result) == again


@pytest.mark.parametrize("asked_before", [False, True])
def test_what_is_recomputed_depends_on_no_question_before(asked_before: bool) -> None:
    """A sum of two inputs reads twice the bytes of its result."""
    graph = traced(lambda x, y: x + y, ((256, 256), f32), ((256, 256), f32))
    (total,) = graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    analysis = SpaceAnalysis(256 * 256)
    if asked_before:
        assert all(map(analysis.recomputed, total.all_input_nodes))
    assert not analysis.recomputed(total)


def test_what_reads_a_scalar_on_another_device_is_left_outside() -> None:
    """As the probability of a dropped path may be. The reductions are fused without it."""

    def function(x: Any, dy: Any, keep: Any) -> Any:
        return (dy - x * (x * dy).sum(-1, keepdim=True)) / keep, (x * dy).sum(0)

    graph = traced(function, FULL, FULL, ((), f32))
    keep = node(graph, "keep_1")
    with keep.meta["val"].fake_mode:
        keep.meta["val"] = torch.empty((), device="meta")
    region = only(graph)
    (quotient,) = keep.users
    assert quotient not in region.nodes and (len(region.inner), len(region.outer)) == (1, 1)


GATE_READS: dict[
    str, tuple[Any, tuple[int, ...], bool]
] = {  # what a gate's gradient reads, of a tensor's shape
    "a vector": (lambda x, t: t, (256,), True),
    "a number": (lambda x, t: t, (1,), True),
    "another tensor": (lambda x, t: t, (512, 256), True),
    "a slice": (lambda x, t: t[:, 100:356], (512, 512), True),
    "what only it reads": (lambda x, t: t.sin() * t, (512, 256), True),
    "what a scan gives": (lambda x, t: t.cumsum(0), (512, 256), True),
    "what a loop computes for a scan": (lambda x, t: (t + x).cumsum(0) + (t + x), (512, 256), False),
    "a reduction's result": (lambda x, t: t.sum(1, keepdim=True), (512, 256), False),
}


@pytest.mark.parametrize("how", GATE_READS)
def test_what_reads_what_a_region_does_is_written_as_well(how: str) -> None:
    """A gate's gradient reads what the norm's does, ones of its own backward, and what is there before."""
    made, shape, joins = GATE_READS[how]

    def function(x: Any, gate: Any, dy: Any, t: Any) -> Any:
        other = made(x, t)
        own, scale = dy * gate, x * x
        ones = torch.ones_like(x)
        return *pair(scale, own), dy * (scale + other) * (ones - gate)

    graph = traced(function, FULL, FULL, FULL, (shape, f32))
    region = only(graph)
    (result,) = (n for n in graph.find_nodes(op="output")[0].args[0] if n.target == torch.ops.aten.mul.Tensor)
    assert (result in region.outputs) == joins
