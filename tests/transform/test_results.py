"""What lowering gives computes what eager computes, and each transform keeps every bit of it, in its form.

The programs are run a statement at a time by PyTorch (evaluate.py). What a transform is for is tested in a
file of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import graphs
import pytest
import torch
import torch.nn.functional as F
from evaluate import evaluated, inputs_of
from graphs import bf16, f16, f32, f64, i64, traced
from support import quantised
from support.quantised import RECIPES
from torch.fx import Graph

from mixorder.errors import Decline
from mixorder.ir.program import LoopProgram
from mixorder.ir.rewriting import rewritten
from mixorder.ir.verify import Form, verify
from mixorder.lowering.lower import lower
from mixorder.lowering.tile import lower_tile
from mixorder.region.producers import with_row_values
from mixorder.region.region import Region
from mixorder.rewrite.standalone import standalone
from mixorder.schedule import tile
from mixorder.schedule.device import MEASURED as H200
from mixorder.transform import one_hot, staged
from mixorder.transform.branches import without_branches
from mixorder.transform.column_blocks import check_divisible, in_blocks
from mixorder.transform.cooperative import check_shareable
from mixorder.transform.few_bits import divide_by_few_bits
from mixorder.transform.finished import finished
from mixorder.transform.fma import form_fma
from mixorder.transform.half_precision import without_rounding
from mixorder.transform.powers_of_two import multiply_by_reciprocals
from mixorder.transform.producers import with_producers
from mixorder.transform.quotients import divide_by_blocks
from mixorder.transform.register_scheduling import schedule_for_registers
from mixorder.transform.reorder import reorder
from mixorder.transform.rounding import round_at_once
from mixorder.transform.saturation import without_clamp
from mixorder.transform.single_precision import divide_in_float32
from mixorder.transform.split import split_outer
from mixorder.transform.tile_split import split_spanning

ROWS, COLS = 24, 48
FULL, COLUMN = ((ROWS, COLS), f32), ((COLS,), f32)
Results = dict[str, torch.Tensor]
Transform = Callable[[LoopProgram], LoopProgram]


def of(function: Callable[..., Any], *specs: Any) -> Callable[[], Graph]:
    return functools.partial(traced, lambda *x: function(*x), *specs)


def two_stages(x: Any, dy: Any, w: Any) -> Any:
    """A row's scale from its largest value, then a sum that needs the scale, as in BitLinear."""
    scale = 127.0 / x.to(f32).abs().amax(-1, keepdim=True)
    q = x * scale
    return dy * w - q * (q * dy * w).sum(-1, keepdim=True), (dy * q).sum(0)


def cross_entropy(x: Any, label: Any, scale: Any) -> Any:
    """With a row whose label does not count."""
    counts = label != 0
    one = torch.where(label.where(counts, 0) == torch.arange(COLS), -1.0, 0.0) * scale.where(counts, 0.0)
    dx = one - x.exp() * one.sum(1, keepdim=True)
    return dx, dx.sum(0)


