"""Kernels whose programs share rows: what is told and awaited.

A whole text: tests/golden.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import graphs
from graphs import f32, generate, only, share, traced

from mixorder.codegen.exchange_phases import groups_of
from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram, Reduce
from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk


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
