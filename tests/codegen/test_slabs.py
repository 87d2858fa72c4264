"""Kernels over slabs: the plans, and machine code. Whole texts: tests/golden."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import graphs
import pytest
from devices import H200
from graphs import f32
from offline import TARGETS, Known, compiled, needs_a_compiler, spilled

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.options import Options
from mixorder.pipeline import run, setting_in_force
from mixorder.report import RegionRecord
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.plan import Applied
from mixorder.strategies.slabs import SLABS

GRAPHS = {
    "group": functools.partial(graphs.group_norm_backward, 8, 4096, 320, 32),
    "groups of 10 in float32": functools.partial(graphs.group_norm_backward, 8, 1023, 40, 4, f32),
    "group, behind a bias": functools.partial(graphs.group_norm_backward, 8, 4096, 320, 32, bias=True),
    "batch": functools.partial(graphs.batch_norm_backward, 401408, 64),
    "batch, 13 channels": functools.partial(graphs.batch_norm_backward, 100003, 13),
}


def record_of(name: str, device: DeviceInfo = H200) -> RegionRecord:
    setting = dataclasses.replace(setting_in_force(), device=device)
    (record,) = run(GRAPHS[name](), Options(interpret=True, strict=True, min_numel=0), setting)
    assert record.strategy == SLABS.name and len(record.kernels) == 3 + ("bias" in name)
    return record


def test_the_programs_of_a_plan() -> None:
    """A tile has a line of memory; four programs to a multiprocessor have a part of the sums each."""
    record = record_of("batch")
    totals = record.schedule.totals
    assert isinstance(totals, Applied) and totals.tile == (64, 64)
    sums, results, apply = record.kernels
    assert sums.grid == record.schedule.splits and 3.9 < sums.grid / H200.num_sm <= 4
    assert apply.grid == 401408 // 64 and results.grid < H200.num_sm
    assert all("atomic" not in one.text for one in record.kernels)


@pytest.mark.parametrize("samples", [8, 200])
def test_a_sum_of_what_the_third_kernel_writes(samples: int) -> None:
    """Is in a fourth kernel, if few parts are left of it."""
    graph = graphs.group_norm_backward(samples, 4096, 64, 32, bias=True)
    (record,) = run(graph, Options(interpret=True, strict=True, min_numel=0), setting_in_force())
    assert len(record.kernels) == (4 if samples == 8 else 3)
    assert len(record.outer_ops) == 6 + (samples == 8)


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_it_compiles(name: str, target: str, known: Known, tmp_path: Path) -> None:
    gpu, device = TARGETS[target]
    record = record_of(name, device)
    programs: list[tuple[LoopProgram, KernelSource]] = [(record.loops, one) for one in record.kernels]
    if known(gpu, *programs):
        return
    for program, source in programs:
        kernel = compiled(program, source, gpu)
        assert kernel.metadata.shared <= device.shared_memory
        assert gpu.backend != "cuda" or not spilled(kernel, tmp_path)


@needs_a_compiler
@pytest.mark.parametrize("name", ["group", "batch"])
def test_a_thread_adds_up_what_it_loads(name: str) -> None:
    """In the first kernel's loop, a thread has four loads of each tensor under way, and exchanges nothing."""
    record = record_of(name)
    ptx = compiled(record.loops, record.kernels[0], TARGETS["sm_90"][0]).asm["ptx"]
    begin = re.findall(r"bra\s+(\S+);", ptx)[-1]
    loop = ptx.partition(f"{begin}:")[2].partition("bra")[0]
    tensors = 3 if name == "batch" else 2
    assert len(re.findall(r"ld\.global\S*\.v4|cp\.async\.cg", loop)) == 4 * tensors
    assert "shfl" not in loop
