"""Programs for values of whole rows: how many rows they have, and their lag."""

from __future__ import annotations

import dataclasses

import pytest

from mixorder.errors import Decline
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.plan import Launch, Plan, in_tiles
from mixorder.schedule.producers import ProgramGroups, program_groups, with_producers

SIZES = (512, 32, 128, 32)


def planned(extents: tuple[int, ...], sizes: tuple[int, ...] = SIZES, device: DeviceInfo = H200) -> Plan:
    return with_producers(Plan(in_tiles(sizes, extents), Launch(4)), sizes, 2, device)


@pytest.mark.parametrize(("blocks", "row_tiles", "needed"), [(4, 2, 4), (5, 3, 5)])
def test_no_more_rows_of_producers_than_there_are(blocks: int, row_tiles: int, needed: int) -> None:
    sizes = (blocks, 32, 4, 32)  # of five, the last tile has fewer rows
    found = planned((2, 32, 2, 32), sizes)
    assert found.produced is not None and found.produced.lag == row_tiles
    assert program_groups(sizes, 2, found) == ProgramGroups(64, 2, 2, row_tiles, needed)


@pytest.mark.parametrize("extents", [(2, 16, 2, 32), (2, 32, 2, 16)])
def test_rows_that_are_apart_have_none(extents: tuple[int, ...]) -> None:
    with pytest.raises(Decline, match="that are apart"):
        planned(extents)


def test_devices_whose_programs_cannot_wait() -> None:
    without_exchanges = dataclasses.replace(H200, exchanges=False)
    with pytest.raises(Decline, match="do not exchange"):
        planned((2, 32, 2, 32), device=without_exchanges)
