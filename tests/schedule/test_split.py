"""How Inductor divides sums over rows, beside what the installed PyTorch does."""

from __future__ import annotations

import types

import pytest
import torch
from torch._inductor import choices
from torch._inductor.runtime import triton_heuristics

from mixorder.schedule import split
from mixorder.schedule.device import H200
from mixorder.schedule.kernel_time import Walk

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
def test_parts_are_those_of_the_installed_torch(outputs: int, of_h200: None) -> None:
    theirs = choices.InductorChoices.reduction_split_factor
    for rows in SIZES:
        expected = theirs(torch.device("cpu"), rows, outputs, inner_reduction=False)
        assert split.parts(rows, outputs, H200) == expected, rows


@pytest.mark.parametrize("outputs", [1, 20, 32, 120, 192, 263, 264, 864])
def test_parts_of_all_elements_are_those_of_the_installed_torch(outputs: int, of_h200: None) -> None:
    theirs = choices.InductorChoices.reduction_split_factor
    for elements in (2304, 8192, 9216, 12544, 36864, 50176, 10**6, 10**8):
        expected = theirs(torch.device("cpu"), elements, outputs, inner_reduction=True)
        assert split.parts_of_all(elements, outputs, H200) == expected, elements


@pytest.mark.parametrize(("rows", "outputs"), [(32, 768), (16384, 8448), (128, 768)])
def test_sums_of_few_rows_or_many_columns_are_in_one_part(rows: int, outputs: int) -> None:
    assert split.parts(rows, outputs, H200) == 1


@pytest.mark.parametrize("loads", [1, 2, 4])
@pytest.mark.parametrize("lanes", [512, 1024, 8192, 32768, 65536, 131072, 524288])
@pytest.mark.parametrize("rows", [128, 256, 512, 4096])
def test_tiles_are_those_of_the_installed_torch(lanes: int, rows: int, loads: int) -> None:
    (config,) = triton_heuristics._reduction_configs(
        size_hints={"x": lanes, "r0_": rows},
        inductor_meta={"reduction_hint": triton_heuristics.ReductionHint.OUTER, "num_load": loads},
        triton_meta={"device": PROPERTIES},
    )
    columns, height = config.kwargs["XBLOCK"], config.kwargs["R0_BLOCK"]
    assert split._tile(lanes, rows, loads) == (columns, height)


def test_a_walk_waits_for_each_further_load() -> None:
    """16384 rows of 768 columns are in 128 parts of 128 rows: 16 tiles of 8 rows and 64 columns."""
    parts = split.parts(16384, 768, H200)
    assert parts == 128
    assert split.walk(16384, 768, parts, 1) == Walk()
    assert split.walk(16384, 768, parts, 3) == Walk(2 * 16, 2 * 16384 * 768 // split.TILE)


def test_a_part_that_is_one_tile_waits_once() -> None:
    assert split.walk(64, 100_000, 1, 4) == Walk(3)


@pytest.mark.parametrize(
    ("rows", "each"), [(4096, 16), (16384, 16), (37120, 32), (65536, 32), (200704, 128), (10**6, 128)]
)
def test_rows_of_inductors_own_fusion(rows: int, each: int) -> None:
    """As read off its kernels for an H200, torch 2.11."""
    assert split.rows_of_mixed(rows, H200) == each


def test_masks_take_more_tiles() -> None:
    plain, masked = (split.mixed_walk(16384, 4096, 16, masks) for masks in (0, 1))
    assert plain == Walk(16, 16384)
    assert masked == Walk(16, 16384 * (1 + split.MASK))
    assert split.mixed_walk(16384, 512, 16, 0).turns == 4  # tiles of four rows
