"""Kernels over slabs: the plans, and machine code. Whole texts: tests/golden."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from devices import H200
from graphs import bf16, f32
from offline import TARGETS, Known, compiled, needs_a_compiler, spilled

from mixorder.codegen.source import KernelSource
from mixorder.errors import Decline, DeclineReason
from mixorder.ir.program import LoopProgram
from mixorder.options import Options
from mixorder.pipeline import run, setting_in_force
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.plan import Applied
from mixorder.strategies.slabs import SLABS

GRAPHS = {
    "group": functools.partial(graphs.group_norm_backward, 8, 4096, 320, 32),
    "groups of 10 in float32": functools.partial(graphs.group_norm_backward, 8, 1023, 40, 4, f32),
    "batch": functools.partial(graphs.batch_norm_backward, 401408, 64),
    "batch, 13 channels": functools.partial(graphs.batch_norm_backward, 100003, 13),
}


def record_of(name: str, device: DeviceInfo = H200) -> RegionRecord:
    setting = dataclasses.replace(setting_in_force(), device=device)
    (record,) = run(GRAPHS[name](), Options(interpret=True, strict=True, min_numel=0), setting)
    assert record.strategy == SLABS.name and len(record.kernels) == 3
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


@pytest.mark.parametrize(("rows", "fused"), [(6272, False), (32768, True)])
def test_sums_of_few_rows_are_left_to_inductor(rows: int, fused: bool) -> None:
    """Each program adds up the rows of its tile at its end. H100: 6272x2048 took 4% more than Inductor's
    kernels, 32768x2048 5% less."""

    def function(dy: Any, x: Any, mask: Any, mean: Any, rstd: Any, w: Any) -> Any:
        gradient = torch.where(mask, 0.0, dy).to(f32)
        normed = (x.to(f32) - mean) * rstd
        dw, db = (gradient * normed).sum(0), gradient.sum(0)
        return ((gradient - normed * (dw / rows) - db / rows) * (rstd * w)).to(bf16), dw, db

    full, of_channels = (rows, 2048), ((2048,), f32)
    graph = graphs.traced(function, (full, bf16), (full, bf16), (full, torch.bool), *[of_channels] * 3)
    device = dataclasses.replace(H200, name="NVIDIA H100", bandwidth=3.35e12)
    setting = dataclasses.replace(setting_in_force(), device=device)
    with collect() as records:
        run(graph, Options(interpret=True, strict=True), setting)
    found = [r.reason if isinstance(r, Decline) else r.strategy for r in records]
    assert found == [SLABS.name if fused else DeclineReason.SLOWER]


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
