"""Kernels whose programs share rows: what is told and awaited, and which sums need no mask.

A whole text: tests/golden.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import graphs
import pytest
import torch
from evaluate import computed
from graphs import f32, generate, only, share, traced

from mixorder.codegen.exchange_phases import groups_of, without_effect
from mixorder.codegen.source import KernelSource
from mixorder.ir.program import Carry, Compute, Load, LoopProgram, PartialAccumulate, Reduce
from mixorder.ir.reductions import SUM
from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk
from mixorder.transform.cooperative import check_shareable


def kernel_of(program: LoopProgram, xblock: int = 2, lag: int = 2, splits: int = 4) -> KernelSource:
    """The main kernel for 8 parts of what `program` has as columns."""
    cols = int(program.tile_axes[1].size)
    part = math.ceil(cols / 8)
    walk = Walk(split=splits, tile=xblock), Walk(group=8, part=part, tile=1 << (part - 1).bit_length())
    plan = Plan(walk, Launch(4, 3), SecondStage(16, 4), Exchanged(lag))
    return generate(share(program, plan.group, xblock), plan, "test")[0]


def program_of(function: Any, *specs: Any) -> LoopProgram:
    return graphs.merged(only(traced(function, *specs)))


def two_stages(x: Any, dy: Any, w: Any) -> Any:
    q = x * (1 / x.abs().amax(-1, keepdim=True))
    return dy * w - q * (q * dy * w).sum(-1, keepdim=True), (dy * q).sum(0)


TWO_STAGES = (two_stages, ((64, 1024), f32), ((64, 1024), f32), ((1024,), f32))


def test_a_turn_for_each_part_and_exchange_tells_what_is_not_told() -> None:
    """Two exchanges: the first words of 7 others, then the second words of all 8, then the own part again."""
    text = kernel_of(program_of(*TWO_STAGES)).text
    (mine,) = re.findall(r"mine = (.+)", text)
    (other,) = re.findall(r"part = tl.where\(mine, own, (.+)\)\n", text)
    (turns,) = re.findall(r"turns = tl.where\(.+ > 0\), (\d+), turns\)", text)
    for own in range(8):
        parts = [
            own if eval(mine, {"turn": t}) else eval(other, {"own": own, "turn": t})
            for t in range(int(turns))
        ]
        assert parts[0] == parts[-1] == own
        assert sorted(parts[1:8]) == sorted(set(range(8)) - {own})
        assert sorted(parts[8:-1]) == list(range(8))


def test_a_record_has_reductions_of_one_kind_and_no_more_than_a_warp_reads() -> None:
    def function(x: Any, dy: Any) -> Any:
        rows = [(x * i + dy).sum(1, keepdim=True) for i in range(9)] + [x.amax(1, keepdim=True)]
        return sum(dy * r for r in rows), (x * dy).sum(0)

    body = share(program_of(function, ((64, 256), f32), ((64, 256), f32)), 8, 1).nests[0].body
    reductions = [s for s in body if isinstance(s, Reduce)]
    assert [(g[0].kind.name, len(g)) for g in groups_of(reductions, 8)] == [
        ("sum", 4), ("sum", 4), ("sum", 1), ("amax", 1)
    ]  # fmt: skip
    assert [len(g) for g in groups_of(reductions, 17)] == [1] * 10
    grouped = [r for parts in (2, 5, 32) for r in itertools.chain(*groups_of(reductions, parts))]
    assert sorted(r.name for r in grouped) == sorted(r.name for r in reductions * 3)


# Which sums stay as they are where there is no row.


def sums_where_there_is_no_row(program: LoopProgram, other: float) -> dict[PartialAccumulate, Any]:
    """What each accumulation is given if what is loaded for a row is 0, and all else is `other`."""
    nest, row = program.nests[0], program.tile_axes[0].symbol
    deps, values, found = nest.dependence(), dict[str, torch.Tensor](), {}
    for stmt in nest.statements:
        if isinstance(stmt, Load):
            values[stmt.name] = torch.tensor(0.0 if row in deps[stmt.name] else other)
        elif isinstance(stmt, Carry):
            values[stmt.name] = values[stmt.value.name]
        elif isinstance(stmt, Reduce):
            values[stmt.name] = torch.tensor(other)  # a total: of any row, or of none
        elif isinstance(stmt, Compute):  # nothing may rest on a number of a row or a column
            index = stmt.op == "index_expr"
            values[stmt.name] = torch.tensor(float("nan")) if index else computed(stmt, values)
        elif isinstance(stmt, PartialAccumulate):
            found[stmt] = values[stmt.value.name]
    return found


def shared_programs() -> list[LoopProgram]:
    """Of random functions, the regions that can be shared."""
    found = []
    for seed in range(40):
        for region in graphs.find_regions(graphs.random_graph(seed)):
            if isinstance(region, Exception) or region.orders is not None:
                continue
            program = graphs.merged(region)
            try:
                check_shareable(program)
            except graphs.Decline:
                continue
            found.append(share(program, 3, 1))
    return found


@pytest.fixture(scope="module")
def programs() -> list[LoopProgram]:
    return shared_programs()


@pytest.mark.parametrize("other", [float("nan"), float("inf"), -float("inf"), 1.0, 0.0])
def test_a_sum_that_is_not_masked_is_given_zeros(other: float, programs: list[LoopProgram]) -> None:
    """Where there is no row; however large or undefined weights and totals are."""
    idle = masked = 0
    for program in programs:
        unmasked = without_effect(program.nests[0], program.tile_axes[0].symbol)
        given = sums_where_there_is_no_row(program, other)
        assert unmasked <= given.keys() and all(s.kind is SUM for s in unmasked)
        assert all(given[s] == 0 for s in unmasked)
        idle, masked = idle + len(unmasked), masked + len(given.keys() - unmasked)
    assert idle > 2 and masked > 5  # or nothing was tested


def test_a_total_that_is_carried_need_not_be_zero_beyond_the_last_row() -> None:
    def function(x: Any, dy: Any, w: Any) -> Any:
        q = x * torch.log(x).amax(-1, keepdim=True)  # of zeros, minus infinity
        return dy * w - q * (q * dy * w).sum(-1, keepdim=True), (dy * q).sum(0)

    program = share(program_of(function, *TWO_STAGES[1:]), 4, 1)
    assert any(isinstance(s, Carry) and s.value.name == "amax" for s in program.nests[0].body)
    assert without_effect(program.nests[0], program.tile_axes[0].symbol) == set()
