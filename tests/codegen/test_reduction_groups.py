"""Kernels over reduction groups: the plans, and machine code. Whole texts: tests/golden."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import graphs
import pytest
import torch
from devices import H200
from graphs import bf16, f32, traced
from offline import TARGETS, Known, compiled, needs_a_compiler, spilled
from torch.fx import Graph

from mixorder.codegen.source import KernelSource
from mixorder.ir.program import LoopProgram
from mixorder.options import Options
from mixorder.pipeline import run, setting_in_force
from mixorder.report import RegionRecord
from mixorder.schedule.device import DeviceInfo
from mixorder.strategies.reduction_groups import TWO_PASS
from mixorder.strategies.whole_groups import WHOLE_GROUPS

FULL = ((32, 64, 64, 64), bf16)


def branches() -> Graph:
    """Five batch norms of one gradient, channels first. A sum of each row's element takes registers."""

    def function(dy: Any, w: Any, mean: Any, rstd: Any, *xs: Any) -> Any:
        one = torch.ops.aten.native_batch_norm_backward
        return [one(dy, x, w, None, None, mean, rstd, True, 1e-5, [True] * 3) for x in xs]

    return traced(function, FULL, *[((64,), f32)] * 3, *[FULL] * 5)


def of_float8() -> Graph:
    """Elements in float8, of which the third kernel reads those that the first one stores."""

    def function(x: Any, y: Any) -> Any:
        z = (stored := (x + y).to(torch.float8_e5m2)).float()
        return stored, z - z.mean((0, 2, 3), keepdim=True)

    return traced(function, *[((32, 64, 63, 61), bf16)] * 2)


GRAPHS = {
    "group": functools.partial(graphs.group_norm_backward, 8, 4096, 320, 32),
    "groups of 10 in float32": functools.partial(graphs.group_norm_backward, 8, 1023, 40, 4, f32),
    "group, behind a bias": functools.partial(graphs.group_norm_backward, 8, 4096, 320, 32, bias=True),
    "batch": functools.partial(graphs.batch_norm_backward, 401408, 64),
    "group, of any batch": functools.partial(graphs.group_norm_backward, 8, 4096, 320, 32, symbolic=True),
    "batch of any size": functools.partial(graphs.batch_norm_backward, 401408, 64, symbolic=True),
    "batch, 13 channels": functools.partial(graphs.batch_norm_backward, 100003, 13),
    "branches": branches,
    "float8": of_float8,
    "statistics": functools.partial(graphs.group_norm_forward, 8, 4096, 320, 32),
    "statistics of groups of 10": functools.partial(graphs.group_norm_forward, 8, 1023, 40, 4, f32),
}
WHOLE = {
    "whole groups": functools.partial(graphs.group_norm_backward, 64, 256, 512, 32),
    "whole groups, behind a bias": functools.partial(graphs.group_norm_backward, 64, 256, 512, 32, bias=True),
    "whole groups, of any batch": functools.partial(
        graphs.group_norm_backward, 64, 256, 512, 32, symbolic=True
    ),
    "statistics of whole groups": functools.partial(graphs.group_norm_forward, 64, 256, 512, 32),
}


def record_of(name: str, device: DeviceInfo = H200) -> RegionRecord:
    setting = dataclasses.replace(setting_in_force(), device=device)
    (record,) = run((GRAPHS | WHOLE)[name](), Options(interpret=True, strict=True, min_numel=0), setting)
    if name in WHOLE:
        assert record.strategy == WHOLE_GROUPS.name and len(record.kernels) == 2 - ("statistics" in name)
    else:
        assert record.strategy == TWO_PASS.name and len(record.kernels) == 3 + ("bias" in name)
    return record


@needs_a_compiler
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS | WHOLE)
def test_it_compiles(name: str, target: str, known: Known, tmp_path: Path) -> None:
    gpu, device = TARGETS[target]
    if (name, target) == ("float8", "sm_80"):
        pytest.skip("triton 3.6 casts to float8 as for the first target that the process compiled")
    record = record_of(name, device)
    programs: list[tuple[LoopProgram, KernelSource]] = [(record.loops, one) for one in record.kernels]
    if known(gpu, *programs):
        return
    for program, source in programs:
        kernel = compiled(program, source, gpu)
        assert kernel.metadata.shared <= device.shared_memory
        assert gpu.backend != "cuda" or not spilled(kernel, tmp_path)
