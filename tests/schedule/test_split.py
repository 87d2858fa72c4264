"""How Inductor divides sums over rows, beside what the installed PyTorch does."""

from __future__ import annotations

import types

import pytest
import torch
from torch._inductor import choices

from mixorder.schedule import split
from mixorder.schedule.device import H200

PROPERTIES = types.SimpleNamespace(
    multi_processor_count=H200.num_sm,
    warp_size_or_default=H200.warp_size,
    warp_size=H200.warp_size,
    max_threads_per_multi_processor=H200.max_threads,
    major=9,
)


@pytest.fixture
def of_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices.DeviceProperties, "create", lambda device: PROPERTIES)


SIZES = [33, 64, 128, 129, 169, 1000, 2401, 3136, 12544, 12608, 16384, 50176, 200704, 1048576]


@pytest.mark.parametrize("outputs", [1, 8, 96, 195, 320, 768, 1024, 2560, 4096, 8447])
def test_parts_are_about_those_of_the_installed_torch(outputs: int, of_h200: None) -> None:
    """Which prefers divisors of the rows that are near."""
    theirs = choices.InductorChoices.reduction_split_factor
    for rows in SIZES:
        expected = theirs(torch.device("cpu"), rows, outputs, inner_reduction=False)
        assert split.parts(rows, outputs, H200) == pytest.approx(expected, rel=0.4), rows


@pytest.mark.parametrize(("rows", "outputs"), [(32, 768), (16384, 8448), (128, 768)])
def test_sums_of_few_rows_or_many_columns_are_in_one_part(rows: int, outputs: int) -> None:
    assert split.parts(rows, outputs, H200) == 1


@pytest.mark.parametrize(
    ("rows", "each"), [(4096, 16), (16384, 16), (37120, 32), (65536, 32), (200704, 128), (10**6, 128)]
)
def test_rows_of_inductors_own_fusion(rows: int, each: int) -> None:
    """As read off its kernels for an H200, torch 2.11."""
    assert split.rows_of_mixed(rows, H200) == each
