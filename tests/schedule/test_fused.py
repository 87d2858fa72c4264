"""The time of a fused region's kernels, from made-up kernels and from schedules of a norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import graphs
import pytest
import torch
from graphs import bf16, f32

from mixorder import pipeline
from mixorder.options import Options
from mixorder.report import RegionRecord, collect
from mixorder.schedule.device import H200
from mixorder.schedule.facts import facts_of
from mixorder.schedule.fused import Fused, _ahead, fused_kernels, main_work
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


def test_sums_of_few_columns_and_by_one_warp_take_less() -> None:
    """H100, one tile of 32x20 by 2 warps: 2.3 us measured."""
    assert us(rows=32, chains=16) > us(rows=64, chains=16) > us(rows=128, chains=16)
    alone = us(rows=4, warps=1, sums=9) - us(rows=1, warps=1, sums=9)
    assert alone < 0.5 * (us(rows=4, warps=2, sums=9) - us(rows=1, warps=2, sums=9))


def test_nothing_waits_for_the_only_tile() -> None:
    """As of several tiles, of which the first is loaded before anything else."""
    assert _ahead(1, 1, 16) == _ahead(5, 1, 2) == _ahead(5, 9, 16) == 4
    assert _ahead(1, 9, 16) == _ahead(5, 9, 2) == 1


def test_a_program_with_all_rows_has_no_finalisation() -> None:
    one = us(launches=1, finalising=0, workspace=0)
    assert us(finalising=1, workspace=0) - one == pytest.approx(TIMES.launch_us + TIMES.final_us)


def test_a_thread_with_few_elements_has_no_more_loads() -> None:
    few = {"tile_bytes": 128.0, "steps": 1000}
    assert us(width=2) > us() and us(**few, width=2) == us(**few)


def test_the_elements_of_a_thread_in_a_chunk(norm: RegionRecord) -> None:
    chunks = norm.schedule.changed(tile_rows=2, num_warps=1, num_stages=2, chunks=3, chunk=128)
    whole = chunks.changed(chunks=1, chunk=512)
    assert (kernels(chunks, norm).chains, kernels(whole, norm).chains) == (8, 32)


def test_a_last_turn_of_few_programs_is_not_free() -> None:
    """5 programs take two turns of 4 as 8 do."""
    busy = Work(1e6, 1e6, instructions=1e10)
    assert us(work=busy, programs=5 * SM) > 1.2 * us(work=busy, programs=4 * SM)


def test_few_programs_do_not_overlap_narrow_loads_of_many_rows() -> None:
    """Of the same tiles on a multiprocessor, in two programs or in four."""
    many = {"width": 4, "rows": 8}
    two, four = (us(**many, programs=n * SM, steps=40 // n) for n in (2, 4))
    assert two > 1.6 * four
    for same in ({"width": 16}, {"rows": 4}):  # wide loads, or few rows
        assert us(**many | same, programs=2 * SM) < 1.2 * us(**many | same, programs=3 * SM)


def test_loads_of_eight_bytes_are_as_good_as_wide_ones() -> None:
    """H100, 12544x512 with channels first: 43 us, predicted 64 as loads of 4 bytes and 36 as wide ones."""
    few = {"rows": 8, "programs": 2 * SM}
    assert us(**few, width=4) > 1.5 * us(**few, width=8)


def test_what_is_only_stored_waits_for_no_loads() -> None:
    """A region that reads no full tensor was predicted at 100 ms, and takes 50 us."""
    assert us(tile_bytes=0.0) <= us()


def record_of(function: Any, *specs: Any) -> RegionRecord:
    with collect() as records:
        pipeline.run(graphs.traced(function, *specs), Options(enabled=True, interpret=True, min_numel=0))
    (record,) = records
    assert isinstance(record, RegionRecord)
    return record


def test_integers_of_eight_bytes_beside_bytes_touch_many_lines() -> None:
    """16 elements of a thread, or 8, take 8 bytes each: a warp's accesses are in lines of their own."""

    def function(x: Any, count: Any, mask: Any) -> Any:
        y = x * mask / count
        return y, y.sum(0)

    record = record_of(function, ((4096, 512), bf16), ((4096, 512), torch.int64), ((4096, 512), torch.bool))
    facts, lines = facts_of(record.loops), []
    for warps in (2, 4):
        schedule = record.schedule.changed(tile_rows=2, num_warps=warps, num_stages=1, chunk=512)
        lines.append(main_work(record.loops, schedule, facts)[0].lines / facts.numel)
    assert lines[0] > lines[1] > 0


@pytest.mark.parametrize(("cols", "crossed"), [(192, False), (384, True)])
def test_wide_rows_that_lie_both_ways_take_longer_ahead(cols: int, crossed: bool) -> None:
    """H200, SAM, 262144x768: 2168 us, 854 predicted without this; 192 columns take what is predicted."""

    def function(x: Any, dy: Any) -> Any:
        return dy - x * (x * dy).sum(-1, keepdim=True), (x * dy).sum(0)

    record = record_of(function, *[((16384, cols), bf16)] * 2)
    facts, moved = dataclasses.replace(facts_of(record.loops), both_ways=True), record.traffic
    one, ahead = (record.schedule.changed(num_stages=n) for n in (1, 3))
    found = [fused_kernels(record.loops, schedule, facts, moved) for schedule in (one, ahead)]
    assert [kernels.crossed for kernels in found] == [False, crossed]
    plain = dataclasses.replace(found[1], crossed=False)
    assert (found[1].us(H200, TIMES) > 1.5 * plain.us(H200, TIMES)) == crossed


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
