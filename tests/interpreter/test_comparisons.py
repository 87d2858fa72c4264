"""Values in half precision that are compared with versions of themselves: as eager does, in both graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import bf16, f16, f32
from running import ON, Tensors, check, compiled, with_options
from torch import nn
from torch.utils.checkpoint import checkpoint

from mixorder import pipeline
from mixorder.ir.program import BufferRole, Compute, Value
from mixorder.planning import planning_with
from mixorder.region import comparisons
from mixorder.region.nodes import shape_of
from mixorder.region.sizes import product
from mixorder.report import RegionRecord, collect
from mixorder.strategies.tile import TILE

ROWS, COLS = 60, 128
Chain = Callable[[Any, Any], Any]

CHAINS: dict[str, Chain] = {
    "product": lambda x, w: x * w,
    "products": lambda x, w: x * w * w,
    "behind RMSNorm": lambda x, w: F.rms_norm(x, (COLS,), w, 1e-6) * w,
    "behind LayerNorm": lambda x, w: F.layer_norm(x, (COLS,), w) * w,
}


HEADS: dict[str, Chain] = {
    "amax": lambda y, w: (y.amax(-1), (y * w).sum(0)),
    "amin": lambda y, w: (y.amin(-1), (y * w).sum(0)),
    "max norm": lambda y, w: (torch.linalg.vector_norm(y, float("inf"), -1), (y * w).sum(0)),
    "largest": lambda y, w: (torch.where(y == y.amax(-1, keepdim=True), y * w, 0).sum(0),),
    "distance": lambda y, w: ((y - y.amax(-1, keepdim=True)).abs(), (y * w).sum(0)),
}


def inputs(dtype: torch.dtype) -> Tensors:
    return torch.randn(ROWS, COLS).to(dtype), torch.randn(COLS).to(dtype)


def step(function: Chain, args: Tensors) -> Tensors:
    """What a function gives, and the gradients of its arguments."""
    args = tuple(a.detach().requires_grad_() for a in args)
    out = function(*args)
    generator = torch.Generator().manual_seed(1)
    seeds = [torch.randn(t.shape, generator=generator).to(args[0].dtype) for t in out]
    return tuple(t.detach() for t in (*out, *torch.autograd.grad(out, args, seeds)))


PAIRS = [*zip([*CHAINS] * 2, [*HEADS] * 2, [bf16, f16] * 3, strict=False)]


@pytest.mark.parametrize(("chain", "head", "dtype"), PAIRS)
def test_gradients_are_those_of_the_rounded_values(chain: str, head: str, dtype: torch.dtype) -> None:
    args = inputs(dtype)

    def function(x: Any, w: Any) -> Any:
        return HEADS[head](CHAINS[chain](x, w), w)

    def exact(x: Any, w: Any) -> Any:
        """In float64, but for which elements are equal: that of eager's rounded values."""
        y = CHAINS[chain](x, w)
        return HEADS[head](y + (CHAINS[chain](*args).double() - y).detach(), w)

    with collect() as records:
        ours = step(compiled(ON)(function), args)
    assert any(isinstance(r, RegionRecord) for r in records)
    wide = tuple(a.double() for a in args)
    check(ours, step(function, args), step(exact, wide), ROWS)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_what_eager_gives_exactly_is_given_exactly(dtype: torch.dtype) -> None:
    """Counts, signs and positions of what is equal."""

    def function(x: Any, w: Any) -> Any:
        y = x * w * w
        most = y.amax(-1, keepdim=True)
        equal, near = y == most, torch.isclose(y, most)
        exact = equal.sum(-1), near.sum(0), torch.sign(y - most), (y / most).to(torch.int32), y % most
        return *exact, (y - most).float().abs().amax(0)

    args = inputs(dtype)
    with torch.no_grad(), collect() as records:
        ours = compiled(ON)(function)(*args)
    assert any(isinstance(r, RegionRecord) for r in records)
    for mine, theirs in zip(ours, function(*args), strict=True):
        assert torch.equal(mine, theirs)


