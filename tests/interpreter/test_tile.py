"""Blocks scaled along rows and columns: every scale and every byte is eager's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import bf16, f16, f32
from running import exactly_fused, run_fused, wide
from support import quantised
from support.quantised import RECIPES, different, inputs
from test_docs import blocks as code_of

from mixorder import search
from mixorder.codegen import producers as writing
from mixorder.codegen import tile as codegen_tile
from mixorder.report import RegionRecord, collect
from mixorder.schedule import producers
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.plan import Plan
from mixorder.schedule.tile import through_workspace
from mixorder.strategies.tile import TILE

EXACT = [name for name, one in RECIPES.items() if one.exact and one.tiled and name != "rowwise_both"]
Function = Callable[..., tuple[torch.Tensor, ...]]


def check(function: Function, *args: torch.Tensor, kernels: int = 1) -> RegionRecord:
    """Assert that one kernel, which ends within tiles, gives eager's results bit by bit."""
    (record,) = exactly_fused(function, *args)
    assert record.strategy == TILE.name and len(record.kernels) == kernels
    return record


@pytest.mark.parametrize("name", EXACT)
def test_zeros_infinities_nan_and_subnormal_numbers(name: str) -> None:
    recipe = RECIPES[name]
    check(recipe.function, *inputs(recipe, 256, 512, "cpu"), kernels=2 if name == "delayed" else 1)


@pytest.mark.parametrize("dtype", [bf16, f16, f32])
def test_every_number_by_any_scale(dtype: torch.dtype) -> None:
    check(quantised.by_any_scale, *quantised.any_scales(256, 512, "cpu", dtype))


@pytest.mark.parametrize("saturates", [True, False])
def test_devices_whose_casts_saturate_and_others(saturates: bool, plan_with: Callable[..., None]) -> None:
    """What is beyond the largest number, infinity too, is that number with either."""
    plan_with(device=dataclasses.replace(H200, num_sm=5, saturates=saturates))
    x = wide(256, 512)
    x[::7] *= 1000

    def function(x: Any) -> Any:
        rows, columns = both_blocks(x)
        scaled = (b.float() / b.abs().amin(d, keepdim=True).float() for b, d in ((rows, 2), (columns, 1)))
        return tuple(y.clamp(-448, 448).to(quantised.F8) for y in scaled)

    record = check(function, x)
    assert (" != " in record.kernels[0].text.split("def triton")[1]) == (not saturates)  # clamps
    assert (function(x)[0].float().abs() == 448).sum() > 100


@pytest.fixture
def staging(plan_with: Callable[..., None]) -> None:
    """Small results go through a workspace, however few they are."""

    def choose(*args: Any) -> Plan:
        return through_workspace(TILE.choose(*args), args[0]).changed(dependent=True)

    plan_with(strategies=(dataclasses.replace(TILE, choose=choose),))


@pytest.mark.usefixtures("staging")
@pytest.mark.parametrize("dtype", [f16, f32])
def test_staged_beside_sums_of_all_rows(dtype: torch.dtype) -> None:
    """One kernel has the finalisation and the copies."""
    x = wide(160, 416, dtype)
    record = check(lambda x: (*quantised.mx_both(x), x.abs().amax(0)), x, kernels=2)
    text = record.kernels[1].text
    assert all(f"def {name}(" in text for name in ("sums0", "copy0", "copy1"))
    assert record.expected.launches == 2


@pytest.mark.parametrize("name", ["gelu_backward", "swiglu_backward"])
def test_what_comes_before_is_in_the_same_kernel(name: str) -> None:
    recipe = RECIPES[name]
    args = inputs(recipe, 128, 256, "cpu")
    with collect() as records:
        ours = run_fused(lambda *x: recipe.function(*x), tuple(args))
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [TILE.name]
    # In one of many runs, six bytes of 32,768 behind a tanh were not eager's, and in the others all were.
    few = 1e-3 if name == "gelu_backward" else 0
    for mine, eager in zip(ours, recipe.function(*args), strict=True):
        assert different(mine, eager) <= few * eager.numel()


def both_blocks(x: Any) -> tuple[Any, Any]:
    """The blocks of 256 x 512 elements along rows (the last dim), and along columns (the middle one)."""
    return x.view(256, 16, 32), x.view(8, 32, 512)


