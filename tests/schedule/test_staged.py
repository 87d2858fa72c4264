"""When small results are staged, by the requests that a tile's elements of them are."""

from __future__ import annotations

import dataclasses

import pytest
from graphs import bf16, merged, traced, within_tile
from support.quantised import RECIPES

from mixorder.ir.program import Store
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.staged import Small, pays, placing_us, saved_us, staged_of
from mixorder.schedule.tile import TileFacts

SIZES, TILE = (512, 32, 128, 32), (2, 32, 2, 32)  # 16384x4096 in blocks of 32
OF_ROWS, OF_COLUMNS = Small("out0", 1, (2, 1, 0)), Small("out2", 1, (0, 3, 2))


def facts_of(name: str, rows: int = 16384, cols: int = 4096) -> TileFacts:
    recipe = RECIPES[name]
    graph = traced(lambda *args: recipe.function(*args), *recipe.like(rows, cols))
    return tile.facts_of_tile(merged(within_tile(graph)))


def test_the_scales_of_both_kinds_of_blocks_are_small_results() -> None:
    assert facts_of("mx_both").small == (OF_ROWS, OF_COLUMNS)
    squares = facts_of("squares")
    assert not staged_of(squares.small, squares.sizes, (1, 128, 1, 128))  # a scale for each tile
    assert [one.item_bytes for one in facts_of("blocks_both").small] == [4, 4]


@pytest.mark.parametrize("small", [OF_ROWS, OF_COLUMNS])
def test_a_request_for_each_row_or_for_a_line(small: Small) -> None:
    assert small.requests(SIZES, TILE, staged=False) == 64
    assert small.requests(SIZES, TILE, staged=True) == 2  # of 64 bytes each
    assert small.is_apart(SIZES, TILE) and small.num_bytes(SIZES) == 16384 * 128


def test_whole_sectors_are_not_staged() -> None:
    wide = (2, 32, 32, 32)
    assert staged_of([OF_ROWS, OF_COLUMNS], SIZES, wide) == [OF_COLUMNS]
    assert not staged_of([dataclasses.replace(OF_ROWS, item_bytes=16)], SIZES, TILE)
    assert not staged_of([OF_ROWS], (512, 32, 2, 32), TILE)  # all of the first axis


def test_what_is_saved_is_that_of_all_requests() -> None:
    """4 million requests of dSwiGLU: 224 us, and 195."""
    facts = facts_of("swiglu_backward")
    assert saved_us(facts.small, facts.sizes, TILE) == pytest.approx(29, rel=0.2)


@pytest.mark.parametrize(
    ("name", "rows", "staged"),
    [
        ("blocks_both", 16384, True),
        ("blocks_both", 4096, False),  # the second launch takes longer
        ("squares", 16384, False),
        ("mx4_both", 16384, False),  # computing takes much longer
    ],
)
def test_where_it_pays(name: str, rows: int, staged: bool) -> None:
    schedule = tile.choose(facts_of(name, rows), H200)
    assert bool(schedule.results) == schedule.launch.dependent == staged


def test_nothing_is_staged_where_the_rate_of_memory_is_not_known() -> None:
    facts = facts_of("swiglu_backward")
    unknown = dataclasses.replace(H200, bandwidth=0)
    assert not pays(facts.small, facts.sizes, TILE, 10, 31, unknown)


def test_the_second_kernel_takes_a_launch_and_its_bytes() -> None:
    assert 2 < placing_us(4 * 2**20, H200) < placing_us(8 * 2**20, H200) < 6


def test_without_programmatic_launch_it_is_launched_behind() -> None:
    schedule = tile.choose(facts_of("swiglu_backward"), dataclasses.replace(H200, overlaps=False))
    assert schedule.results and not schedule.launch.dependent


def test_a_full_result_is_no_small_one() -> None:
    program = merged(within_tile(traced(lambda x: RECIPES["mx_both"].function(x), ((256, 512), bf16))))
    stores = [s for s in program.nests[0].body if isinstance(s, Store)]
    small = [tile.small_result(program, s, program.nests[0].loops) for s in stores]
    assert sum(one is not None for one in small) == 2 and len(small) == 4