def test_both_graphs_say_that_they_round() -> None:
    """By the names of nodes: caches of graphs do not compare metadata."""
    seen: list[set[str]] = []

    def spy(graph: torch.fx.Graph) -> None:
        seen.append({n.name for n in graph.nodes if n.meta.get("low_precision_pointwise_barrier")})

    def function(x: Any, w: Any) -> Any:
        return HEADS["amax"](x * w, w)

    with torch._inductor.config.patch(post_grad_custom_post_pass=spy):
        step(compiled(ON)(function), inputs(bf16))
    assert seen == [{"mul_rounded"}, {"mul_rounded", "eq_rounded"}]


IMAGES = torch.randn(4, 8, 20, 18)
RELUS: list[tuple[Callable[[], nn.Module], tuple[int, ...], bool, torch.dtype]] = [
    (lambda: nn.BatchNorm2d(16), (4, 16, 20, 18), False, bf16),
    (lambda: nn.BatchNorm2d(16), (4, 20, 18, 16), True, f16),
    (lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 260, 256), False, f16),  # between views
    (lambda: nn.BatchNorm1d(24), (1200, 24), False, f32),
    (lambda: nn.LayerNorm(256), (64, 256), True, bf16),
]

BENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "leaky_relu_": lambda z: F.leaky_relu_(z, 0.5),
}


