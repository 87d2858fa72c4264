"""Values of whole rows from producers: which program does what, and the machine code."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from graphs import bf16, f32, traced, within_tile
from offline import TARGETS, Known, compiled, needs_a_compiler, spilled
from support.quantised import norm_backward

from mixorder.codegen.exchange import POLLS
from mixorder.codegen.producers import awaited, branches, interpreted, roles
from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.lowering.tile import lower_tile
from mixorder.region.producers import with_row_values
from mixorder.schedule import tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.plan import Plan
from mixorder.schedule.producers import ProgramGroups
from mixorder.strategies.tile import TILE
from mixorder.transform.cooperative import EMPTY
from mixorder.transform.producers import with_producers
from mixorder.transform.register_scheduling import schedule_for_registers
from mixorder.transform.same_bits import simplify_exactly
from mixorder.transform.tile_split import split_spanning


def kernel_of(rows: int, cols: int, staged: bool = True) -> tuple[LoopProgram, Plan, KernelSource]:
    """RMSNorm's backward and both casts of dx. `staged`: whether the scales may go through a workspace."""
    specs = [((rows, cols), bf16), ((rows, cols), bf16), ((cols,), bf16), ((rows, 1), f32)]
    region = with_row_values(within_tile(traced(lambda *x: norm_backward(*x), *specs)))
    assert region is not None
    program = simplify_exactly(split_spanning(with_producers(lower_tile(region))), True, True)
    program = schedule_for_registers(program)
    facts = tile.facts_of_tile(program)
    schedule = tile.choose(facts if staged else dataclasses.replace(facts, small=()), H200)
    program = TILE.place(program, schedule)
    source, *_ = TILE.generate(program, schedule, "test")
    return program, schedule, source


def in_time(source: KernelSource) -> str:
    """The text without the branch for a wait that took too long."""
    before, _ = source.text.split("\n        else:\n")
    return before


def played(groups: ProgramGroups, lag: int) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    """What the programs do, in order: the parts of rows that get values, the tiles, and how many parts were
    done before each tile."""
    text = "\n".join(roles(groups, lag, "", "", "row", "column", False))
    text = re.sub(r"number = .*", "", text)
    text = text.replace("    row_values(, ", "    values.append(") + "\n    tiles.append((row, column))"
    text += "\n    done.append(len(values))"
    values, tiles, done = list[int](), list[tuple[int, int]](), list[int]()
    for number in range((groups.row_tiles + lag) * groups.programs):
        exec(text, {"number": number, "values": values, "tiles": tiles, "done": done})
    return values, tiles, done


@pytest.mark.parametrize(
    ("groups", "lag"),
    [
        (ProgramGroups(64, 16, 64, 8, 128), 3),
        (ProgramGroups(64, 16, 5, 8, 121), 1),
        (ProgramGroups(32, 8, 3, 2, 16), 2),
    ],
)
def test_every_tile_comes_behind_the_values_of_its_rows(groups: ProgramGroups, lag: int) -> None:
    values, tiles, done = played(groups, lag)
    assert values == list(range(groups.needed))
    assert sorted(tiles) == [(r, c) for r in range(groups.row_tiles) for c in range(groups.tiles)]
    for (row, _), count in zip(tiles, done, strict=True):
        assert count >= min(groups.needed, (row + 1) * groups.values)


def test_rows_that_do_not_exist_are_not_awaited() -> None:
    """The last tile's rows: their slots are beyond the mailbox. Others have no mask."""
    for rows, masked in ((16384, False), (160 * 32 + 96 * 32 + 32, True)):
        _, schedule, source = kernel_of(rows, 4096, staged=False)
        assert schedule.extents[0] * 32 == 64
        (first,) = [line for line in in_time(source).splitlines() if "volatile" in line]
        assert (f"(at_ix < {rows}), other=0, volatile" in first) == masked


@needs_a_compiler
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_it_compiles(target: str, known: Known, tmp_path: Path) -> None:
    program, _, source = kernel_of(16384, 4096)
    gpu, device = TARGETS[target]
    if known(gpu, (program, source)):
        return
    kernel = compiled(program, source, gpu)
    assert kernel.metadata.shared <= device.shared_memory
    assert (spilled(kernel, tmp_path) or 0) <= 112


def told(text: str) -> str:
    (body,) = re.findall(r'elementwise\("(\{.*?\})"', text)
    return body


@pytest.mark.parametrize("looked_at", [0, 1])
def test_of_every_copy_of_a_word_none_is_empty(looked_at: int) -> None:
    """Of 128 words, 256 threads have two copies. One was loaded before the word was there, one later."""
    text = "\n".join(awaited({"words": "at"}))
    there = torch.tensor([7, 8])

    def again(text: str, constraints: str, args: list[Any], **_: Any) -> Any:
        return torch.where(args[1] == EMPTY, there, args[1])

    known = {"full": lambda shape, value, dtype: value, "min": lambda words: words[looked_at].min()}
    tl = SimpleNamespace(int32=torch.int32, int64=torch.int64, inline_asm_elementwise=again, **known)
    names = {"tl": tl, "at": there, "words": torch.tensor([[EMPTY, 8], [7, 8]])}
    exec(text, names)
    assert names["words"].tolist() == [[7, 8], [7, 8]]


@pytest.mark.parametrize("wide", [False, True])
def test_a_tile_that_has_waited_too_long_begins_again(wide: bool) -> None:
    """With the values of its rows, and no others."""
    text = "\n".join(
        branches(ProgramGroups(64, 16, 5, 8, 75), "p", "row", wide, ["begun(row)"], ["ended(row)"])
    )
    text = re.sub(r"row = tl.*", "row += 100", re.sub(r"tl.inline_asm\S+\(.*\) == 0", "late == 0", text))
    calls: list[Any] = []
    known = {name: functools.partial(lambda *x: calls.append(x), name) for name in ("begun", "ended")}
    known["row_values"] = lambda p, part: calls.append(part)
    tl = SimpleNamespace(range=range, minimum=min, debug_barrier=lambda: calls.append("barrier"))
    for row, late in ((3, 0), (3, 1), (4, 1)):
        exec(text, {**known, "tl": tl, "p": 0, "row": row, "late": late})
    last = ["barrier", ("begun", 104), ("ended", 104)]
    assert calls == [
        ("ended", 3),
        *range(48, 64),
        "barrier",
        ("begun", 103),
        ("ended", 103),
        *range(64, 75),
        *last,
    ]


def test_the_interpreter_reads_what_is_there() -> None:
    """Of words that were empty, what their addresses have by now."""
    text = told(list(awaited({"words": "at"}))[2])
    memory = np.array([7, EMPTY, 9], np.int32)
    at = memory.ctypes.data + 4 * np.arange(3)
    (found,) = interpreted(text, [at, np.array([EMPTY, EMPTY, 8], np.int32)]) or [None]
    assert found.tolist() == [7, EMPTY, 8]
    assert interpreted("{ }", []) is None


def test_the_interpreter_knows_who_gave_up() -> None:
    first, *_ = branches(ProgramGroups(1, 1, 1, 1, 1), "", "row", False, [], [])
    for polls, late in ((0, 1), (1, 0), (POLLS, 0)):
        (found,) = interpreted(told(first), [np.array(polls, np.int32)]) or [None]
        assert int(found) == late