def test_inputs_of_three_dims_slices_and_broadcasts() -> None:
    def function(x: Any, w: Any, r: Any) -> Any:
        return quantised.mx_both((x[:, :, 256:].float() * w * r).view(-1, 256))

    check(function, wide(256, 512).view(2, 128, 512), torch.randn(256), torch.rand(2, 128, 1))


@pytest.mark.parametrize(("rows", "cols"), [(96, 416), (480, 96), (2048, 32)])
def test_sums_over_all_rows_beside_the_blocks(rows: int, cols: int) -> None:
    """Rows beyond the last count as nothing, whatever is computed before the reduction."""

    def function(x: Any, z: Any) -> Any:
        moved = (x * z).exp() + 1
        return *quantised.mx_both(moved), moved.sum(0), moved.mean(0), moved.amax(0), -moved.amin(0)

    args = torch.randn(rows, cols), torch.randn(rows, cols)
    with collect() as records:
        ours = run_fused(function, args)
    (record,) = records
    assert isinstance(record, RegionRecord) and len(record.kernels) == 2
    eager, exact = function(*args), function(*(a.double() for a in args))
    for mine, theirs, truth in zip(ours, eager, exact, strict=True):
        if mine.dtype == f32 and mine.shape == (cols,):
            torch.testing.assert_close(mine.double(), truth, rtol=1e-6, atol=0)
        else:
            assert different(mine, theirs) <= mine.numel() // 1000  # exp is NumPy's there


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "products of a row's scales": lambda r, _: r[:, :, None] * r[:, None],
    "comparisons of a row's scales": lambda r, _: r[:, :, None] > r[:, None],
    "comparisons of rows": lambda r, _: r[:, None] < r[None],
    "comparisons along columns": lambda _, c: c[:, :, None] > c[:, None],
    "products of blocks of rows": lambda _, c: c[:, None] * c[None],
    "a product of both": lambda r, c: r[:, :1] * c[:1],
    "all of one side": lambda r, _: r[:8].reshape(-1, 1) >= r[:8].reshape(1, -1),
    "sums of products": lambda r, _: (r[:, :, None] * r[:, None]).amax(-1),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_scales(name: str) -> None:
    """A tensor with the same axis twice has elements at places that a tile does not have."""

    def function(x: Any) -> tuple[torch.Tensor, ...]:
        rows, columns = both_blocks(x)
        scales = rows.abs().amax(2), columns.abs().amax(1)
        return *scales, rows / scales[0][:, :, None], columns / scales[1][:, None], PAIRS[name](*scales)

    records = exactly_fused(function, wide(256, 512, f32))
    assert [r.strategy for r in records] == [TILE.name]


def test_a_sum_of_blocks_is_as_exact_as_eager_s() -> None:
    def function(x: Any) -> Any:
        rows, columns = both_blocks(x)
        return rows / rows.square().sum(2, keepdim=True), columns / columns.square().mean(1, keepdim=True)

    for dtype, rtol in (
        (torch.float32, 1e-6),
        (torch.bfloat16, 2**-8),
    ):  # half a unit: one rounding, at the end
        x = torch.randn(256, 512).to(dtype)
        for mine, exact in zip(run_fused(function, (x,)), function(x.double()), strict=True):
            torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=0)


def halves(codes: Any) -> Any:
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def halves_of_all(codes: Any) -> Any:
    """As torchao packs: whatever the shape."""
    whole = codes.contiguous().view(-1)
    return (whole[::2] | (whole[1::2] << 4)).view(*codes.shape[:-1], -1)


def halves_of_pairs(codes: Any) -> Any:
    pairs = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def quarters(codes: Any) -> Any:
    two = codes & 3
    return two[..., ::4] | (two[..., 1::4] << 2) | (two[..., 2::4] << 4) | (two[..., 3::4] << 6)


