"""Programs for values of whole rows: how many rows they have, and how far ahead they are."""

from __future__ import annotations

import dataclasses

import pytest

from mixorder.errors import TooWide
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.rows_ahead import Groups, columns_at_once, groups_of, with_rows_ahead
from mixorder.schedule.schedule import Schedule


def schedule(extents: tuple[int, ...], warps: int = 4) -> Schedule:
    return tile.schedule_of(extents, warps)


@pytest.mark.parametrize(
    ("cols", "rows", "ahead", "registers"),
    [
        (512, 8, 116, 72),
        (1024, 4, 58, 72),
        (4096, 1, 14, 72),
        (7168, 1, 11, 72),
        (8192, 1, 10, 72),
        (16384, 1, 6, 96),
        (28672, 1, 4, 128),
    ],
)
def test_as_many_programs_are_ahead_as_run_at_once(cols: int, rows: int, ahead: int, registers: int) -> None:
    sizes = (512, 32, cols // 32, 32)
    found = with_rows_ahead(schedule((1, 32, 4, 32)), sizes, 2, 2, H200)
    assert (found.ahead_rows, found.ahead, found.max_registers) == (rows, ahead, registers)
    assert found.band == 1


def test_a_residual_takes_more_registers() -> None:
    sizes = (512, 32, 128, 32)
    found = [with_rows_ahead(schedule((1, 32, 4, 32)), sizes, 2, loads, H200) for loads in (2, 3)]
    assert [one.max_registers for one in found] == [72, 96] and found[0].ahead == found[1].ahead


@pytest.mark.parametrize(("cols", "at_once"), [(96, 128), (8192, 8192), (8224, 4096), (28672, 4096)])
def test_wide_rows_are_added_up_part_by_part(cols: int, at_once: int) -> None:
    assert columns_at_once(cols, 4) == at_once


def test_no_more_rows_ahead_than_there_are() -> None:
    found = with_rows_ahead(schedule((2, 32, 2, 32)), (4, 32, 4, 32), 2, 2, H200)
    assert found.ahead == 2
    assert groups_of((4, 32, 4, 32), 2, found) == Groups(64, 2, 2, 2, 4)


def test_a_last_tile_with_fewer_rows() -> None:
    found = with_rows_ahead(schedule((2, 32, 2, 32)), (5, 32, 4, 32), 2, 2, H200)
    assert groups_of((5, 32, 4, 32), 2, found) == Groups(64, 2, 2, 3, 5)


@pytest.mark.parametrize(
    ("extents", "sizes", "warps", "message"),
    [
        ((2, 16, 2, 32), (512, 32, 128, 32), 4, "that are apart"),
        ((2, 32, 2, 16), (512, 32, 128, 32), 4, "that are apart"),
    ],
)
def test_what_has_none(extents: tuple[int, ...], sizes: tuple[int, ...], warps: int, message: str) -> None:
    with pytest.raises(TooWide, match=message):
        with_rows_ahead(schedule(extents, warps), sizes, 2, 2, H200)


def test_devices_whose_programs_cannot_wait() -> None:
    with pytest.raises(TooWide, match="do not exchange"):
        with_rows_ahead(
            schedule((2, 32, 2, 32)), (512, 32, 128, 32), 2, 2, dataclasses.replace(H200, exchanges=False)
        )
