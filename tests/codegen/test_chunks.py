"""Kernels that hold a row in several chunks, as machine code for sm_90.

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
from graphs import generate, only
from offline import TARGETS, Known, compiled, main_loop, needs_a_compiler, spilled

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.schedule.constants import FITTED
from mixorder.schedule.facts import facts_of
from mixorder.schedule.persistent import choose, layouts
from mixorder.schedule.plan import Plan

pytestmark = needs_a_compiler

NORMS = {"rms": graphs.rms_norm_backward, "layer": graphs.layer_norm_backward}
MANY = dataclasses.replace(FITTED, chunk_saving=0.1, min_chunk=32)


def chunked(graph: Any) -> tuple[LoopProgram, Plan, KernelSource]:
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


@pytest.mark.parametrize(
    ("norm", "rows", "cols", "chunks"),
    [
        ("rms", 32768, 5120, 5),
        ("layer", 32768, 6144, 3),
        ("layer", 32768, 768, 3),
        ("rms", 32768, 1152, 5),
    ],
)
def test_chunks_beside_one_tile(
    norm: str, rows: int, cols: int, chunks: int, known: Known, tmp_path: Path
) -> None:
    program, schedule, main = chunked(NORMS[norm](rows, cols))
    assert schedule.chunks == chunks
    lanes, one = layouts(facts_of(program))[0]
    alone = schedule.changed(chunk=lanes // one, chunks=one)
    gpu, device = TARGETS["sm_90"]
    whole = generate(program, alone, "test")[0]
    if known(gpu, (program, main), (program, whole)):
        return
    kernel, other = compiled(program, main, gpu), compiled(program, whole, gpu)
    loop, other_loop = ("\n".join(main_loop(k.asm["ttgir"])) for k in (kernel, other))
    assert "ttg.convert_layout" not in loop and "tt.load" not in loop
    assert loop.count('"tt.reduce"') == other_loop.count('"tt.reduce"') > 0
    barriers, other_barriers = (loop_of(k.asm["ptx"]).count("bar.sync") for k in (kernel, other))
    assert 0 < barriers <= other_barriers
    assert spilled(kernel, tmp_path) == 0 and kernel.metadata.shared <= device.shared_memory
    # Per stage, x and dy of the lanes that there are.
    saved = (lanes - schedule.lanes) * schedule.tile_rows * 4 * (schedule.launch.num_stages - 1)
    assert 0.9 * saved <= other.metadata.shared - kernel.metadata.shared <= 1.1 * saved


def test_a_row_too_wide_for_one_tile_fits_in_chunks(known: Known, tmp_path: Path) -> None:
    """12288 columns in 16384 lanes: 4 words held for each of these are more than there are registers."""
    program, schedule, main = chunked(graphs.rms_norm_backward(8192, 12288))
    assert schedule.group == 1 and (schedule.chunks, schedule.chunk) == (3, 4096)
    gpu, _ = TARGETS["sm_90"]
    assert known(gpu, (program, main)) or spilled(compiled(program, main, gpu), tmp_path) == 0
