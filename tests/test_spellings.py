"""The same mathematics is the same plan: programs of thirty bases, each operation in one of its spellings.

A spelling is drawn operation by operation; the first of each list is the base's own. hypothesis shrinks a
program that gets another plan to the one spelling that matters. `MIXORDER_SPELLINGS=400` draws so many, fresh
ones; the test command draws a few that are always the same.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import nn

import mixorder

COUNT = int(os.environ.get("MIXORDER_SPELLINGS", "0"))
SAME_TIME = 0.05
ROWS, COLS = 16384, 2048
BATCH = 8
bf16, f32 = torch.bfloat16, torch.float32
Draw = Callable[[str, int], int]


class Words:
    """The operations of a program. `draw` gives the number of one of so many spellings of a name."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def one(self, name: str, *spellings: Callable[[], Any]) -> Any:
        return spellings[self.draw(name, len(spellings))]()

    def float(self, x: Any) -> Any:
        return self.one(
            "float", x.float, lambda: x.to(f32), lambda: x.type(f32), lambda: x.to(f32, copy=True)
        )

    def half(self, x: Any) -> Any:
        return self.one("half", x.bfloat16, lambda: x.to(bf16), lambda: x.type(bf16))

    def square(self, x: Any) -> Any:
        return self.one(
            "square", x.square, lambda: x * x, lambda: x**2, lambda: x.pow(2.0), lambda: torch.mul(x, x)
        )

    def mean(self, x: Any) -> Any:
        """Over the last dim, which is kept."""
        return self.one(
            "mean",
            lambda: x.mean(-1, keepdim=True),
            lambda: x.mean(-1).unsqueeze(-1),
            lambda: x.mean(x.dim() - 1)[..., None],
            lambda: torch.mean(x, dim=[-1], keepdim=True),
            lambda: x.sum(-1, keepdim=True) / x.shape[-1],
        )

    def total(self, x: Any) -> Any:
        return self.one(
            "total",
            lambda: x.sum(-1, keepdim=True),
            lambda: x.sum(-1).unsqueeze(-1),
            lambda: torch.sum(x, x.dim() - 1)[..., None],
        )

    def largest(self, x: Any) -> Any:
        return self.one(
            "largest",
            lambda: x.amax(-1, keepdim=True),
            lambda: x.max(-1, keepdim=True).values,
            lambda: x.max(-1)[0].unsqueeze(-1),
            lambda: torch.amax(x, (-1,)).unsqueeze(-1),
        )

    def magnitude(self, x: Any) -> Any:
        return self.one("abs", x.abs, lambda: torch.abs(x), lambda: x.abs().clone())

    def columns(self, x: Any) -> Any:
        """The sum over all dims but the last."""
        flat = x.reshape(-1, x.shape[-1])
        return self.one(
            "columns",
            lambda: flat.sum(0),
            lambda: x.sum(tuple(range(x.dim() - 1))),
            lambda: flat.sum(0, keepdim=True).squeeze(0),
            lambda: flat.t().sum(-1),
        )

    def rsqrt(self, x: Any) -> Any:
        return self.one(
            "rsqrt", x.rsqrt, lambda: x**-0.5, lambda: 1 / x.sqrt(), lambda: torch.reciprocal(torch.sqrt(x))
        )

    def over(self, x: Any, y: Any) -> Any:
        """A tensor divided by a value of each row."""
        return self.one("over", lambda: x / y, lambda: torch.div(x, y), lambda: x / y.expand_as(x))

    def minus(self, x: Any, y: Any) -> Any:
        return self.one("minus", lambda: x - y, lambda: torch.sub(x, y), lambda: x + -y)

    def times(self, x: Any, y: Any) -> Any:
        return self.one("times", lambda: x * y, lambda: y * x, lambda: torch.mul(x, y))

    def scaled(self, x: Any, w: Any) -> Any:
        """A tensor times a vector of the columns."""
        return self.one(
            "scaled", lambda: x * w, lambda: w * x, lambda: x * w.unsqueeze(0), lambda: x * w.expand_as(x)
        )

    def shifted(self, x: Any, w: Any, b: Any) -> Any:
        return self.one(
            "shifted",
            lambda: x * w + b,
            lambda: b + w * x,
            lambda: torch.addcmul(b, x, w),
            lambda: (x * w).add(b),
        )

    def lower(self, x: Any, least: float) -> Any:
        return self.one(
            "clamp", lambda: x.clamp(min=least), lambda: x.clamp_min(least), lambda: torch.clamp(x, least)
        )

    def silu(self, x: Any) -> Any:
        return self.one("silu", lambda: F.silu(x), lambda: nn.SiLU()(x))

    def softmax(self, x: Any) -> Any:
        return self.one("softmax", lambda: x.softmax(-1), lambda: F.softmax(x, -1), lambda: nn.Softmax(-1)(x))

    def part(self, x: Any, at: int, parts: int) -> Any:
        n = x.shape[-1] // parts
        return self.one(
            "part",
            lambda: x.chunk(parts, -1)[at],
            lambda: x.split(n, -1)[at],
            lambda: x[..., at * n : (at + 1) * n],
            lambda: x.narrow(-1, at * n, n),
            lambda: x.unflatten(-1, (parts, n)).unbind(-2)[at],
        )

    def joined(self, *parts: Any) -> Any:
        return self.one(
            "joined",
            lambda: torch.cat(parts, -1),
            lambda: torch.stack(parts, -2).flatten(-2),
            lambda: torch.hstack(parts) if parts[0].dim() == 2 else torch.cat(parts, -1),
        )

    def shaped(self, x: Any) -> Any:
        """A tensor of rows and columns, or of batches of rows."""
        return self.one(
            "shape",
            lambda: x,
            lambda: x.view(BATCH, -1, x.shape[-1]),
            lambda: x.unflatten(0, (BATCH, -1)),
            lambda: x.contiguous(),
            lambda: x.reshape(-1, x.shape[-1]),
        )


