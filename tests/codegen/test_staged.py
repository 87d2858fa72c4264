"""The kernel that puts staged results in place."""

from __future__ import annotations

from pathlib import Path

import pytest
from graphs import bf16, merged, traced, within_tile
from offline import TARGETS, Known, compiled, needs_a_compiler, spilled
from support.quantised import RECIPES

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.schedule import tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.strategies.tile import TILE


def placing(name: str, rows: int, cols: int, overlap: bool = True) -> tuple[LoopProgram, KernelSource]:
    region = within_tile(traced(lambda x: RECIPES[name].function(x), ((rows, cols), bf16)))
    program = merged(region)
    facts = tile.facts_of_tile(program)
    schedule = tile.through_workspace(tile.choose(facts, H200), facts).changed(dependent=overlap)
    loops = TILE.place(program, schedule)
    return loops, TILE.generate(loops, schedule, "test")[-1]


@needs_a_compiler
@pytest.mark.parametrize(("name", "target"), [("mx_both", "sm_90"), ("blocks_both", "sm_100")])
def test_it_compiles(name: str, target: str, known: Known, tmp_path: Path) -> None:
    loops, source = placing(name, 16384, 4096)
    gpu, device = TARGETS[target]
    if known(gpu, (loops, source)):
        return
    kernel = compiled(loops, source, gpu)
    assert kernel.metadata.shared <= device.shared_memory and not spilled(kernel, tmp_path)
    accesses = [line for line in kernel.asm["ptx"].splitlines() if ".global" in line and "b" in line]
    wide = [line for line in accesses if ".v4.b32" in line or ".v2.b32" in line]
    assert len(wide) >= len(source.buffers)
