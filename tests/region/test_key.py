"""Regions that share a key share a plan: equal ones must, and no two that lower to different kernels may."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import graphs
import pytest
import torch
from graphs import f32, traced
from torch.fx import Graph

from mixorder import pipeline, search
from mixorder.demo_model import Transformer
from mixorder.ir.program import LoopProgram
from mixorder.region.key import ROUNDED, structural_key
from mixorder.region.nodes import fake
from mixorder.region.region import Region
from mixorder.report import RegionRecord

FULL = ((64, 48), f32)


def plain(x: Any, dy: Any) -> Any:
    return (dy - x * (x * dy).sum(1, keepdim=True)) * 2.0, (x * dy).sum(0)


def of_two(
    first: Callable[..., Any], second: Callable[..., Any], spec: graphs.Spec = FULL
) -> tuple[Region, Region]:
    """The regions of two functions of tensors of their own, in one graph."""
    graph = traced(lambda x, dy, z, dz: (*first(x, dy), *second(z, dz)), FULL, FULL, spec, spec)
    one, two = graphs.find(graph)
    return one, two


def test_equal_regions_have_one_key_and_one_text() -> None:
    one, two = of_two(plain, plain)
    assert structural_key(one) == structural_key(two) is not None
    assert graphs.kernels(one)[1:] == graphs.kernels(two)[1:]


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda x, dy: ((dy - x * (x * dy).sum(1, keepdim=True)) * 3.0, (x * dy).sum(0)),
    "type of a number": lambda x, dy: ((dy - x * (x * dy).sum(1, keepdim=True)) * 2, (x * dy).sum(0)),
    "operand": lambda x, dy: ((dy - dy * (x * dy).sum(1, keepdim=True)) * 2.0, (x * dy).sum(0)),
    "order": lambda x, dy: ((x * (x * dy).sum(1, keepdim=True) - dy) * 2.0, (x * dy).sum(0)),
    "op": lambda x, dy: ((dy + x * (x * dy).sum(1, keepdim=True)) * 2.0, (x * dy).sum(0)),
    "inner": lambda x, dy: ((dy - x * (x * dy).amax(1, keepdim=True)) * 2.0, (x * dy).sum(0)),
    "outer": lambda x, dy: ((dy - x * (x * dy).sum(1, keepdim=True)) * 2.0, (x * dy).amax(0)),
    "leaves": lambda x, dy: (
        ((dy - x * (x * dy).sum(1, keepdim=True)) * 2.0).cumsum(0),
        (x * dy).sum(0),
    ),
    "dtype": lambda x, dy: ((dy - x * (x * dy).sum(1, keepdim=True)) * 2.0, (x * dy).sum(0).double()),
    "output": lambda x, dy: (
        (dy - x * (row := (x * dy).sum(1, keepdim=True))) * 2.0,
        (x * dy).sum(0),
        row,
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_differs_has_another_key(other: str) -> None:
    one, two = of_two(plain, OTHERS[other])
    assert structural_key(one) != structural_key(two)


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (1, True), (2, 2.0)])
def test_numbers_that_compare_equal_are_told_apart(zeros: tuple[Any, Any]) -> None:
    one, two = of_two(plain, plain)
    keys = []
    for region, number in zip((one, two), zeros, strict=True):
        scaled = next(n for n in region.nodes if 2.0 in n.args)
        scaled.args = (scaled.args[0], number)
        keys.append(structural_key(region))
    assert keys[0] != keys[1]


@pytest.mark.parametrize("spec", [((64, 96), f32), ((128, 48), f32), ((64, 48), torch.bfloat16)])
def test_other_tensors_have_another_key(spec: graphs.Spec) -> None:
    one, two = of_two(plain, plain, spec)
    assert structural_key(one) != structural_key(two)


def test_strides_and_device_count() -> None:
    one, two = of_two(plain, plain)
    key = structural_key(one)
    node = two.inputs[0]
    val = fake(node)
    assert val is not None
    for change in (
        lambda: torch.empty((48, 64)).t(),
        lambda: torch.empty((64, 48), device="meta"),
    ):
        with val.fake_mode:
            node.meta["val"] = change()
        assert structural_key(two) != key
    node.meta["val"] = val
    assert structural_key(two) == key


def test_an_argument_of_unknown_kind_has_no_key() -> None:
    one, _ = of_two(plain, plain)
    assert structural_key(one) is not None
    one.nodes[0].kwargs = {"generator": torch.Generator()}
    assert structural_key(one) is None


# Through the pipeline.


def texts(graph: Graph) -> tuple[str, list[Any]]:
    """The graph afterwards, and all that the records hold."""
    records = graphs.outcomes(graph)
    text = re.sub(r"constant_args_idx: \d+", "", str(graph))  # counts the launches of the process
    return text, [r if isinstance(r, RegionRecord) else str(r) for r in records]


def with_other_numbers(graph: Graph, seed: int) -> Graph:
    """Two or three of a graph's factors and summands are other ones."""
    targets = (torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor, torch.ops.aten.add.Tensor)
    scaled = [n for n in graph.nodes if n.target in targets and isinstance(n.args[1], int | float)]
    for node in random.Random(seed).sample(scaled, min(3, len(scaled))):
        node.args = (node.args[0], node.args[1] + 1)
    return graph


@pytest.mark.parametrize("seed", [5, 12])
def test_random_programs_are_the_same_without_sharing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs of programs that are equal but for some numbers."""
    programs = [graphs.random_program(s) for s in (seed, seed + 1) * 2]

    def function(*args: Any) -> Any:
        given = iter(args)
        return [out for one, specs in programs for out in one(*itertools.islice(given, len(specs)))]

    def graph() -> Graph:
        return with_other_numbers(traced(function, *(spec for _, specs in programs for spec in specs)), seed)

    shared = texts(graph())
    monkeypatch.setattr(search, "structural_key", lambda region: None)
    assert texts(graph()) == shared


def layers(count: int) -> Graph:
    torch.manual_seed(0)
    return graphs.backward_graph(Transformer(count, 64, "layer"), (2, 32, 64))


def test_layers_are_lowered_once_and_launch_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[Region] = []
    lower = pipeline.lower

    def counted(region: Region) -> LoopProgram:
        lowered.append(region)
        return lower(region)

    monkeypatch.setattr(pipeline, "lower", counted)
    counts = []
    for count in (2, 3):
        lowered.clear()
        graph = layers(count)
        _, records = texts(graph)
        assert all(isinstance(r, RegionRecord) for r in records)
        fused = [r for r in records if isinstance(r, RegionRecord)]
        names = [k.name for r in fused for k in r.kernels]
        indices = [n.kwargs["kernel_idx"] for n in graph.nodes if "kernel_idx" in n.kwargs]
        assert len(indices) == len(names) == sum(2 - r.schedule.finishes for r in fused)
        assert len(set(indices)) == len(set(names))
        counts.append((len(records), len(lowered), len(set(names))))
    (few, *distinct), (many, *distinct_of_more) = counts
    assert many > few > distinct[0] and distinct == distinct_of_more


def test_where_casts_are_emulated_is_part_of_the_key() -> None:
    one, two = of_two(plain, plain)
    two.nodes[0].meta[ROUNDED] = True
    assert structural_key(one) != structural_key(two)