# Bases with parameters: the backward is looked at. `p` gives a new vector of parameters.


def rms(o: Words, x: Any, w: Any) -> Any:
    return normed(o, o.shaped(x), w)


def normed(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(x)
    return o.scaled(o.half(o.times(wide, o.rsqrt(o.mean(o.square(wide)) + 1e-6))), w)


def rms_in_float(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(o.shaped(x))
    return o.half(o.scaled(o.times(wide, o.rsqrt(o.mean(o.square(wide)) + 1e-6)), o.float(w)))


def rms_of_one_plus(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(o.shaped(x))
    return o.half(o.scaled(o.times(wide, o.rsqrt(o.mean(o.square(wide)) + 1e-6)), 1 + o.float(w)))


def residual(o: Words, x: Any, w: Any) -> Any:
    x = o.shaped(x)
    return x + normed(o, x, w)


def layer(o: Words, x: Any, w: Any, b: Any) -> Any:
    wide = o.float(o.shaped(x))
    centred = o.minus(wide, o.mean(wide))
    return o.half(
        o.shifted(o.times(centred, o.rsqrt(o.mean(o.square(centred)) + 1e-5)), w.float(), b.float())
    )


def gated(o: Words, x: Any, w: Any) -> Any:
    x, gate = o.part(x, 0, 2), o.part(x, 1, 2)
    return o.times(normed(o, x, w[: x.shape[-1]]), o.silu(gate))


def gated_before(o: Words, x: Any, w: Any) -> Any:
    x, gate = o.part(x, 0, 2), o.part(x, 1, 2)
    return normed(o, o.times(x, o.silu(gate)), w[: x.shape[-1]])


def unit_length(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(o.shaped(x))
    length = o.lower(o.total(o.square(wide)).sqrt(), 1e-12)
    return o.half(o.scaled(o.over(wide, length), o.float(w)))


def of_heads(o: Words, x: Any, w: Any) -> Any:
    return normed(o, x.view(ROWS, -1, 128), w[:128])


def of_halves(o: Words, x: Any, w: Any) -> Any:
    n = x.shape[-1] // 2
    return o.joined(normed(o, o.part(x, 0, 2), w[:n]), normed(o, o.part(x, 1, 2), w[n:]))


def layer_scale(o: Words, x: Any, w: Any) -> Any:
    x = o.shaped(x)
    return x + o.scaled(F.gelu(x), w)


def biased(o: Words, x: Any, w: Any, b: Any) -> Any:
    return o.silu(o.shifted(o.shaped(x), w, b))


def dynamic_tanh(o: Words, x: Any, w: Any, b: Any) -> Any:
    return o.shifted(torch.tanh(0.5 * o.shaped(x)), w, b)


def attention(o: Words, x: Any, w: Any) -> Any:
    return o.softmax(o.scaled(o.shaped(x), w))


def twice(o: Words, x: Any, w: Any, b: Any) -> Any:
    return normed(o, rms(o, x, w), b)


def clipped(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(o.shaped(x))
    return o.scaled(o.half(o.times(wide, o.rsqrt(o.lower(o.mean(o.square(wide)), 1e-6)))), w)


def averaged(o: Words, x: Any, w: Any) -> Any:
    """By the mean of the magnitudes."""
    wide = o.float(o.shaped(x))
    return o.scaled(o.half(o.over(wide, o.mean(o.magnitude(wide)) + 1e-6)), w)


# Bases without parameters: pairs of reductions.


def sums(o: Words, x: Any) -> Any:
    x = o.float(x)
    return o.total(x), o.columns(x)


def squares(o: Words, x: Any) -> Any:
    square = o.square(o.float(x))
    return o.mean(square), o.columns(square)


def extremes(o: Words, x: Any) -> Any:
    return o.largest(o.magnitude(x)), o.columns(o.float(x))


def sinkhorn(o: Words, x: Any) -> Any:
    x = o.float(x)
    y = o.over(x, o.total(x))
    return y, o.columns(y)


def probabilities(o: Words, x: Any) -> Any:
    y = o.softmax(o.float(x))
    return o.half(y), o.columns(y)


def normalised(o: Words, x: Any) -> Any:
    x = o.float(o.shaped(x))
    y = o.times(x, o.rsqrt(o.mean(o.square(x)) + 1e-6))
    return o.half(y), o.columns(y)


def moments(o: Words, x: Any) -> Any:
    x = o.float(x)
    return o.mean(x), o.mean(o.square(x)), o.columns(x), o.columns(o.square(x))


def activation(o: Words, x: Any) -> Any:
    y = o.silu(o.float(x))
    return o.half(y), o.largest(o.magnitude(y)), o.columns(y)


def rowwise(o: Words, x: Any) -> Any:
    wide = o.float(x)
    scale = o.lower(o.largest(o.magnitude(wide)), 1e-12) / 448
    return scale, (o.over(wide, scale)).to(torch.float8_e4m3fn), o.columns(wide)


def centred(o: Words, x: Any) -> Any:
    x = o.float(x)
    y = o.minus(x, o.mean(x))
    return o.half(y), o.columns(y)


def products(o: Words, x: Any) -> Any:
    x, y = o.part(x, 0, 2), o.part(x, 1, 2)
    product = o.times(o.float(x), o.float(y))
    return o.total(product), o.columns(product)


def weighted(o: Words, x: Any) -> Any:
    """What a norm's backward consists of."""
    x, dy = o.float(o.part(x, 0, 2)), o.float(o.part(x, 1, 2))
    scale = o.rsqrt(o.mean(o.square(x)) + 1e-6)
    y = o.times(x, scale)
    dx = o.times(o.minus(dy, o.times(y, o.mean(o.times(dy, y)))), scale)
    return o.half(dx), o.columns(o.times(dy, y))


TRAINED: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (rms, rms_in_float, rms_of_one_plus, residual, layer, gated, gated_before, unit_length)
    + (of_heads, of_halves, layer_scale, biased, dynamic_tanh, attention, twice, clipped, averaged)
}
PAIRS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (sums, squares, extremes, sinkhorn, probabilities, normalised, moments, activation)
    + (rowwise, centred, products, weighted)
}


NAMES = (
    *("float", "half", "square", "mean", "total", "largest", "abs", "columns", "rsqrt", "over"),
    *("minus", "times", "scaled", "shifted", "clamp", "silu", "softmax", "part", "joined", "shape"),
)
ONE_SUM = {"dynamic_tanh", "layer_scale"}  # beside loops: Inductor's kernels are as fast


class Model(nn.Module):
    def __init__(self, base: Callable[..., Any], draw: Draw) -> None:
        super().__init__()
        self.base, self.draw = base, draw
        count = base.__code__.co_argcount - 2
        vectors = (nn.Parameter(torch.empty(COLS, dtype=bf16, device="meta")) for _ in range(count))
        self.vectors = nn.ParameterList(vectors)

    def forward(self, x: Any) -> Any:
        return self.base(Words(self.draw), x, *self.vectors)


def planned(base: Callable[..., Any], draw: Draw) -> tuple[list[tuple[int, str]], float]:
    """Rows and strategy of each region, and what the regions take, in us."""
    torch._dynamo.reset()
    trained = base.__name__ in TRAINED
    x = torch.empty(ROWS, COLS, dtype=bf16, device="meta", requires_grad=trained)
    with torch.set_grad_enabled(trained):
        report = mixorder.explain(Model(base, draw), options={"mixorder_strict": True})(x)
    found = sorted((r.rows * r.cols, r.strategy) for r in report.regions)
    return found, report.totals.fused_us


@functools.cache
def first(base: Callable[..., Any]) -> tuple[list[tuple[int, str]], float]:
    return planned(base, lambda name, count: 0)


@pytest.mark.parametrize("name", sorted((TRAINED | PAIRS).keys() - ONE_SUM))
def test_a_base_is_fused(name: str) -> None:
    regions, _ = first((TRAINED | PAIRS)[name])
    assert regions


@settings(max_examples=COUNT or 12, derandomize=not COUNT, deadline=None)
@given(st.sampled_from(sorted(TRAINED | PAIRS)), st.fixed_dictionaries({n: st.integers(0, 4) for n in NAMES}))
def test_another_spelling_has_the_plan_of_its_base(name: str, chosen: dict[str, int]) -> None:
    """An operation has one spelling in a program, so that a failure names it."""
    base = (TRAINED | PAIRS)[name]
    regions, us = planned(base, lambda name, count: chosen[name] % count)
    expected, expected_us = first(base)
    note(f"{regions} {us:.1f} us; base: {expected} {expected_us:.1f} us")
    assert [size for size, _ in regions] == [size for size, _ in expected]
    assert us == pytest.approx(expected_us, rel=SAME_TIME)
