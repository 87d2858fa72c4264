"""The time of a fused region's kernels, from made-up kernels and from schedules of a norm."""

from __future__ import annotations

import dataclasses

import graphs
import pytest
from graphs import f32

from mixorder import pipeline
from mixorder.options import Options
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.fused import Fused, fused_kernels
from mixorder.schedule.kernel_time import TIMES
from mixorder.schedule.plan import Plan
from mixorder.schedule.work import Work

SM = H200.num_sm
KERNELS = Fused(
    launches=2,
    work=Work(1e8, 1e8, requests=1e6),
    programs=4 * SM,
    warps=4,
    chains=16,
    resident=4,
    steps=10,
    rows=4,
    levels=1,
    ahead=3,
    tile_bytes=8192.0,
    width=16,
    spilled=0.0,
    sums=2,
    finalising=256,
    workspace=1000,
    copied=0,
)


def us(**changes: float) -> float:
    return dataclasses.replace(KERNELS, **changes).us(H200, TIMES)


@pytest.mark.parametrize(
    "changes",
    [
        {"work": Work(1e8, 1e8, requests=1e6, lines=1e7)},
        {"work": Work(2e8, 1e8, requests=1e6)},
        {"work": Work(1e8, 1e8, instructions=4e9, requests=1e6)},
        {"steps": 1000},
        {"steps": 200, "levels": 8},
        {"steps": 200, "ahead": 1},
        {"steps": 200, "width": 2},
        {"tile_bytes": 512.0},  # too little under way to hide memory's latency
        {"spilled": 1e9},
        {"sums": 8},
        {"warps": 32},  # sums over the rows of more threads at a program's end
        {"resident": 1, "steps": 100},  # programs take turns
        {"workspace": 10**8},
        {"copied": 10**8},
    ],
)
def test_what_takes_longer(changes: dict[str, float]) -> None:
    assert us(**changes) > 1.05 * us()


def test_what_is_only_stored_waits_for_no_loads() -> None:
    """A region that reads no full tensor was predicted at 100 ms, and takes 50 us."""
    assert us(tile_bytes=0.0) <= us()


def kernels(schedule: Plan, record: RegionRecord) -> Fused:
    return fused_kernels(record.loops, schedule, facts_of(record.loops), record.traffic)


@pytest.fixture(scope="module")
def norm() -> RegionRecord:
    with collect() as records:
        pipeline.run(
            graphs.layer_norm_backward(12544, 384, f32), Options(enabled=True, interpret=True, min_numel=0)
        )
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record


def test_tiles_that_do_not_fit_the_registers_spill(norm: RegionRecord) -> None:
    crowded = norm.schedule.changed(tile_rows=16 * norm.schedule.tile_rows)
    assert kernels(norm.schedule, norm).spilled == 0 < kernels(crowded, norm).spilled


def test_the_programs_of_a_multiprocessor(norm: RegionRecord) -> None:
    """By registers, and by shared memory for the tiles that are loaded ahead."""
    few = norm.schedule.changed(tile_rows=1, num_warps=1, num_stages=2, chunks=3, chunk=128)
    many = few.changed(tile_rows=1, num_warps=1, num_stages=6)
    large = few.changed(tile_rows=8, num_warps=8, num_stages=5)
    assert kernels(few, norm).resident >= kernels(many, norm).resident > kernels(large, norm).resident


def test_a_norm_of_384_columns_has_small_programs(norm: RegionRecord) -> None:
    """H200, three compensated sums of 12544x384: programs of 8 warps 30.4 us, of 1 or 2 warps 22 to 25 us."""
    assert norm.schedule.launch.num_warps <= 4 and norm.schedule.splits > SM
    whole = norm.schedule.changed(tile_rows=8, num_warps=8, num_stages=5, chunk=512, chunks=1, splits=SM)
    assert kernels(norm.schedule, norm).us(H200, TIMES) < 0.92 * kernels(whole, norm).us(H200, TIMES)