@pytest.mark.parametrize("pack", [halves, halves_of_all, halves_of_pairs, quarters])
def test_codes_that_are_packed_into_bytes(pack: Function) -> None:
    """Along rows, along columns, and beside the codes themselves."""

    def function(x: Any) -> Any:
        found: list[Any] = []
        for one in (x, x.t().contiguous()):
            blocks = one.view(*one.shape[:-1], -1, 32).float()
            largest = blocks.abs().amax(-1, keepdim=True)
            found += [pack(quantised.e2m1(blocks / largest * 6).view(one.shape)), largest]
        return tuple(found)

    record = check(function, torch.randn(256, 512).to(bf16))
    assert len(record.outputs) == 4 and len(record.inputs) == 1


def test_the_functions_of_the_page() -> None:
    """Each is one kernel; a sum over all rows adds a second one, and scales of whole columns take three."""
    page: dict[str, Any] = {"torch": torch, "model": torch.nn.Identity()}
    for text in code_of("quantise.md", "python"):
        exec(text, page)
    x = wide(256, 512)
    for name in (
        "mx_transposed",
        "mx_both",
        "mx_in_place",
        "mx4_both",
        "blocks_both",
        "blocks_in_place",
        "squares",
    ):
        check(page[name], x)
    for mine, eager in zip(run_fused(page["rowwise_both"], (x,)), page["rowwise_both"](x), strict=True):
        assert different(mine, eager) == 0
    x, y, z = (torch.randn(256, 512, dtype=bf16) for _ in range(3))
    check(page["gelu_backward"], x, y, kernels=2)
    check(page["delayed"], x, torch.tensor(0.5), kernels=2)
    check(page["swiglu_backward"], x, y, z)


