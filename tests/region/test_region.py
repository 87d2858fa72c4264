"""Which nodes a region takes, what it reads and writes, and that it never closes a cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import graphs
import pytest
import torch
import torch.nn.functional as F
from expecttest import TestCase
from graphs import bf16, checked, f32, find, in_turn, pair, told, traced
from torch.fx import Graph

from mixorder.region.find import find_regions
from mixorder.region.nodes import operands
from mixorder.region.region import Region
from mixorder.rewrite.canonicalise import Canonicaliser

FULL = ((512, 256), f32)
HALF = ((512, 256), bf16)
SQUARE = ((256, 256), f32)
WEIGHT = ((256,), f32)
aten = torch.ops.aten


def names(nodes: Any) -> set[str]:
    return {n.name for n in nodes}


def convex(graph: Graph) -> list[Region]:
    return [checked(region) for region in find(graph)]


def convex_in_turn(graph: Graph) -> Iterator[Region]:
    for region in in_turn(graph):
        yield checked(region)
    graph.lint()


def softmax_online(x: Any, dy: Any) -> Any:
    """A node with two results, in which Inductor's own pass finds a maximum and a sum on a GPU."""
    moved = (x * dy).to(bf16)
    _, total = torch.ops.prims.prepare_softmax_online(moved.to(f32), 1)
    return *pair(x, dy), moved, total


def reshaped(x: Any, dy: Any) -> Any:
    product = x * dy.reshape(4, 128, 256)
    dx = dy.reshape(4, 128, 256) - x * product.sum(-1, keepdim=True)
    return dx.reshape(512, 256), product.reshape(512, 256).sum(0)


def side_by_side(x: Any, a: Any, b: Any, other: Any) -> Any:
    """Two norms of one activation: db of the second reads its own gradient alone."""
    dx = a - x * (a * x).mean(-1, keepdim=True)
    return dx, (a * x).sum(0), a.sum(0), (b * x).sum(0), b.sum(0), other.sum(0)


def in_a_chain(x: Any, dy: Any) -> Any:
    scaled = x / x.abs().amax(1, keepdim=True)
    return dy - scaled * (scaled * dy).sum(1, keepdim=True), (x * dy).sum(0)


def checkpointed(x: Any, dy: Any) -> Any:
    """dw needs rstd, which needs a row sum; dx needs both."""
    rstd = torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)
    x_hat = x * rstd
    return (dy - x_hat * (dy * x_hat).mean(1, keepdim=True)) * rstd, (dy * x_hat).sum(0)


def recomputed_moments(x: Any, dy: Any) -> Any:
    """db comes before the recomputed moments, which it does not need and dw does."""
    db, centred = dy.sum(0), x - x.mean(1, keepdim=True)
    x_hat = centred * torch.rsqrt((centred * centred).mean(1, keepdim=True) + 1e-5)
    return dy - x_hat * (dy * x_hat).mean(1, keepdim=True), (dy * x_hat).sum(0), db


def heads(x: Any, dy: Any) -> Any:
    product = x * dy
    return dy - x * product.sum(1, keepdim=True), product.reshape(128, 4, 256).sum(0)


