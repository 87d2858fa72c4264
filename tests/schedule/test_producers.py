"""Programs for values of whole rows: how many rows they have, and how far ahead they are."""

from __future__ import annotations

import dataclasses

import pytest

from mixorder.errors import Decline
from mixorder.schedule.device import H200, DeviceInfo
from mixorder.schedule.plan import Launch, Plan, Produced, in_tiles
from mixorder.schedule.producers import Groups, groups_of, with_producers

SIZES = (512, 32, 128, 32)


def planned(
    extents: tuple[int, ...], sizes: tuple[int, ...] = SIZES, loads: int = 2, device: DeviceInfo = H200
) -> Plan:
    return with_producers(Plan(in_tiles(sizes, extents), Launch(4)), sizes, 2, loads, device)


@pytest.mark.parametrize(
    ("cols", "rows", "ahead", "at_once", "registers"),
    [
        (1024, 4, 58, 1024, 72),
        (4096, 1, 14, 4096, 72),
        (16384, 1, 6, 4096, 96),
        (28672, 1, 4, 4096, 128),
    ],
)
def test_as_many_programs_are_ahead_as_run_at_once(
    cols: int, rows: int, ahead: int, at_once: int, registers: int
) -> None:
    sizes = (512, 32, cols // 32, 32)
    found = planned((1, 32, 4, 32), sizes)
    assert (found.produced, found.launch.max_registers) == (Produced(ahead, rows, at_once), registers)
    assert found.order.grouped == 1


def test_a_residual_takes_more_registers() -> None:
    found = [planned((1, 32, 4, 32), loads=loads) for loads in (2, 3)]
    assert [one.launch.max_registers for one in found] == [72, 96]
    assert found[0].produced == found[1].produced


@pytest.mark.parametrize(("cols", "at_once"), [(96, 128), (8192, 8192), (8224, 4096), (28672, 4096)])
def test_wide_rows_are_added_up_part_by_part(cols: int, at_once: int) -> None:
    found = planned((1, 32, cols // 32, 32), (512, 32, cols // 32, 32)).produced
    assert found is not None and found.cols == at_once


@pytest.mark.parametrize(("blocks", "row_tiles", "needed"), [(4, 2, 4), (5, 3, 5)])
def test_no_more_rows_ahead_than_there_are(blocks: int, row_tiles: int, needed: int) -> None:
    sizes = (blocks, 32, 4, 32)  # of five, the last tile has fewer rows
    found = planned((2, 32, 2, 32), sizes)
    assert found.produced is not None and found.produced.lag == row_tiles
    assert groups_of(sizes, 2, found) == Groups(64, 2, 2, row_tiles, needed)


@pytest.mark.parametrize("extents", [(2, 16, 2, 32), (2, 32, 2, 16)])
def test_rows_that_are_apart_have_none(extents: tuple[int, ...]) -> None:
    with pytest.raises(Decline, match="that are apart"):
        planned(extents)


def test_devices_whose_programs_cannot_wait() -> None:
    alone = dataclasses.replace(H200, exchanges=False)
    with pytest.raises(Decline, match="do not exchange"):
        planned((2, 32, 2, 32), device=alone)