@pytest.mark.parametrize(
    ("make", "shape", "last", "dtype", "name"), [(*row, [*BENT][i % 2]) for i, row in enumerate(RELUS)]
)
def test_a_backward_has_the_mask_of_what_the_forward_stored(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    last: bool,
    dtype: torch.dtype,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads x and dy only. The sums of whole numbers, and of halves, are exact, so that every element
    counts. In float16, many elements round to zero."""
    torch.manual_seed(3)
    monkeypatch.setattr(comparisons, "COPIED", 0)
    module = make()
    assert isinstance(module.bias, torch.Tensor)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=2.0**-21 if dtype is f16 else 1.0)
    x, dy = torch.randn(shape).to(dtype), torch.randint(-8, 9, shape).to(dtype)
    if last and len(shape) == 4:
        x, dy = x.movedim(-1, 1), dy.movedim(-1, 1)
    same = torch.eye(len(module.bias), dtype=dtype)
    if x.dim() == 4:
        same = same[:, :, None, None]
    same.requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = BENT[name](module(x))
        if isinstance(module, nn.LayerNorm):
            return y @ same  # whose gradient reads a view
        return F.conv2d(y, same) if x.dim() == 4 else F.linear(y, same)

    x.requires_grad_()
    with collect() as records:
        y = compiled(ON)(function)(x)
        _, db, _ = torch.autograd.grad(y, [x, module.bias, same], dy)
    masked = (
        torch.where(y > 0, dy, 0 if name == "relu" else dy * 0.5)
        .double()
        .movedim(-1 if isinstance(module, nn.LayerNorm) else 1, 0)
    )
    assert torch.equal(db, masked.flatten(1).sum(1).to(f32))
    (one,) = (r for r in records if isinstance(r, RegionRecord))
    assert len([b for b in one.loops.role(BufferRole.INPUT) if b.numel == x.numel()]) == 2


class Layers(nn.Module):
    """A convolution, a batch norm, what is made of both, and a convolution that its backward needs it for."""

    def __init__(self, then: Callable[..., Any], bias: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.then = nn.Conv2d(8, 8, 1, bias=bias), nn.BatchNorm2d(8), then
        self.last = nn.Conv2d(8, 8, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.then(self.norm, self.first(x), x))


MADE: dict[str, tuple[Callable[..., Any], torch.dtype, int]] = {
    "norm": (lambda norm, z, x: torch.relu(norm(z)), bf16, 1),
    # The loop that adds a convolution's bias may be the forward's, and not the backward's.
    "behind a bias": (lambda norm, z, x: torch.relu(norm(z)), f32, 1),
    "behind a bias in half precision": (lambda norm, z, x: torch.relu(norm(z)), bf16, 0),
    "in place": (lambda norm, z, x: F.leaky_relu_(norm(z), 0.1), bf16, 1),
    "in place, in full precision": (lambda norm, z, x: F.leaky_relu_(norm(z), 0.1), f32, 1),
    "between views": (lambda norm, z, x: torch.relu(norm(z).flatten(1)).view_as(z), bf16, 1),
    "of a part": (lambda norm, z, x: torch.relu(norm(z)[:, :4]).repeat(1, 2, 1, 1), f32, 0),
    "no sign": (lambda norm, z, x: F.threshold(norm(z), 0.5, 0.0), bf16, 0),
    "negated": (lambda norm, z, x: torch.relu(-F.relu_(norm(z))), f32, 0),
    "not the value itself": (lambda norm, z, x: torch.relu(F.leaky_relu(norm(z) * 2, 0.1)), bf16, 0),
    "of values, not of signs": (lambda norm, z, x: F.elu_(norm(z)), bf16, 0),
    "a norm and its source": (lambda norm, z, x: torch.relu(norm(z) + z * 0.5), f32, 1),
    "two products": (lambda norm, z, x: torch.relu(norm(z) * 2 + z * 0.5), f32, 0),
    "a small product": (
        lambda norm, z, x: torch.relu(norm(z) + (norm.weight * norm.bias)[:, None, None]),
        f32,
        0,
    ),
    "a product in a sum": (lambda norm, z, x: torch.relu(torch.add(norm(z) * 2, z, alpha=0.5)), f32, 0),
    "a product that is needed again": (
        lambda norm, z, x: torch.relu(
            (y := F.batch_norm(z, None, None, training=True) * norm.weight[:, None, None]) + y.mean()
        ),
        f32,
        0,
    ),
    "two tensors": (lambda norm, z, x: torch.relu(norm(z) + x), f32, 0),
    "no norm": (lambda norm, z, x: torch.relu(z), f32, 0),
    "another function": (lambda norm, z, x: torch.relu(torch.tanh(norm(z))), f32, 0),
    "fixed statistics": (lambda norm, z, x: torch.relu(norm.eval()(z)), f32, 0),
    "read by loops alone": (lambda norm, z, x: torch.relu(norm(z)) * 2, f32, 0),
    "rounded on the way": (lambda norm, z, x: torch.relu(norm(z) * 2), bf16, 0),
    "a loop's result": (lambda norm, z, x: torch.relu(norm(z * 2)), bf16, 0),
    "checkpointed": (
        lambda norm, z, x: checkpoint(lambda z: torch.relu(norm(z)), z, use_reentrant=False),
        f32,
        0,
    ),
}


class Rounded(torch.autograd.Function):
    """Gradients that are rounded to float8 by blocks of rows and of columns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        blocks = dy.view(dy.shape[0] // 32, 32, -1, 32)
        scales = (blocks.abs().amax(dim, keepdim=True) + 1 for dim in (1, 3))
        rounded = ((blocks / scale).to(torch.float8_e4m3fn).float() * scale for scale in scales)
        return sum(rounded).view_as(dy)  # type: ignore[union-attr]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_tile_contracts_what_inductors_forward_contracts(
    by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel rounds every other product, as eager does."""
    monkeypatch.setattr(comparisons, "COPIED", 0)

    class Layer(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not by_hand:
                return super().forward(x)
            variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
            return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias

    torch.manual_seed(5)
    module, same, x = Layer(256), torch.eye(256, requires_grad=True), torch.randn(512, 256)
    with collect() as records:
        step(compiled(ON)(lambda x: (torch.relu(Rounded.apply(module(x))) @ same,)), (x,))
    (one,) = (r for r in records if isinstance(r, RegionRecord) and r.strategy == TILE.name)
    values = {s.name: s for s in one.loops.nests[0].body if isinstance(s, Value)}
    (mask,) = (s for s in values.values() if isinstance(s, Compute) and s.op == "le")
    assert values[mask.args[0].name].op == "fma"
    others = [s for s in values.values() if isinstance(s, Compute) and s.op == "add" and s.dtype == f32]
    assert others


@pytest.mark.parametrize(("name", "dtype"), zip(BENT, (bf16, f16), strict=True))
def test_a_mask_is_the_one_of_eager_for_all_numbers(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of half precision, halfway to the next one, and on either side of that."""
    (mask,) = masks_of(Layers(lambda norm, z, x: BENT[name](norm(z))), IMAGES, dtype, monkeypatch)
    numbers = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype).float()
    finite = numbers[numbers.isfinite()].sort().values
    halfway = (finite[1:] + finite[:-1]) / 2
    neighbours = (torch.nextafter(halfway, torch.tensor(end)) for end in (-math.inf, math.inf))
    for given in (numbers, halfway, *neighbours):
        stored = BENT[name](given.to(dtype))
        assert torch.equal(mask.node.target(given, mask.most), mask.node.target(stored, 0))


def masks_of(
    module: nn.Module,
    x: torch.Tensor,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    options: Any = ON,
) -> list[Any]:
    """The masks that the compile of a module finds, in autocast to a half precision or without."""
    found, masks = list[Any](), pipeline.masks

    def noted(*args: Any) -> list[Any]:
        found.extend(masks(*args))
        return found

    monkeypatch.setattr(pipeline, "masks", noted)
    with torch.autocast("cpu", dtype=bf16 if dtype is f32 else dtype, enabled=dtype is not f32):
        y = compiled(options)(module)(x)
    y.float().sum().backward()
    return found


@pytest.mark.parametrize("name", MADE)
def test_which_masks_are_recomputed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of which forward and backward find the same bits, with nothing more to read."""
    then, dtype, count = MADE[name]
    module = Layers(then, bias="bias" in name)
    assert len(masks_of(module, IMAGES, dtype, monkeypatch)) == count


@pytest.mark.parametrize("least", [4 * 8 * 20 * 18, 4 * 8 * 20 * 18 + 1])
def test_what_is_too_small_for_a_region_keeps_its_mask(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layers(lambda norm, z, x: torch.relu(norm(z)))
    found = masks_of(module, IMAGES, bf16, monkeypatch, with_options(min_numel=least))
    assert len(found) == (least == 4 * 8 * 20 * 18)


@pytest.mark.parametrize("beyond", [0, 1])
def test_copies_are_made_beside_large_tensors_alone(beyond: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a norm of rows: a weight and a bias, each by a kernel of its own."""
    monkeypatch.setattr(comparisons, "COPIED", 4 * 8 * 20 * 18 // 2 + beyond)
    module = Layers(
        lambda norm, z, x: torch.relu(F.layer_norm(z, (18,), norm.weight.mean() + x[0, 0, 0], x[0, 0, 1]))
    )
    assert len(masks_of(module, IMAGES, f32, monkeypatch)) == (not beyond)


def test_no_whole_number_has_a_mask() -> None:
    """The backward of an embedding reads places, of which the model makes a mask."""

    def function(w: torch.Tensor) -> torch.Tensor:
        places = (w.detach() * 2).long().abs() % 7
        return F.embedding(places[:, 0], w) * torch.where(places > 0, w, 0)

    step(lambda w: (compiled(ON)(function)(w),), (torch.randn(60, 128),))


def test_under_compiled_autograd_a_backward_has_one_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced again, it would have no mark, and compute both."""
    module = Layers(lambda norm, z, x: torch.relu(norm(z)))
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert masks_of(module, IMAGES, bf16, monkeypatch) == []
    assert len(masks_of(module, IMAGES, bf16, monkeypatch)) == 1


def test_what_no_region_takes_reads_the_stored_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's kernels would store a masked gradient that takes more to compute. Graphs without a region
    differ in statistics only: which of them are saved."""
    run, found, x = pipeline.run, list[list[str]](), torch.randn(4, 8, 20, 18)

    def noted(graph: Any, *args: Any) -> Any:
        regions = run(graph, *args)
        full = [n for n in graph.nodes if n.op == "call_function" and product(shape_of(n) or ()) == x.numel()]
        found.append([str(n.target) for n in full])
        return regions

    def step() -> list[list[str]]:
        module = Layers(lambda norm, z, x: torch.relu(norm(z)))
        with torch.autocast("cpu", dtype=bf16), planning_with(strategies=()):
            y = compiled(ON)(module)(x)
            y.sum().backward()
        taken = found[:]
        found.clear()
        return taken

    monkeypatch.setattr(pipeline, "run", noted)
    ours = step()
    monkeypatch.setattr(pipeline, "masks", lambda *_: ())
    assert ours == step()