def bias(x: Any, dy: Any, w: Any) -> Any:
    """No sum along a row, and columns that are gathered."""
    halves = torch.cat([dy[:, COLS // 2 :], dy[:, : COLS // 2]], 1)
    product = x.to(f32) * halves * w
    return product.to(x.dtype), product.sum(0), product.abs().amax(0)


def kinds(x: Any, dy: Any) -> Any:
    product = x * dy
    rows = product.amax(1, keepdim=True) + product.amin(1, keepdim=True)
    return dy * rows, product.amax(0), product.amin(0)


def per_head(x: Any, dy: Any, w: Any) -> Any:
    scaled = x * dy
    return dy - scaled.sum(2, keepdim=True), (scaled.sum(0) * w).to(bf16)


def column_result(x: Any, dy: Any, narrow: Any) -> Any:
    product = x * dy
    dw = product.sum(0)
    return dy - x * product.sum(1, keepdim=True), narrow.to(f32).sum(1) * 2, narrow * dw[None]


def pictures(x: Any, dy: Any) -> Any:
    """The gradient is added up over all pixels behind two views."""
    dx = dy - x * (x * dy).sum(3, keepdim=True)
    return dx, (x * dy).sum((0, 1, 2)), dx.reshape(4, 128, 32).reshape(512, 32).sum(0)


def scaled_result(x: Any, dy: Any, w: Any) -> Any:
    dx, dw = graphs.pair(x, dy * (w * 2 + 1))
    return dx + x, dw * 0.5 + w


GATHERED = {
    "pad": lambda z: F.pad(z[1:, 2:].exp(), (1, 1, 0, 1)),
    "cat": lambda z: torch.cat([z[:, 9:].exp(), z[:, :4], z[:, 4:9]], 1),
    "slice_scatter": lambda z: torch.slice_scatter(torch.zeros_like(z), z[:, :-4].exp(), 1, 4),
    "nested": lambda z: F.pad(torch.cat([F.pad(z[:, 5:].exp(), (2, 0)), z[:, :1]], 1)[2:], (0, 2, 1, 1)),
    "select_scatter": lambda z: torch.select_scatter(torch.zeros_like(z), z[3].exp(), 0, 7),
    "permute": lambda z: z.reshape(2, 4, 16).exp().permute(1, 0, 2).reshape(8, 16),
    "split": lambda z: torch.cat([part.exp() for part in z.split([3, 8, 5], 1)][::-1], 1),
}
OVER_ROWS: dict[str, Callable[[], Graph]] = {
    "pair": lambda: graphs.pair_graph(ROWS, COLS),
    "layer": lambda: graphs.layer_norm_backward(ROWS, COLS),
    "rms": lambda: graphs.rms_norm_backward(ROWS, COLS, f32),
    "float16": of(graphs.pair, ((ROWS, COLS), f16), ((ROWS, COLS), f16)),
    "float64": of(graphs.pair, ((ROWS, COLS), f64), ((ROWS, COLS), f64)),
    "two stages": of(two_stages, ((ROWS, COLS), bf16), ((ROWS, COLS), bf16), COLUMN),
    "cross entropy": of(cross_entropy, FULL, ((ROWS, 1), i64), ((ROWS, 1), f32)),
    "bias": of(bias, FULL, FULL, COLUMN),
    "kinds": of(kinds, FULL, FULL),
    "an op of several statements": of(lambda x, dy: graphs.pair(x.pow(5), dy), FULL, FULL),
    "heads": of(per_head, *[((ROWS, 4, COLS), f32)] * 2, ((4, COLS), f32)),
    "rotary": lambda: graphs.rope_backward(2, 16, 4, 32, f32),
    "pictures": of(pictures, *[((4, 8, 16, 32), f32)] * 2),
    "a scaled result": of(scaled_result, FULL, FULL, COLUMN),
    "a result that is read again": of(
        column_result, ((ROWS, COLS), bf16), ((ROWS, COLS), bf16), ((16, COLS), bf16)
    ),
    "a sum of a row as a result": of(lambda x, dy: ((x * dy).sum(1), (x * dy).sum(0)), FULL, FULL),
    "a vector behind padding": of(
        lambda x, z, w: graphs.pair(x, F.pad((z * w).exp(), (4, 0, 1, 0))),
        *[((8, 16), f32), ((7, 12), f32), ((12,), f32)],
    ),
    "symbolic": lambda: graphs.traced_rows(graphs.pair, FULL, FULL),
    "transposed": lambda: traced(graphs.pair, FULL, FULL, transposed=(0, 1)),
    **{
        name: of(lambda x, z, m=gathered: graphs.pair(x, m(z)), *[((8, 16), f32)] * 2)
        for name, gathered in GATHERED.items()
    },
    **{
        f"random {seed}": functools.partial(graphs.random_graph, seed)
        for seed in (0, 1, 3, 5, 6, 7, 10, 12, 14, 19, 21, 27, 31, 40)
    },
}


def with_sums(x: Any, z: Any) -> Any:
    product = x * z
    total = product.float().sum(0)
    return *quantised.mx_both(product), total.to(bf16), total * 2, product.abs().amax(0)


def behind_a_residual(x: Any, dy: Any, w: Any, rstd: Any, residual: Any) -> Any:
    normed, scaled = x.float() * rstd, dy.float() * w.float()
    dx = rstd * (scaled - normed * (normed * scaled).mean(-1, keepdim=True)) + residual.float()
    return *quantised.mx_both(dx.to(bf16)), (dy.float() * normed).sum(0)


def int8_in_bfloat16(x: Any) -> Any:
    """Rounded, clamped on one side and then on the other, and the same as a number."""

    def one(blocks: Any, dim: int) -> Any:
        scale = blocks.abs().amax(dim, keepdim=True).clamp(min=1e-5) * (1 / 100)
        whole = torch.round(blocks / scale).clamp(max=99).clamp(min=-127)
        return whole.to(torch.int8), whole

    return one(x.view(256, 16, 32), 2), one(x.view(8, 32, 512), 1)


def layer(x: Any, dy: Any, w: Any, rstd: Any) -> Any:
    sums = dy.float().sum(-1, keepdim=True), (x.float() * dy.float()).sum(-1, keepdim=True)
    return quantised.mx_both((rstd * (dy.float() - sums[0] - x.float() * sums[1])).to(bf16))


HALF = ((256, 512), bf16)
NORM = RECIPES["norm_backward"].like(256, 512)
WITHIN_TILES: dict[str, Callable[[], Graph]] = {
    **{name: of(one.function, *one.like(256, 512)) for name, one in RECIPES.items() if one.tiled},
    "clamped in bfloat16": of(int8_in_bfloat16, HALF),
    "sums": of(with_sums, HALF, HALF),
    "a slice and numbers": of(
        lambda x: quantised.mx_in_place(x[:, 512:] + torch.arange(512, dtype=bf16)), ((256, 1024), bf16)
    ),
    "a row and a column": of(
        lambda x, w, r: quantised.mx_both(x * w * r), HALF, ((512,), f32), ((256, 1), f32)
    ),
    "a product": of(lambda x, z: quantised.mx_both((x * z).relu()), HALF, HALF),
    "a product in float16": of(lambda x, z: quantised.mx_both((x * z).relu()), *[((256, 512), f16)] * 2),
    "behind a residual": of(behind_a_residual, *NORM, HALF),
    "behind two sums": of(layer, *NORM),
    "pixels": of(
        lambda x: x.permute(0, 2, 3, 1) / x.permute(0, 2, 3, 1).amax(-1, keepdim=True), ((8, 64, 12, 12), f32)
    ),
}
INEXACT = {"sums", "a row and a column", "behind a residual", "behind two sums"}


@functools.cache
def region_of(name: str) -> Region:
    if name in OVER_ROWS:
        return next(r for r in graphs.find(OVER_ROWS[name]()) if r.orders is None)
    return next(r for r in graphs.find(WITHIN_TILES[name]()) if r.orders is not None)


def differing(one: Results, other: Results) -> list[str]:
    """The outputs that are not alike bit by bit. One NaN is as good as another."""
    return [n for n in one.keys() | other.keys() if not _alike(one[n].double(), other[n].double())]


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (one == other) & (one.signbit() == other.signbit())
    return bool((same | (one.isnan() & other.isnan())).all())


TOLERANCE = {bf16: 2e-2, f16: 2e-3, f64: 0.0}


def of_eager(region: Region, program: LoopProgram, inputs: Results) -> Iterator[tuple[Any, Any]]:
    found = evaluated(program, inputs).values()
    return zip(found, standalone(region, program.hint).module()(*inputs.values()), strict=True)


@pytest.mark.parametrize("name", OVER_ROWS)
def test_a_lowered_region_over_rows(name: str) -> None:
    """Eager rounds each value to half precision."""
    program = verify(lower(region_of(name)), Form.LOWERED)
    inputs = inputs_of(region_of(name), program)
    tolerance = max(TOLERANCE.get(tensor.dtype, 1e-5) for tensor in inputs.values())
    for mine, eager in of_eager(region_of(name), program, inputs):
        most = tolerance * eager.double().abs().max().item()
        torch.testing.assert_close(mine.double(), eager.double(), rtol=0, atol=most)


@pytest.mark.parametrize("name", WITHIN_TILES)
def test_a_lowered_region_within_tiles(name: str) -> None:
    """Its results of a byte are eager's, bit by bit."""
    program = verify(lower_tile(region_of(name)), Form.TILE_LOCAL)
    pairs = list(of_eager(region_of(name), program, inputs_of(region_of(name), program)))
    if name not in INEXACT and RECIPES.get(name, RECIPES["mx_both"]).exact:
        assert not differing(*(dict(enumerate(one)) for one in zip(*pairs, strict=True)))  # type: ignore


def kept(program: LoopProgram, inputs: Results, *steps: tuple[Transform, Form]) -> LoopProgram:
    """The program after some transforms, which kept its results."""
    programs = [program]
    for transform, form in steps:
        programs.append(verify(transform(programs[-1]), form))
    if programs[-1] != program:
        before = evaluated(program, inputs)
        if differing(before, evaluated(programs[-1], inputs)):
            wrong = (differing(before, evaluated(one, inputs)) for one in programs[1:])
            pytest.fail(f"step {[*map(bool, wrong)].index(True)} of {len(steps)} gives other results")
    return programs[-1]


RULES = (
    without_rounding,
    divide_in_float32,
    multiply_by_reciprocals,
    without_clamp,
    without_branches,
    divide_by_blocks,
    round_at_once,
    divide_by_few_bits,
)
SAME_BITS = [lambda program, rule=rule: rewritten(program, rule) for rule in RULES]


@pytest.mark.parametrize("name", OVER_ROWS)
def test_transforms_of_a_region_over_rows(name: str) -> None:
    lowered = lower(region_of(name))
    inputs = inputs_of(region_of(name), lowered)
    split = kept(lowered, inputs, (one_hot.sum_one_hot, Form.LOWERED), (split_outer, Form.MERGED))
    merged = kept(split, inputs, *((t, Form.MERGED) for t in SAME_BITS), (reorder, Form.MERGED))
    one = evaluated(finished(merged), inputs, splits=1)
    assert not differing(evaluated(merged, inputs), one)
    for mine, exact in zip(evaluated(form_fma(merged), inputs).values(), one.values(), strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-4, atol=1e-4)
    for check, transform, form in VARIANTS:
        try:
            check(merged)
        except Decline:
            assert TAKEN.get(name) is not check
            continue
        kept(merged, inputs, (transform, form))


VARIANTS: tuple[tuple[Callable[[LoopProgram], object], Transform, Form], ...] = (
    (check_shareable, lambda program: graphs.share(program, 4, 2), Form.COOPERATIVE),
    (check_divisible, lambda program: in_blocks(program, COLS // 3), Form.MERGED),
)
TAKEN = {
    "pair": check_shareable,
    "bias": check_divisible,
}


@pytest.mark.parametrize("name", WITHIN_TILES)
def test_transforms_of_a_region_within_tiles(name: str) -> None:
    lowered = lower_tile(region_of(name))
    inputs = inputs_of(region_of(name), lowered)
    program = kept(
        lowered, inputs, (split_spanning, Form.TILE_LOCAL), *((t, Form.TILE_LOCAL) for t in SAME_BITS),
        (schedule_for_registers, Form.TILE_LOCAL),
    )  # fmt: skip
    facts = tile.facts_of_tile(program)
    schedule = tile.through_workspace(tile.choose(facts, H200), facts)
    results = tile.staged_results(program, schedule)
    kept(program, inputs, (lambda p: staged.staged(p, results), Form.TILE_LOCAL))


@pytest.mark.parametrize("name", ["norm_backward", "behind a residual", "behind two sums"])
def test_transforms_of_values_of_rows(name: str) -> None:
    region = with_row_values(region_of(name))
    assert region is not None
    lowered = lower_tile(region)
    inputs = inputs_of(region, lowered)
    with_nest = with_producers(lowered)
    assert not differing(evaluated(lowered, inputs), evaluated(with_nest, inputs))
    kept(
        split_spanning(with_nest), inputs, *((t, Form.TILE_LOCAL) for t in SAME_BITS),
        (schedule_for_registers, Form.TILE_LOCAL),
    )  # fmt: skip