def rms(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    return rstd * (scaled - normed * (normed * scaled).mean(-1, keepdim=True))


def layer(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    """Two sums of each row."""
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    means = scaled.mean(-1, keepdim=True), (normed * scaled).mean(-1, keepdim=True)
    return rstd * (scaled - means[0] - normed * means[1])


def cast_behind(gradient: Function) -> Function:
    """Casts of a norm's dx, which is not stored, and its dw."""

    def function(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
        dx = gradient(x, dy, w, rstd).to(bf16)  # type: ignore[attr-defined]
        return *quantised.mx_both(dx), (dy.float() * (x.float() * rstd)).sum(0)

    return function


@pytest.mark.parametrize(
    ("gradient", "rows", "cols"), [(rms, 256, 512), (layer, 480, 544), (rms, 1056, 1024)]
)
def test_a_norm_in_the_same_kernel(
    gradient: Function, rows: int, cols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums of rows come from other programs of the kernel; dx is not stored."""
    monkeypatch.setattr(search, "remainder_us", lambda *_: 1e3)  # of a norm that is left to Inductor
    x, dy = (torch.randn(rows, cols).to(bf16) for _ in range(2))
    args, function = (x, dy, torch.randn(cols).to(bf16), torch.rand(rows, 1) + 0.5), cast_behind(gradient)
    with collect() as records:
        *casts, dw = run_fused(function, args)
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    assert (
        record.strategy == TILE.name
        and record.schedule.produced
        and "sum" in [one.op for one in record.outer]
    )
    *wanted, dw_of_eager = function(*args)
    for mine, eager in zip(casts, wanted, strict=True):
        assert different(mine, eager) <= 1e-4 * eager.numel()  # a sum of a row in another order
    exact = function(*(a.double() for a in args))[-1]
    assert (dw.double() - exact).norm() <= 1.1 * (dw_of_eager.double() - exact).norm() + 1e-7 * exact.norm()


@pytest.mark.parametrize(
    ("of_a_row", "in_parts"),
    [
        (lambda scaled: scaled.amax(-1, keepdim=True), False),
        (lambda scaled: (scaled + 3).sum(-1, keepdim=True), True),
    ],
    ids=["amax", "sum, in parts"],
)
def test_padding_of_rows_counts_for_nothing(
    of_a_row: Callable[[Any], Any], in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 544 in programs of 1024 lanes, or in five parts of 128: zero is the largest of negative
    numbers, and not three."""
    if in_parts:
        monkeypatch.setattr(producers, "ELEMENTS", 1)
    x, dy = torch.rand(256, 544).to(bf16) + 1, -torch.rand(256, 544).to(bf16) - 1

    def function(x: Any, dy: Any) -> Any:
        dx = dy.float() - x.float() * of_a_row(dy.float())
        return *quantised.mx_both(dx.to(bf16)), (dy.float() * x.float()).sum(0)

    with collect() as records:
        *casts, _ = run_fused(function, (x, dy))
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    assert record.schedule.produced
    assert any("static_range(5)" in kernel.text for kernel in record.kernels) == in_parts
    *wanted, _ = function(x, dy)
    for mine, eager in zip(casts, wanted, strict=True):
        assert different(mine, eager) <= 1e-4 * eager.numel()


def largest(x: Any, dy: Any) -> Any:
    """The largest of each row, which a NaN with any bits may be."""
    dx = dy - x * dy.amax(-1, keepdim=True)
    return *quantised.mx_both(dx.to(bf16)), (dy * x).sum(0)


@pytest.mark.parametrize("bits", [-1, 0x7FC00000, 0x7F800001])
def test_a_value_of_a_row_with_the_bits_of_an_empty_slot(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NaN is awaited as any number is: no tile gives up."""
    monkeypatch.setattr(search, "remainder_us", lambda *_: 1e6)  # a kernel of its own for the rows
    branches = writing.branches

    def failing(*args: Any) -> Iterator[str]:
        return (line.replace("row_values(", "a_tile_gave_up(") for line in branches(*args))

    monkeypatch.setattr(codegen_tile, "branches", failing)
    monkeypatch.setattr(writing, "POLLS", 1)
    x, dy = torch.rand(256, 512) + 1, torch.rand(256, 512)
    dy.view(torch.int32)[3] = bits
    with collect() as records, np.errstate(invalid="ignore"):
        results = run_fused(largest, (x, dy))
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    assert record.schedule.produced
    *casts, sums = largest(x, dy)
    for mine, eager in zip(results[:-1], casts, strict=True):
        assert different(mine, eager) == 0
    assert results[-1].isnan().all() and sums.isnan().all()


def test_tiles_whose_values_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute these themselves, with the same bits. Here no producer does so."""
    monkeypatch.setattr(writing, "POLLS", 3)
    x, dy = (torch.randn(480, 544).to(bf16) for _ in range(2))
    args, function = (x, dy, torch.randn(544).to(bf16), torch.rand(480, 1) + 0.5), cast_behind(layer)
    expected = run_fused(function, args)
    roles = writing.roles

    def without_values(*args: Any) -> Iterator[str]:
        return (re.sub(r"row_values\(.*\)", "pass", line) for line in roles(*args))

    monkeypatch.setattr(codegen_tile, "roles", without_values)
    with collect() as records:
        results = run_fused(function, args)
    (record,) = (r for r in records if isinstance(r, RegionRecord))
    assert record.schedule.produced and record.kernels[0].text.count("            pass\n") == 1
    assert all(different(mine, theirs) == 0 for mine, theirs in zip(results, expected, strict=True))


def test_casts_behind_a_norm() -> None:
    """One kernel also writes dx; every scale and byte of dx is eager's."""
    x, dy, res = (torch.randn(512, 1024).to(bf16) for _ in range(3))
    w, rstd = torch.randn(1024).to(bf16), torch.rand(512, 1) + 0.5

    def function(x: Any, dy: Any, w: Any, rstd: Any, res: Any) -> Any:
        normed, scaled = x.float() * rstd, dy.float() * w.float()
        dx = rstd * (scaled - normed * (normed * scaled).mean(-1, keepdim=True)) + res.float()
        return dx.to(bf16), (dy.float() * normed).sum(0), *quantised.mx_both(dx.to(bf16))

    with collect() as records:
        dx, dw, *casts = run_fused(function, (x, dy, w, rstd, res))
    assert [r.strategy for r in records if isinstance(r, RegionRecord)] == [TILE.name]
    for mine, eager in zip(casts, quantised.mx_both(dx), strict=True):
        assert different(mine, eager) == 0
    exact = function(x.double(), dy.double(), w.double(), rstd.double(), res.double())
    assert (dx.double() - exact[0]).norm() <= 4e-3 * exact[0].norm()
    assert (dw.double() - exact[1]).norm() <= 1e-6 * exact[1].norm()
