"""What Inductor's kernels for a norm over reduction groups are predicted to take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import declined, f32, fused, group_norm_forward, outcomes, traced, traced_rows
from torch.fx import Graph

from mixorder.errors import Decline, DeclineReason
from mixorder.report import RegionRecord


def batch_norm(shape: tuple[int, int, int, int]) -> Graph:
    """The backward, of channels first."""

    def function(dy: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        return torch.ops.aten.native_batch_norm_backward(
            dy, x, w, None, None, mean, rstd, True, 1e-5, [True, True, True]
        )

    return traced(function, *[(shape, f32)] * 2, *[((shape[1],), f32)] * 3)


# Launches of Inductor's, as on an H100: it divides no sum of few elements, or for many channels, and has one
# kernel then.
@pytest.mark.parametrize(
    ("shape", "launches"),
    [
        ((64, 256, 7, 7), 1),
        ((16, 256, 14, 14), 1),
        ((48, 384, 17, 17), 1),
        ((8, 56, 28, 28), 1),
        ((64, 192, 14, 14), 4),
        ((32, 160, 56, 56), 4),
    ],
)
def test_kernels_of_inductor(shape: tuple[int, int, int, int], launches: int) -> None:
    assert fused(batch_norm(shape)).expected.launches_apart == launches
    assert isinstance(outcomes(batch_norm(shape), min_numel=1)[0], Decline) == (launches == 1)


def centred(dy: Any, x: Any) -> Any:
    """A sample's sums for each channel, less their mean over all samples."""
    sums = (dy * x).sum(1)
    return dy - x * (sums - sums.sum(0))[:, None]


def of_channels(dy: Any, x: Any) -> Any:
    return dy - x * (dy * x).sum((0, 1))


@pytest.mark.parametrize(
    ("shape", "launches"), [((8, 4096, 320), 4), ((4, 65536, 128), 4), ((16, 256, 1280), 2)]
)
def test_kernels_of_inductor_for_statistics(shape: tuple[int, int, int], launches: int) -> None:
    """As it compiles a group norm in channels-last: of many groups, it reads each in the order of memory."""
    for min_numel in (0, 1):
        (record,) = outcomes(group_norm_forward(*shape, 32), min_numel=min_numel)
        assert isinstance(record, Decline) == (bool(min_numel) and launches == 2)
        if isinstance(record, RegionRecord):
            assert record.expected.launches_apart == launches


@pytest.mark.parametrize(
    ("function", "symbolic", "detail"),
    [(centred, [0], "sums over a symbolic size"), (of_channels, [0, 1, 2], "one tensor has strides")],
)
def test_any_batch_is_declined(function: Any, symbolic: list[int], detail: str) -> None:
    """Where elements of a sample need sums over all samples, or memory's order has another symbolic size."""
    full = (8, 2048, 24), f32
    decline = declined(traced_rows(function, full, full, symbolic=symbolic))
    assert decline.reason is DeclineReason.DYNAMIC_SHAPE and detail in decline.detail


@pytest.mark.parametrize(
    ("shape", "pays"), [((48, 160, 17, 17), False), ((32, 64, 56, 56), True), ((64, 256, 14, 14), True)]
)
def test_rows_that_no_wide_access_fits_are_left_to_inductor(
    shape: tuple[int, int, int, int], pays: bool
) -> None:
    """H100, with a ReLU: 48x160x289 in bf16 29 us, by Inductor 24; 32x64x3136 in fp32 67 us, 81."""
    (end,) = outcomes(batch_norm(shape), min_numel=4096)
    assert isinstance(end, RegionRecord if pays else Decline)
