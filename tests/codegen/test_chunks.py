"""Kernels that hold a row in several chunks: one whole as text, and the others as machine code for sm_90.

Compiled without a GPU, each beside the kernel that holds the row in one tile: what chunks are for (fewer
lanes: less shared memory, fewer copies) and what they must not cost (exchanges between threads, spills).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import graphs
import pytest
from devices import H200
from expecttest import TestCase
from graphs import f32, generate, only
from offline import TARGETS, compiled, main_loop, needs_a_compiler, spilled

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.schedule.constants import FITTED
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose, layouts
from mixorder.schedule.schedule import Schedule

pytestmark = needs_a_compiler

NORMS = {"rms": graphs.rms_norm_backward, "layer": graphs.layer_norm_backward}
MANY = dataclasses.replace(FITTED, chunk_saving=0.1, min_chunk=32)


def chunked(graph: Any) -> tuple[LoopProgram, Schedule, KernelSource]:
    program = graphs.merged(only(graph))
    schedule = choose(facts_of(program), H200, constants=MANY)
    return program, schedule, generate(program, schedule, "test")[0]


def loop_of(ptx: str) -> str:
    """The lines of the longest loop: from a label to the last branch back to it."""
    lines = [line.strip() for line in ptx.splitlines()]
    labels = {line.split(":")[0]: i for i, line in enumerate(lines) if re.match(r"\$L\w+:", line)}
    branches = [(labels[to], i) for i, line in enumerate(lines) for to in labels if line.endswith(f"{to};")]
    first, last = max(branches, key=lambda branch: branch[1] - branch[0])
    return "\n".join(lines[first:last])


class TestWhole(TestCase):
    maxDiff = None

    def test_rms_norm_whose_last_chunk_has_lanes_beyond_the_end(self) -> None:
        _, _, main = chunked(graphs.rms_norm_backward(4096, 88, f32))
        self.assertExpectedInline(
            main.text,
            """\
