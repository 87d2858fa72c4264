"""Programs for values of whole rows: how many rows they have, and how far ahead they are."""

from __future__ import annotations

import dataclasses

import pytest

from mixorder.errors import TooWide
from mixorder.schedule import tile
from mixorder.schedule.device import H200
from mixorder.schedule.rows_ahead import Groups, groups_of, with_rows_ahead
from mixorder.schedule.schedule import Schedule


def schedule(extents: tuple[int, ...], warps: int = 4) -> Schedule:
    return tile.schedule_of(extents, warps)


@pytest.mark.parametrize(
    ("cols", "rows", "ahead"), [(1024, 4, 41), (4096, 4, 10), (8192, 2, 5), (12800, 1, 3), (16384, 1, 2)]
)
def test_wide_rows_have_more_programs_that_are_fewer_tiles_ahead(cols: int, rows: int, ahead: int) -> None:
    sizes = (512, 32, cols // 32, 32)
    found = with_rows_ahead(schedule((2, 32, 2, 32)), sizes, 2, H200)
    assert (found.ahead_rows, found.ahead) == (rows, ahead)
    assert found.band == 1 and found.max_registers == 96


def test_no_more_rows_ahead_than_there_are() -> None:
    found = with_rows_ahead(schedule((2, 32, 2, 32)), (4, 32, 4, 32), 2, H200)
    assert found.ahead == 2
    assert groups_of((4, 32, 4, 32), 2, found) == Groups(64, 16, 2, 2, 32)


def test_a_last_tile_with_fewer_rows() -> None:
    found = with_rows_ahead(schedule((2, 32, 2, 32)), (5, 32, 4, 32), 2, H200)
    assert groups_of((5, 32, 4, 32), 2, found) == Groups(64, 16, 2, 3, 40)


@pytest.mark.parametrize(
    ("extents", "sizes", "warps", "message"),
    [
        ((2, 32, 2, 32), (512, 32, 1024, 32), 4, "holds 128 elements"),
        ((1, 32, 1, 32), (512, 32, 256, 32), 1, "holds 128 elements"),
        ((2, 16, 2, 32), (512, 32, 128, 32), 4, "that are apart"),
        ((2, 32, 2, 16), (512, 32, 128, 32), 4, "that are apart"),
    ],
)
def test_what_has_none(extents: tuple[int, ...], sizes: tuple[int, ...], warps: int, message: str) -> None:
    with pytest.raises(TooWide, match=message):
        with_rows_ahead(schedule(extents, warps), sizes, 2, H200)


def test_devices_whose_programs_cannot_wait() -> None:
    with pytest.raises(TooWide, match="do not exchange"):
        with_rows_ahead(
            schedule((2, 32, 2, 32)), (512, 32, 128, 32), 2, dataclasses.replace(H200, exchanges=False)
        )
