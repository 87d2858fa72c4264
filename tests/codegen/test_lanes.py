"""Partial results of several lanes, combined by one thread each."""

from __future__ import annotations

import dataclasses
import functools
import types
from pathlib import Path

import numpy as np
import pytest
from graphs import merged, traced, within_tile
from offline import TARGETS, Known, compiled, needs_a_compiler, spilled
from support.quantised import RECIPES

from mixorder.codegen import lanes
from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.tile import MANY_LANES
from mixorder.strategies.tile import TILE

TL = types.SimpleNamespace(
    reshape=lambda x, shape: x.reshape(shape),
    permute=lambda x, order: x.transpose(order),
    split=lambda x: (x[..., 0], x[..., 1]),
    sum=lambda x, axis: x.sum(axis),
    reduce=lambda x, axis, combine: functools.reduce(combine, np.moveaxis(x, axis, 0)),
)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("shape", "place", "each"), [((32, 2, 16), 0, 4), ((4, 32, 8), 1, 8), ((8, 64), 1, 2)]
)
def test_the_sum_over_rows(shape: tuple[int, ...], place: int, each: int, kept: bool) -> None:
    values = np.random.default_rng(0).integers(0, 100, shape)
    names = {"tl": TL, "x": values}
    count = shape[place] // each
    text = lanes.helper("added", count, lambda one, other: f"{one} + {other}") + lanes.KEPT
    exec(text.replace("@triton.jit\n", ""), names)
    partial = f"tl.sum({lanes.partials('x', shape, place, each)}, {place + 1})"
    left = [count if i == place else n for i, n in enumerate(shape)]
    total = eval(lanes.over_lanes("added", partial, left, place, kept=kept), names)
    assert (total == values.sum(place, keepdims=True)).all()


def kernel_of(name: str, through_memory: bool | None = None) -> tuple[LoopProgram, KernelSource]:
    """A recipe's program and its first kernel, by the chosen schedule or with another way to combine."""
    recipe = RECIPES[name]
    program = merged(within_tile(traced(lambda *x: recipe.function(*x), *recipe.like(16384, 4096))))
    schedule = tile.choose(TILE.facts(program), H200)
    if through_memory is not None:
        layout = dataclasses.replace(schedule.layout, through_shared=MANY_LANES * through_memory)
        schedule = dataclasses.replace(schedule, layout=layout)
    placed = TILE.place(program, schedule)
    source, *_ = TILE.generate(placed, schedule, "test")
    return placed, source


@needs_a_compiler
@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_120"])
def test_fewer_shuffles_and_no_more_memory(target: str, known: Known, tmp_path: Path) -> None:
    """dGELU has a sum and a maximum for each of 8 columns of a thread, over 8 lanes: 48 shuffles. The 8 that
    stay are those along rows."""
    gpu, _ = TARGETS[target]
    alike, made = kernel_of("gelu_backward", through_memory=False), kernel_of("gelu_backward")
    if known(gpu, alike, made):
        return
    by_shuffles, kernel = compiled(*alike, gpu), compiled(*made, gpu)
    assert by_shuffles.asm["ptx"].count("shfl.sync") == 56
    assert kernel.asm["ptx"].count("shfl.sync") == 8
    assert kernel.metadata.shared <= by_shuffles.metadata.shared
    assert not spilled(kernel, tmp_path)


def test_what_is_computed_from_a_maximum_is_computed_once_for_each_column() -> None:
    _, source = kernel_of("gelu_backward")
    assert (
        source.text.count("maximum_over_8(") == source.text.count("add_over_8(") == 2
    )  # with the definition
    assert source.text.count(", 1, only)") == 1  # the sum is only stored


@pytest.mark.parametrize("name", ["swiglu_backward", "mx_both", "blocks_both"])
def test_shuffles_stay_where_more_would_spill_or_lanes_are_few(name: str) -> None:
    """Two results, 4 lanes, and 128 elements of a thread."""
    assert "_over_" not in kernel_of(name)[1].text
