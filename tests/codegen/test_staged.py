"""The kernel that puts staged results in place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from expecttest import TestCase
from graphs import bf16, merged, traced, within_tile
from offline import TARGETS, compiled, needs_a_compiler, spilled
from support.quantised import RECIPES

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.strategies import TILE


def placing(name: str, rows: int, cols: int, overlap: bool = True) -> tuple[LoopProgram, KernelSource]:
    region = within_tile(traced(lambda x: RECIPES[name].function(x), ((rows, cols), bf16)))
    program = merged(region)
    schedule = tile.choose(TILE.facts(program), H200)
    schedule = dataclasses.replace(schedule, staged=True, overlap=overlap)
    loops = TILE.place(program, schedule)
    return loops, TILE.generate(loops, schedule, "test")[-1]


class TestText(TestCase):
    maxDiff = None

    def test_two_copies_of_sizes_that_are_no_multiple_of_a_tile(self) -> None:
        _, source = placing("blocks_both", 384, 1280, overlap=False)
        self.assertExpectedInline(
            source.text,
            """\
@triton.jit
def copy0(out0_ptr, stage0_ptr, program):
    r_tile = program
    at_c = tl.arange(0, 16)
    at_r = r_tile * 32 + tl.arange(0, 32)
    tmp0 = tl.load(stage0_ptr + (384 * at_c[:, None] + at_r[None, :]), (at_c[:, None] < 10), other=0)
    tl.store(out0_ptr + (10 * at_r[:, None] + at_c[None, :]), tl.permute(tmp0, (1, 0)), (at_c[None, :] < 10))


@triton.jit
def copy1(out2_ptr, stage1_ptr, program):
    r_tile = program
    at_c = tl.arange(0, 4)
    at_r = r_tile * 32 + tl.arange(0, 32)
    tmp0 = tl.load(stage1_ptr + (1280 * at_c[:, None] + at_r[None, :]), (at_c[:, None] < 3), other=0)
    tl.store(out2_ptr + (3 * at_r[:, None] + at_c[None, :]), tl.permute(tmp0, (1, 0)), (at_c[None, :] < 3))


@triton.jit
def triton_mixorder_test_place_777548a2(out0_ptr, stage0_ptr, out2_ptr, stage1_ptr):
    program = tl.program_id(0)
    if program < 12:
        copy0(out0_ptr, stage0_ptr, program - 0)
    elif program < 52:
        copy1(out2_ptr, stage1_ptr, program - 12)
""",
        )


def test_a_program_for_each_tile_of_each_result() -> None:
    _, source = placing("mx_both", 16384, 4096)
    assert source.buffers == ("out0", "stage0", "out2", "stage1") and source.written == ("out0", "out2")
    assert source.grid == 16384 // 64 * 1 + 4096 // 64 * 4
    assert source.waits and "griddepcontrol.wait" in source.text
    _, behind = placing("mx_both", 16384, 4096, overlap=False)
    assert not behind.waits and "griddepcontrol" not in behind.text


@needs_a_compiler
@pytest.mark.parametrize(("name", "target"), [("mx_both", "sm_90"), ("blocks_both", "sm_100")])
def test_it_compiles(name: str, target: str, tmp_path: Path) -> None:
    loops, source = placing(name, 16384, 4096)
    gpu, device = TARGETS[target]
    kernel = compiled(loops, source, gpu)
    assert kernel.metadata.shared <= device.shared_memory and not spilled(kernel, tmp_path)
    accesses = [line for line in kernel.asm["ptx"].splitlines() if ".global" in line and "b" in line]
    wide = [line for line in accesses if ".v4.b32" in line or ".v2.b32" in line]
    assert len(wide) >= len(source.buffers)
