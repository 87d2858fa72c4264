"""The block and warps of the kernel that reduces the partials."""

from __future__ import annotations

import pytest

from mixorder.schedule.constants import FITTED
from mixorder.schedule.device import H200
from mixorder.schedule.finalisation import ALONE, FINAL_BLOCKS, MANY, WIDE_BLOCKS, final


@pytest.mark.parametrize("splits", [1, 8, 64, 264, 1000])
def test_a_norm_has_narrow_blocks(splits: int) -> None:
    """Wider ones would leave multiprocessors without a program."""
    block, warps = final(splits, 4096, 4096, H200, FITTED)
    assert block in FINAL_BLOCKS
    assert splits * block <= FITTED.final_per_thread * warps * 32 or block == min(FINAL_BLOCKS)


def test_millions_of_columns_have_wide_blocks_and_few_warps() -> None:
    assert final(1, 128, 131072 * 128, H200, FITTED) == (128, 1)
    assert final(1, 64, 8192 * 64, H200, FITTED) == (64, 1)  # no wider than a row
    assert final(200, 128, 131072 * 128, H200, FITTED)[0] * 256 <= FITTED.final_per_thread * 8 * 32


@pytest.mark.parametrize("block", WIDE_BLOCKS)
@pytest.mark.parametrize(("splits", "programs"), [(2, MANY), (1, ALONE)])
def test_as_many_programs_stay_as_fill_the_device(block: int, splits: int, programs: int) -> None:
    enough = block * programs * H200.num_sm
    assert final(splits, 4096, enough, H200, FITTED)[0] >= block
    assert final(splits, 4096, enough - 1, H200, FITTED)[0] < block
