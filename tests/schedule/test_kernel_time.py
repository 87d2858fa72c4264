"""The time of a kernel from its work, with made-up rates, and what the fitted rates have to be like."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.kernel_time import TIMES, Kind, Times, read
from mixorder.schedule.work import Work

# A megabyte of memory takes 0.25 us, one of L2 0.1 us, and 1000 instructions of a multiprocessor 1 us.
ROUND = dataclasses.replace(
    TIMES,
    memory_mb_us=4.0,
    l2_mb_us=10.0,
    instructions_sm_us=1000.0,
    sharpness=1000.0,  # the largest alone
    share={kind.value: 1.0 for kind in Kind} | {"looped": 0.5},
    kernel_us=0.0,
    final_us=3.0,
)
SM = H200.num_sm
MB = 1e6


def us(work: Work, kind: Kind = Kind.POINTWISE, times: Times = ROUND, **how: float) -> float:
    return times.us(kind, work, H200, **how)


def test_a_device_of_half_the_bandwidth_takes_twice_as_long() -> None:
    half = dataclasses.replace(H200, name="another", bandwidth=H200.bandwidth / 2)
    unknown = dataclasses.replace(H200, name="another", bandwidth=0.0)
    moving, computing = Work(100 * MB, 0), Work(0, 0, instructions=SM * 7000)
    assert ROUND.us(Kind.POINTWISE, moving, half) == pytest.approx(50, rel=1e-2)
    assert ROUND.us(Kind.POINTWISE, moving, unknown) == us(moving)
    assert ROUND.us(Kind.POINTWISE, computing, half) == us(computing)


@pytest.mark.parametrize("kind", [Kind.ROWS, Kind.COLUMNS, Kind.POINTWISE])
def test_a_kernel_that_reduces_a_tile_computes_once_it_is_loaded(kind: Kind) -> None:
    moving, computing = Work(100 * MB, 0), Work(0, 0, instructions=SM * 7000)
    assert us(moving + computing, kind) == pytest.approx(25 if kind is Kind.POINTWISE else 25 + 7, rel=1e-2)


def test_the_fitted_numbers_are_those_of_a_gpu(tmp_path: Path) -> None:
    """A file has all of them. Memory's rate is near the data sheet's, L2's above it."""
    assert set(TIMES.share) == {kind.value for kind in Kind}
    assert 0.75 * H200.bandwidth < TIMES.memory_mb_us * 1e12 < 1.1 * H200.bandwidth
    assert TIMES.l2_mb_us > TIMES.memory_mb_us
    path = tmp_path / "fitted.json"
    path.write_text(json.dumps({"times": dataclasses.asdict(ROUND)}))
    assert read(path) == ROUND