def qkv_gradient(through: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """As attention gives them, and as the product before it wants them."""

    def function(q: Any, k: Any, v: Any, m: Any) -> Any:
        pieces = [t.permute(0, 2, 1, 3).reshape(2, 64, 64) for t in (q, k, v)]
        whole = torch.cat(pieces, 2).view(128, 192)
        return whole.sum(0), through(whole, m)

    return function


def kept_outside(x: Any, dy: Any) -> Any:
    """tanh could be recomputed for cumsum, but from a product that the kernel writes."""
    t = torch.tanh(x * dy)
    late = t.cumsum(1)
    return (x * late).sum(1), (dy * t).sum(0), dy * late


def inner_behind_outer(x: Any, dy: Any, m: Any) -> Any:
    dw = (x * dy).sum(0)
    return (x * dy * (dw.reshape(1, 256) @ m)).sum(1), dw


def permuted_statistics(x: Any, dy: Any, w: Any) -> Any:
    """The recomputed moments feed, through another order of the rows, what the other reductions read."""
    var, mean = torch.var_mean(x, 2, correction=0, keepdim=True)
    hat = (x - mean) * torch.rsqrt(var + 1e-5)
    back = (dy * torch.cos(hat.permute(1, 0, 2).contiguous())).permute(1, 0, 2)
    return back - hat * (back * w * hat).sum(2, keepdim=True), (back * hat).sum((0, 1)), back.sum((0, 1))


def copies(row: Any, x: Any) -> Any:
    """What the sum reads is in memory for somebody, but nothing of full size is read to make it."""
    made = -row.unsqueeze(0).expand(512, 256)
    return torch.slice_scatter(made, x, 1, 5), made.sum(0)


def spread(side: str) -> Callable[..., Any]:
    """A result of another shape, whose number of elements divides the space's: no loop is over it."""

    def function(x: Any, dy: Any, m: Any) -> Any:
        row, col = (x * dy).sum(1), (x * dy).sum(0)
        table = row.reshape(512, 1) * m.reshape(512, 128) if side == "row" else m * col
        return dy * row.reshape(512, 1), col, table

    return function


def behind(through: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A sum depends on dx through a node that no region takes: it would close a cycle."""

    def function(x: Any, dy: Any, m: Any) -> Any:
        dx, dw = pair(x, dy)
        return dx, dw, (x * through(dx, m)).sum(0)

    return function


def narrower(x: Any, y: Any, z: Any, *results: Callable[[Any, Any], Any]) -> Any:
    """A sum, and casts of it to float8 along rows and columns: the columns' comes after the region."""
    total = x + y + z
    wide, casts = total.float(), list[Any]()
    for dim in (1, 0):
        scale = 448 / wide.abs().amax(dim, keepdim=True)
        casts += [(wide * scale).to(torch.float8_e4m3fn), scale]
    return *casts, *(result(total, wide) for result in results)


def with_ones(x: Any, dy: Any, w: Any) -> Any:
    """A constant that a product reads: it is made outside again."""
    ones = torch.ones(512, 256, dtype=bf16)
    scaled = dy + ones
    return dy - x * (scaled * x).sum(-1, keepdim=True), (scaled * x).sum(0), ones @ w


def two_orders(second: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Rows of two orders meet, or a row and a value of another one."""

    def function(x: Any, z: Any) -> Any:
        total = (x * z).sum(-1, keepdim=True)
        dx = x - z * total
        return torch.exp(dx.permute(1, 0, 2)) * second(dx, total), (x * z).sum((0, 1))

    return function


def below(gather: Callable[[Any], Any]) -> Callable[..., Any]:
    def function(x: Any, z: Any) -> Any:
        product = x * z
        return gather(x - z * product.sum(-1, keepdim=True)), product.sum((0, 1))

    return function


CUBE = ((16, 16, 16), f32)
IMAGE = ((16, 6, 10, 14), f32)
PIECES = (*[((2, 4, 64, 16), f32)] * 3, ((192, 32), f32))  # batch, heads, tokens, columns of a head
THREE = ((16, 16, 64), f32)

CASES: dict[str, tuple[Callable[..., Any], tuple[graphs.Spec, ...]]] = {
    "x, read outside": (lambda x, dy, m: (*pair(x, dy), x @ m), (FULL, FULL, SQUARE)),
    "dx, read outside": (lambda x, dy, m: (*(p := pair(x, dy)), p[0] @ m), (FULL, FULL, SQUARE)),
    "a sum, read outside": (lambda x, a, b, m: (*pair(x, dy := a + b), dy @ m), (FULL, FULL, FULL, SQUARE)),
    "a cast for a loop": (lambda x, dy, m: (*pair(x, w := dy.to(f32)), w * m), (FULL, HALF, FULL)),
    "a cast for a product": (lambda x, dy, m: (*pair(x, w := dy.to(f32)), w @ m), (FULL, HALF, SQUARE)),
    "a cast that it waits for": (lambda x, dy, m: pair(x + (w := dy.to(f32)) @ m, w), (FULL, HALF, SQUARE)),
    "casts for a softmax": (softmax_online, (FULL, FULL)),
    "a residual": (lambda x, dy, r: ((p := pair(x, dy))[0] + r, p[1]), (FULL, FULL, FULL)),
    "reshaped rows": (reshaped, (((4, 128, 256), f32), FULL)),
    "a bias gradient": (
        lambda x, dy: (*(p := pair(x, dy)), p[0].sum(0, keepdim=True).reshape(256)),
        (FULL, FULL),
    ),
    "two pairs with a gradient in common": (side_by_side, (FULL, FULL, FULL, FULL)),
    "an epilogue": (
        lambda x, dy, w: ((p := pair(x, dy))[0], (p[1] * 0.5 + w).to(bf16)),
        (FULL, FULL, WEIGHT),
    ),
    "two norms of one gradient": (lambda x, y, dy: (*pair(x, dy), *pair(y, dy)), (FULL, FULL, FULL)),
    "row sums in a chain": (in_a_chain, (FULL, FULL)),
    "a checkpointed norm": (checkpointed, (FULL, FULL)),
    "db of a checkpointed norm": (recomputed_moments, (FULL, FULL)),
    "two pairs": (lambda a, b, c, d: (*pair(a, b), *pair(c, d)), (FULL, FULL, SQUARE, SQUARE)),
    "heads": (heads, (FULL, FULL)),
    "common axes": (lambda x: (x.sum((2, 3)), x.sum((0, 2, 3)), x * 2), (IMAGE,)),
    "no row sum": (lambda a, b: (product := a * b, product.sum(0)), (((512, 3000), f32),) * 2),
    "a scale's gradient": (lambda x, dy, w: (dy * w, (dy * x).sum(0)), (FULL, FULL, WEIGHT)),
    "dx of what the sum does not read": (lambda x, dy, w: (dy * x, (dy * w).sum(0)), (FULL, FULL, WEIGHT)),
    "dx for a loop": (lambda x, dy, w: ((dy * w).sin().sum(1), (dy * x).sum(0)), (FULL, FULL, WEIGHT)),
    "dx behind the sum": (lambda x, dy, w: (dy * (s := (dy * x).sum(0)), s), (FULL, FULL, WEIGHT)),
    "pieces for a product": (qkv_gradient(lambda t, m: t @ m), PIECES),
    "pieces for a loop": (qkv_gradient(lambda t, m: t.sin()), PIECES),
    "pieces for nobody": (qkv_gradient(lambda t, m: None), PIECES),
    "a sum behind a product": (behind(lambda t, m: t @ m), (FULL, FULL, SQUARE)),
    "a sum behind a scan": (behind(lambda t, m: t.cumsum(1)), (FULL, FULL, SQUARE)),
    "a sum behind other rows": (
        behind(lambda t, m: t.reshape(256, 512).flip(0).reshape(512, 256)),
        (FULL, FULL, SQUARE),
    ),
    "around a product": (
        lambda x, dy, m: ((p := pair(x, dy))[0] + p[0] @ m, p[1]),
        (FULL, FULL, SQUARE),
    ),
    "a producer outside": (kept_outside, (FULL, FULL)),
    "a row sum behind a column sum": (inner_behind_outer, (FULL, FULL, SQUARE)),
    "a column sum over the rows": (lambda x, dy: ((p := pair(x, dy))[0] * p[1], p[1]), (FULL, FULL)),
    "a table of rows": (spread("row"), (FULL, FULL, SQUARE)),
    "a table of columns": (spread("column"), (FULL, FULL, SQUARE)),
    "permuted statistics": (permuted_statistics, (THREE, THREE, ((64,), f32))),
    "copies": (copies, (WEIGHT, ((512, 251), f32))),
    "only a weight": (lambda x, dy, w: ((x * w).sum(1), (dy * w).sum(0)), (FULL, FULL, WEIGHT)),
    "other rows": (lambda x: (x.sum(1), x.reshape(384, 240).sum(0)), (((512, 180), f32),)),
    "other axes": (
        lambda x: ((y := x.reshape(8, 64, 180)).sum((1, 2)), y.sum((0, 1))),
        (((512, 180), f32),),
    ),
    "complex numbers": (lambda x, dy: pair(x.abs(), dy), (((512, 256), torch.complex64), FULL)),
    "float8": (lambda x, dy: pair(x.to(f32), dy), (((512, 256), torch.float8_e4m3fn), FULL)),
    "casts of a sum": (narrower, (HALF, HALF, HALF)),
    "casts and their sum": (
        lambda *x: narrower(*x, lambda total, wide: total),
        (HALF, HALF, HALF),
    ),
    "casts, a product": (
        lambda x, y, z, w: narrower(x, y, z, lambda total, wide: wide @ w),
        (HALF, HALF, HALF, SQUARE),
    ),
    "a constant for a product": (with_ones, (HALF, HALF, ((256, 256), bf16))),
    "a product of dx for a sum": (
        lambda x, dy, z: (*(p := pair(x, dy)), (p[0] * z).sum()),
        (FULL, FULL, FULL),
    ),
    "a product of dx for a product": (
        lambda x, dy, z: ((p := pair(x, dy))[1], (p[0] * z) @ z.t()),
        (FULL, FULL, FULL),
    ),
    "rows of two orders": (two_orders(lambda dx, total: dx), (CUBE, CUBE)),
    "rows permuted otherwise": (
        two_orders(lambda dx, total: dx.reshape(2, 8, 16, 16).permute(1, 0, 2, 3).reshape(16, 16, 16)),
        (CUBE, CUBE),
    ),
    "permuted rows and a row sum": (two_orders(lambda dx, total: total), (CUBE, CUBE)),
    "a slice below": (below(lambda dx: torch.exp(dx[:, 1:])), (CUBE, CUBE)),
    "a cat below": (below(lambda dx: torch.cat([dx[..., 1:], dx[..., :1]], -1)), (CUBE, CUBE)),
    "padding below": (below(lambda dx: F.pad(dx, (0, 0, 1, 0))), (CUBE, CUBE)),
    "constants alone": (lambda x: pair(torch.full_like(x, 2.0), torch.full_like(x, 3.0)), (FULL,)),
}


class Regions(TestCase):
    def test_what_is_found(self) -> None:
        found = (f"{name}. {told(traced(function, *specs))}" for name, (function, specs) in CASES.items())
        self.assertExpectedInline(
            "\n".join(found),
            """\
x, read outside. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
dx, read outside. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a sum, read outside. 512x256: sum_1 | sum_2, a_1 b_1 x_1 -> add sub sum_2
a cast for a loop. 512x256: sum_1 | sum_2, dy_1 x_1 m_1 -> sub sum_2 mul_2
a cast for a product. 512x256: sum_1 | sum_2, dy_1 x_1 -> convert_element_type sub sum_2
a cast that it waits for. 512x256: sum_1 | sum_2, dy_1 addmm_default -> sub sum_2
casts for a softmax. 512x256: getitem_1 sum_1 | sum_2, x_1 dy_1 -> convert_element_type getitem_1 sub sum_2
a residual. 512x256: sum_1 | sum_2, x_1 dy_1 r_1 -> sum_2 add
reshaped rows. 512x256: sum_1 | sum_2, dy_1 x_1 -> sub sum_2
a bias gradient. 512x256: sum_1 | sum_2 sum_3, x_1 dy_1 -> sub sum_2 sum_3
two pairs with a gradient in common. 512x256: mean | sum_1 sum_2 sum_3, a_1 x_1 b_1 -> sub sum_1 sum_2 sum_3
an epilogue. 512x256: sum_1 | sum_2, x_1 dy_1 w_1 -> sub convert_element_type
two norms of one gradient. 512x256: sum_1 sum_3 | sum_2 sum_4, x_1 dy_1 y_1 -> sub sum_2 sub_1 sum_4
row sums in a chain. 512x256: amax sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a checkpointed norm. 512x256: mean mean_1 | sum_1, x_1 dy_1 -> mul_4 sum_1
db of a checkpointed norm. 512x256: mean mean_1 mean_2 | sum_1 sum_2, dy_1 x_1 -> sum_1 sub_1 sum_2
two pairs. 512x256: sum_1 | sum_2, a_1 b_1 -> sub sum_2; 256x256: sum_3 | sum_4, c_1 d_1 -> sub_1 sum_4
heads. row 128 x batch 4 x column 256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
common axes. row 16 x batch 6 x common 140: sum_1 | sum_2, x_1 -> sum_1 sum_2 mul
no row sum. 512x3000: - | sum_1, a_1 b_1 -> mul sum_1
a scale's gradient. 512x256: - | sum_1, dy_1 w_1 x_1 -> mul sum_1
dx of what the sum does not read. nothing
dx for a loop. 512x256: sum_1 | sum_2, dy_1 w_1 x_1 -> sum_1 sum_2
dx behind the sum. 512x256: - | sum_1, dy_1 x_1 -> sum_1 mul_1
pieces for a product. 128x192: - | sum_1, q_1 k_1 v_1 -> cat sum_1
pieces for a loop. nothing
pieces for nobody. nothing
a sum behind a product. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a sum behind a scan. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a sum behind other rows. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
around a product. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a producer outside. 512x256: sum_1 | sum_2, mul x_1 cumsum dy_1 -> sum_1 sum_2
a row sum behind a column sum. cycle
a column sum over the rows. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a table of rows. 512x256: sum_1 | sum_2, x_1 dy_1 -> sum_1 sum_2 mul_3
a table of columns. 512x256: sum_1 | sum_2, x_1 dy_1 -> sum_2 mul_3
permuted statistics. 256x64: sum_1 | sum_2 sum_3, x_1 getitem_1 getitem dy_1 w_1 -> sub_1 sum_2 sum_3
copies. nothing
only a weight. nothing
other rows. axis-class
other axes. axis-class
complex numbers. unsupported-dtype
float8. unsupported-dtype
casts of a sum. 512x256: amax | amax_1, arg0_1 arg1_1 arg2_1 -> add_1 mul convert_element_type_1 mul_2
casts and their sum. 512x256: amax | amax_1, arg0_1 arg1_1 arg2_1 -> add_1 mul convert_element_type_1 mul_2
casts, a product. 512x256: amax | amax_1, x_1 y_1 z_1 -> convert_element_type mul convert_element_type_1 mul_2
a constant for a product. 512x256: sum_1 | sum_2, dy_1 x_1 -> sub sum_2
a product of dx for a sum. 512x256: sum_1 | sum_2, x_1 dy_1 -> sub sum_2
a product of dx for a product. 512x256: sum_1 | sum_2, x_1 dy_1 z_1 -> sum_2 mul_2
rows of two orders. 256x16: sum_1 | sum_2, x_1 z_1 -> sub exp sum_2
rows permuted otherwise. 256x16: sum_1 | sum_2, x_1 z_1 -> exp clone sum_2
permuted rows and a row sum. 256x16: sum_1 | sum_2, x_1 z_1 -> sum_1 exp sum_2
a slice below. 256x16: sum_1 | sum_2, x_1 z_1 -> sub sum_2
a cat below. 256x16: sum_1 | sum_2, x_1 z_1 -> sub sum_2
padding below. 256x16: sum_1 | sum_2, x_1 z_1 -> sub sum_2
constants alone. unsupported-op""",
        )


# Acceptance.


@pytest.mark.parametrize("behind", ["a product", "a scan", "nothing"])
def test_what_a_product_has_read_is_rounded_beside_its_result(behind: str) -> None:
    """The region recomputes `v`, but the product has read the `v` that is in memory."""

    def function(x: Any, scale: Any, w: Any, other: Any) -> Any:
        v = x * scale
        read = {"a product": lambda: v @ w, "a scan": lambda: v.cumsum(0), "nothing": lambda: other @ w}[
            behind
        ]()
        return (x * x).sum(-1), (v - read).sum(0)

    half, square, row = ((512, 256), bf16), ((256, 256), bf16), ((512, 1), bf16)
    (region,) = convex(traced(function, half, row, square, half))
    assert names(region.rounded) == ({"mul"} if behind != "nothing" else set())


# Refusals, and what a region must not swallow.


def test_what_is_there_for_a_reduction_joins_only_with_it() -> None:
    """No pair reduces two codes: it writes the codes, and not what the reductions would read."""

    def function(x: Any) -> Any:
        scale = x.abs().amax(1, keepdim=True)
        codes = (x / scale).to(torch.int8)
        return codes[:, ::2] | codes[:, 1::2], scale, x.sum(0)

    graph = traced(function, FULL)
    canonicaliser = Canonicaliser(graph)
    canonicaliser.begin()
    (region,) = find_regions(graph, canonicaliser.joining)
    assert isinstance(region, Region) and len(canonicaliser.joining) == 2
    assert not any(made.intersection(region.nodes) for made in canonicaliser.joining.values())
    assert "convert_element_type" in names(region.outputs)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, dy: (x * dy).sum(0),
        lambda x, dy: (x * dy).sum(1),
        lambda x, dy: x * dy,
        lambda x, dy: (x.sum(1), dy.sum(0)),
        lambda x, dy: (x.sum(1), x.flip(0).sum(0)),
        lambda x, dy: (x.sum(), x.sum(0)),
        lambda x, dy: (x.cumsum(1), dy.sum(0)),
        # Written anyway, but not where its sum could ride along.
        lambda x, dy: ((y := (x @ x.t() @ dy)), y.sum(0)),
        lambda x, dy: ((y := x * dy), y.sum()),
    ],
)
def test_no_pair_no_region(function: Any) -> None:
    assert list(find_regions(traced(function, FULL, FULL))) == []


# Gathers: inside above the reductions, outside below them.

HEADS = ((2, 4, 16), f32)


def gathered_pair(make: Any) -> Any:
    """A pair of (2, 4, 16) whose one factor is made by `make` from another tensor."""

    def function(x: Any, z: Any) -> Any:
        product = x * make(z)
        return x - product.sum(-1, keepdim=True), product.sum((0, 1))

    return function


def split(z: torch.Tensor) -> torch.Tensor:
    a, b = torch.exp(z).chunk(2, -1)
    return torch.cat([b, a], -1)


def across(z: torch.Tensor) -> torch.Tensor:
    return torch.cat([z.t()[:, 8:] * 2, z.t()[:, :8]], 1).reshape(2, 4, 16)


ABOVE: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = {
    "permute": (lambda z: torch.exp(z).permute(1, 0, 2), (4, 2, 16)),
    "clone": (lambda z: torch.exp(z).permute(1, 0, 2).contiguous(), (4, 2, 16)),
    "slice of more than the space": (lambda z: torch.exp(z)[:, 1:], (2, 5, 16)),
    "slice of columns": (lambda z: F.pad(torch.exp(z)[..., 3:], (0, 3)), (2, 4, 16)),
    "select": (lambda z: torch.exp(z)[:, 1].unsqueeze(1), (2, 4, 16)),
    "cat": (lambda z: torch.cat([torch.exp(z[:, 1:]), z[:, :1]], 1), (2, 4, 16)),
    "split": (split, (2, 4, 16)),
    "pad": (lambda z: F.pad(torch.exp(z), (1, 0)), (2, 4, 15)),
    "slice_scatter": (
        lambda z: torch.slice_scatter(torch.zeros(2, 4, 16), torch.exp(z), 1, 1, 4),
        (2, 3, 16),
    ),
    "select_scatter": (lambda z: torch.select_scatter(torch.zeros(2, 4, 16), torch.exp(z), 1, -1), (2, 16)),
    # Of the last dim, reading would go across memory.
    "permute of the last dim": (lambda z: torch.exp(z).permute(0, 2, 1), (2, 16, 4)),
    "slice with steps": (lambda z: torch.exp(z)[..., ::2], (2, 4, 32)),
    "select of the last dim": (lambda z: torch.exp(z)[..., 1], (2, 4, 16, 2)),
    "what lies across memory": (across, (16, 8)),
}


class Gathers(TestCase):
    def test_above_the_reductions(self) -> None:
        made = {
            name: traced(gathered_pair(make), HEADS, (shape, f32)) for name, (make, shape) in ABOVE.items()
        }
        found = "\n".join(f"{name}. {told(graph)}" for name, graph in made.items())
        self.assertExpectedInline(
            found,
            """\
permute. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
clone. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
slice of more than the space. 8x16: sum_1 | sum_2, exp x_1 -> sub sum_2
slice of columns. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
select. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
cat. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
split. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
pad. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
slice_scatter. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
select_scatter. 8x16: sum_1 | sum_2, z_1 x_1 -> sub sum_2
permute of the last dim. 8x16: sum_1 | sum_2, x_1 permute -> sub sum_2
slice with steps. 8x16: sum_1 | sum_2, x_1 slice_1 -> sub sum_2
select of the last dim. 8x16: sum_1 | sum_2, x_1 select -> sub sum_2
what lies across memory. 8x16: sum_1 | sum_2, cat x_1 -> sub sum_2""",
        )
        for graph in made.values():
            assert len(list(convex_in_turn(graph))) == 1


def test_a_split_whose_other_piece_is_needed_outside_stays_for_it() -> None:
    def function(x: Any, z: Any, m: Any) -> Any:
        a, b = torch.exp(z).chunk(2, -1)
        return *gathered_pair(lambda _: torch.cat([b, a], -1))(x, z), a @ m

    graph = traced(function, HEADS, HEADS, ((8, 8), f32))
    (region,) = convex_in_turn(graph)
    assert not {n.target for n in region.outputs} & {aten.split.Tensor, aten.exp.default}


@pytest.mark.parametrize("shape", [(4, 2, 16), (4, 4, 16), (16, 16, 16)])
def test_no_reduction_is_behind_a_row_permutation(shape: tuple[int, ...]) -> None:
    """Its rows would be read at another row's place; with as many rows as columns no shape tells."""

    def function(x: Any, z: Any) -> Any:
        scaled = x * z.sum(-1, keepdim=True)
        permuted = scaled.permute(1, 0, 2).reshape(shape).contiguous()
        return (permuted * z).sum((0, 1)), scaled.sum((0, 1)), permuted[:, 1:]

    graph = traced(function, (shape, f32), (shape, f32))
    for region in convex_in_turn(graph):
        assert aten.slice.Tensor not in {n.target for n in region.nodes}
        assert not {a for n in (*region.inner, *region.outer) for a in operands(n)} & region.permuted.keys()


def test_half_of_a_tensor_that_is_dear_to_make_is_not_made_twice() -> None:
    def function(x: Any, a: Any, b: Any) -> Any:
        half = a * b
        return *gathered_pair(lambda z: F.pad(z, (8, 0)))(x, half), half.cumsum(-1)

    (region,) = convex(traced(function, HEADS, ((2, 4, 8), f32), ((2, 4, 8), f32)))
    assert "mul" in names(region.inputs)
