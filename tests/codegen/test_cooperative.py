"""Kernels whose programs share rows: which sums need no mask. A whole text: tests/golden."""

from __future__ import annotations

from typing import Any

import graphs
import pytest
import torch
from evaluate import computed
from graphs import share

from mixorder.codegen.exchange_phases import without_effect
from mixorder.ir.program import Carry, Compute, Load, LoopProgram, PartialAccumulate, Reduce
from mixorder.ir.reductions import SUM
from mixorder.transform.cooperative import check_shareable

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