@triton.jit
def triton_mixorder_test_3da8908e(in0_ptr, in1_ptr, in2_ptr, in3_ptr, out0_ptr, ws0_ptr, XBLOCK: tl.constexpr, NUM_STAGES: tl.constexpr):
    R0_BLOCK: tl.constexpr = 32
    s = tl.program_id(0)
    y_0 = tl.arange(0, R0_BLOCK)[None, :]
    y_1 = 32 + tl.arange(0, R0_BLOCK)[None, :]
    y_2 = 64 + tl.arange(0, R0_BLOCK)[None, :]
    ymask_2 = y_2 < 88
    tmp0 = tl.full([], 0.011363636363636364, tl.float32)
    tmp1 = tl.load(tl.broadcast_to(in1_ptr + (y_0), [XBLOCK, R0_BLOCK]))
    tmp2 = tl.load(tl.broadcast_to(in1_ptr + (y_1), [XBLOCK, R0_BLOCK]))
    tmp3 = tl.load(tl.broadcast_to(in1_ptr + (y_2), [XBLOCK, R0_BLOCK]), ymask_2, other=0)
    ws0_acc_0 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_error_0 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_acc_1 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_error_1 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_acc_2 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    ws0_error_2 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for tile in tl.range(s, tl.cdiv(4096, XBLOCK), 128, num_stages=NUM_STAGES):
        x = tile * XBLOCK + tl.arange(0, XBLOCK)[:, None]
        tmp4 = tl.load(in3_ptr + (x))
        tmp5 = tl.load(in0_ptr + (y_0 + 88*x), eviction_policy='evict_first')
        tmp6 = tl.load(in0_ptr + (y_1 + 88*x), eviction_policy='evict_first')
        tmp7 = tl.load(in0_ptr + (y_2 + 88*x), ymask_2, other=0, eviction_policy='evict_first')
        tmp8 = tmp5 * tmp1
        tmp9 = tmp6 * tmp2
        tmp10 = tmp7 * tmp3
        tmp11 = tl.load(in2_ptr + (y_0 + 88*x), eviction_policy='evict_first')
        tmp12 = tl.load(in2_ptr + (y_1 + 88*x), eviction_policy='evict_first')
        tmp13 = tl.load(in2_ptr + (y_2 + 88*x), ymask_2, other=0, eviction_policy='evict_first')
        tmp14 = tmp11 * tmp4
        tmp15 = tmp12 * tmp4
        tmp16 = tmp13 * tmp4
        tmp17 = tmp14 * tmp0
        tmp18 = tmp15 * tmp0
        tmp19 = tmp16 * tmp0
        tmp20 = tmp14 * tmp8
        tmp21 = tmp15 * tmp9
        tmp22 = tmp16 * tmp10
        tmp23 = tmp5 * tmp14
        tmp24 = tmp6 * tmp15
        tmp25 = tmp7 * tmp16
        tmp26 = tmp23 - ws0_error_0
        tmp27 = ws0_acc_0 + tmp26
        ws0_error_0 = tl.where(tl.abs(tmp27) < float('inf'), (tmp27 - ws0_acc_0) - tmp26, 0.0)
        ws0_acc_0 = tmp27
        tmp28 = tmp24 - ws0_error_1
        tmp29 = ws0_acc_1 + tmp28
        ws0_error_1 = tl.where(tl.abs(tmp29) < float('inf'), (tmp29 - ws0_acc_1) - tmp28, 0.0)
        ws0_acc_1 = tmp29
        tmp30 = tmp25 - ws0_error_2
        tmp31 = ws0_acc_2 + tmp30
        ws0_error_2 = tl.where(tl.abs(tmp31) < float('inf'), (tmp31 - ws0_acc_2) - tmp30, 0.0)
        ws0_acc_2 = tmp31
        tmp32 = tmp20 + tmp21
        tmp33 = tmp32 + tl.where(ymask_2, tmp22, 0.0)
        tmp34 = tl.sum(tmp33, 1)[:, None]
        tmp35 = tmp17 * tmp34
        tmp36 = tmp18 * tmp34
        tmp37 = tmp19 * tmp34
        tmp38 = tmp35 * -1.0
        tmp39 = tmp36 * -1.0
        tmp40 = tmp37 * -1.0
        tmp41 = tl.fma(tmp5, tmp1, tmp38)
        tmp42 = tl.fma(tmp6, tmp2, tmp39)
        tmp43 = tl.fma(tmp7, tmp3, tmp40)
        tmp44 = tmp41 * tmp4
        tmp45 = tmp42 * tmp4
        tmp46 = tmp43 * tmp4
        tl.store(out0_ptr + (y_0 + 88*x), tmp44)
        tl.store(out0_ptr + (y_1 + 88*x), tmp45)
        tl.store(out0_ptr + (y_2 + 88*x), tmp46, ymask_2)
    s = tl.inline_asm_elementwise("{ .reg .b32 mixorder_pass; griddepcontrol.launch_dependents; mov.b32 $0, $1; }", "=r,r", [s], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(ws0_ptr + (y_0 + 88*s), tl.sum(ws0_acc_0 - ws0_error_0, 0)[None, :])
    tl.store(ws0_ptr + (y_1 + 88*s), tl.sum(ws0_acc_1 - ws0_error_1, 0)[None, :])
    tl.store(ws0_ptr + (y_2 + 88*s), tl.sum(ws0_acc_2 - ws0_error_2, 0)[None, :], ymask_2)
""",  # noqa: E501
        )


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "chunks"),
    [
        ("rms", 32768, 5120, 5),
        ("layer", 32768, 6144, 3),
        ("layer", 32768, 768, 3),
        ("rms", 32768, 1152, 5),
    ],
)
def test_chunks_beside_one_tile(norm: str, rows: int, cols: int, chunks: int, tmp_path: Path) -> None:
    program, schedule, main = chunked(NORMS[norm](rows, cols))
    assert schedule.chunks == chunks
    lanes, one = layouts(facts_of(program))[0]
    alone = dataclasses.replace(schedule, r0_block=lanes, chunks=one)
    gpu, device = TARGETS["sm_90"]
    kernel = compiled(program, main, gpu)
    other = compiled(program, generate(program, alone, "test")[0], gpu)
    loop, other_loop = ("\n".join(main_loop(k.asm["ttgir"])) for k in (kernel, other))
    assert "ttg.convert_layout" not in loop and "tt.load" not in loop
    assert loop.count('"tt.reduce"') == other_loop.count('"tt.reduce"') > 0
    barriers, other_barriers = (loop_of(k.asm["ptx"]).count("bar.sync") for k in (kernel, other))
    assert 0 < barriers <= other_barriers
    assert spilled(kernel, tmp_path) == 0 and kernel.metadata.shared <= device.shared_memory
    # Per stage, x and dy of the lanes that there are.
    saved = (lanes - schedule.r0_block) * schedule.tile.xblock * 4 * (schedule.tile.num_stages - 1)
    assert 0.9 * saved <= other.metadata.shared - kernel.metadata.shared <= 1.1 * saved


def test_a_row_too_wide_for_one_tile_fits_in_chunks(tmp_path: Path) -> None:
    """12288 columns in 16384 lanes: 4 words held for each of these are more than there are registers."""
    program, schedule, main = chunked(graphs.rms_norm_backward(8192, 12288))
    assert schedule.parts == 1 and (schedule.chunks, schedule.chunk) == (3, 4096)
    assert spilled(compiled(program, main, TARGETS["sm_90"][0]), tmp_path) == 0
