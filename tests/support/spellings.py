"""Programs whose operations have several spellings: thirty bases, and chains of these that are drawn.

A base is a function of `Words`, a tensor and vectors of parameters. A program is one base, or several in a
chain with a loss behind them, as plain PyTorch. The first spelling of an operation is the base's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

ROWS, COLS = 16384, 2048
BATCH = 8
bf16, f32 = torch.bfloat16, torch.float32


class Words:
    """The operations of a program. `chosen` has the number of an operation's spelling, if it is not the
    first one."""

    def __init__(self, chosen: Mapping[str, int]) -> None:
        self.chosen = chosen

    def one(self, name: str, *spellings: Callable[[], Any]) -> Any:
        return spellings[self.chosen.get(name, 0) % len(spellings)]()

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
            lambda: x.mT.mean(-2).unsqueeze(-1),
        )

    def total(self, x: Any) -> Any:
        return self.one(
            "total",
            lambda: x.sum(-1, keepdim=True),
            lambda: x.sum(-1).unsqueeze(-1),
            lambda: torch.sum(x, x.dim() - 1)[..., None],
            lambda: x.mT.sum(-2)[..., None],
            lambda: torch.einsum("...i->...", x).unsqueeze(-1),
        )

    def largest(self, x: Any) -> Any:
        return self.one(
            "largest",
            lambda: x.amax(-1, keepdim=True),
            lambda: x.max(-1, keepdim=True).values,
            lambda: x.max(-1)[0].unsqueeze(-1),
            lambda: torch.amax(x, (-1,)).unsqueeze(-1),
            lambda: x.mT.amax(-2).unsqueeze(-1),
        )

    def magnitude(self, x: Any) -> Any:
        return self.one("abs", x.abs, lambda: x.abs().clone(), lambda: torch.maximum(x, -x))

    def columns(self, x: Any) -> Any:
        """The sum over all dims but the last."""
        flat = x.reshape(-1, x.shape[-1])
        return self.one(
            "columns",
            lambda: flat.sum(0),
            lambda: x.sum(tuple(range(x.dim() - 1))),
            lambda: flat.sum(0, keepdim=True).squeeze(0),
            lambda: flat.t().sum(-1),
            lambda: x.flatten(0, -2).permute(1, 0).sum(1),
            lambda: x.sum(0) if x.dim() == 2 else x.sum(0).sum(0),
        )

    def rsqrt(self, x: Any) -> Any:
        return self.one(
            "rsqrt", x.rsqrt, lambda: x**-0.5, lambda: 1 / x.sqrt(), lambda: torch.reciprocal(torch.sqrt(x))
        )

    def root(self, x: Any) -> Any:
        return self.one("root", x.sqrt, lambda: x**0.5, lambda: torch.pow(x, 0.5))

    def by_root(self, x: Any, y: Any) -> Any:
        """A tensor divided by the root of a value of each row."""
        return self.one(
            "by root",
            lambda: self.times(x, self.rsqrt(y)),
            lambda: self.over(x, self.root(y)),
        )

    def over(self, x: Any, y: Any) -> Any:
        """A tensor divided by a value of each row."""
        return self.one(
            "over",
            lambda: x / y,
            lambda: torch.div(x, y),
            lambda: x / y.expand_as(x),
            lambda: x * y.reciprocal(),
        )

    def minus(self, x: Any, y: Any) -> Any:
        return self.one("minus", lambda: x - y, lambda: torch.sub(x, y), lambda: x + -y)

    def plus(self, x: Any, y: Any) -> Any:
        """Of a fresh tensor, and a tensor or number."""
        return self.one("plus", lambda: x + y, lambda: y + x, lambda: torch.add(x, y), lambda: x.add_(y))

    def times(self, x: Any, y: Any) -> Any:
        return self.one(
            "times", lambda: x * y, lambda: y * x, lambda: torch.mul(x, y), lambda: x.clone().mul_(y)
        )

    def scaled(self, x: Any, w: Any) -> Any:
        """A tensor times a vector of the columns."""
        return self.one(
            "scaled",
            lambda: x * w,
            lambda: w * x,
            lambda: x * w.unsqueeze(0),
            lambda: x * w.expand_as(x),
            lambda: (x.float() * w.float()).to(x.dtype),
        )

    def shifted(self, x: Any, w: Any, b: Any) -> Any:
        return self.one(
            "shifted",
            lambda: x * w + b,
            lambda: b + w * x,
            lambda: torch.addcmul(b, x, w),
            lambda: (x * w).add(b),
            lambda: (x * w).add_(b),
        )

    def between(self, x: Any, y: Any, w: Any) -> Any:
        """From one tensor to another, by a share of each column."""
        return self.one(
            "between",
            lambda: torch.lerp(x, y, w),
            lambda: x + w * (y - x),
            lambda: torch.addcmul(x, w, y - x),
        )

    def lower(self, x: Any, least: float) -> Any:
        return self.one(
            "clamp",
            lambda: x.clamp(min=least),
            lambda: x.clamp_min(least),
            lambda: torch.clamp(x, least),
            lambda: torch.maximum(x, torch.full_like(x, least)),
            lambda: torch.where(x > least, x, least),
        )

    def silu(self, x: Any) -> Any:
        return self.one("silu", lambda: F.silu(x), lambda: nn.SiLU()(x), lambda: x * torch.sigmoid(x))

    def gelu(self, x: Any) -> Any:
        half = 0.5**0.5
        return self.one(
            "gelu",
            lambda: F.gelu(x),
            lambda: nn.GELU()(x),
            lambda: (0.5 * x.float() * (1 + torch.erf(x.float() * half))).to(x.dtype),
        )

    def softmax(self, x: Any) -> Any:
        return self.one(
            "softmax",
            lambda: x.softmax(-1),
            lambda: F.softmax(x, -1),
            lambda: nn.Softmax(-1)(x),
            lambda: self.softmax_by_hand(x.float()).to(x.dtype),
            lambda: x.log_softmax(-1, dtype=f32).exp().to(x.dtype),
        )

    def softmax_by_hand(self, x: Any) -> Any:
        """In float32."""
        y = (x - x.amax(-1, keepdim=True).detach()).exp()
        return y / y.sum(-1, keepdim=True)

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
            lambda: self.written(parts),
        )

    def written(self, parts: Sequence[Any]) -> Any:
        """By writes to slices."""
        n = parts[0].shape[-1]
        whole = parts[0].new_empty(*parts[0].shape[:-1], n * len(parts))
        for i, part in enumerate(parts):
            whole[..., i * n : (i + 1) * n] = part
        return whole

    def shaped(self, x: Any) -> Any:
        """A tensor of rows and columns, or of batches of rows."""
        return self.one(
            "shape",
            lambda: x,
            lambda: x.view(BATCH, -1, x.shape[-1]),
            lambda: x.unflatten(0, (BATCH, -1)),
            lambda: x.contiguous(),
            lambda: x.flatten(0, -2),
            lambda: x.mT.mT,
        )


# Bases with parameters: the backward is looked at. `p` gives a new vector of parameters.


def rms(o: Words, x: Any, w: Any) -> Any:
    return normed(o, o.shaped(x), w)


def normed(o: Words, x: Any, w: Any) -> Any:
    return o.scaled(o.half(of_unit_rms(o, o.float(x))), w)


def of_unit_rms(o: Words, x: Any) -> Any:
    return o.one(
        "unit rms",
        lambda: o.by_root(x, o.plus(o.mean(o.square(x)), 1e-6)),
        lambda: F.rms_norm(x, x.shape[-1:], eps=1e-6),
    )


def rms_in_float(o: Words, x: Any, w: Any) -> Any:
    x = o.shaped(x)
    return o.one(
        "norm",
        lambda: o.half(o.scaled(of_unit_rms(o, o.float(x)), o.float(w))),
        lambda: F.rms_norm(x, x.shape[-1:], w, 1e-6),
    )


def rms_of_one_plus(o: Words, x: Any, w: Any) -> Any:
    return o.half(o.scaled(of_unit_rms(o, o.float(o.shaped(x))), 1 + o.float(w)))


def residual(o: Words, x: Any, w: Any) -> Any:
    x = o.shaped(x)
    return o.plus(normed(o, x, w), x)


def layer(o: Words, x: Any, w: Any, b: Any) -> Any:
    x = o.shaped(x)
    return o.one("norm", lambda: layer_by_hand(o, x, w, b), lambda: F.layer_norm(x, x.shape[-1:], w, b, 1e-5))


def layer_by_hand(o: Words, x: Any, w: Any, b: Any) -> Any:
    wide = o.float(x)
    centred = o.minus(wide, o.mean(wide))
    variance = o.one(
        "variance", lambda: o.mean(o.square(centred)), lambda: wide.var(-1, correction=0, keepdim=True)
    )
    return o.half(o.shifted(o.by_root(centred, o.plus(variance, 1e-5)), w.float(), b.float()))


def gated(o: Words, x: Any, w: Any) -> Any:
    x, gate = o.part(x, 0, 2), o.part(x, 1, 2)
    return o.times(normed(o, x, w[: x.shape[-1]]), o.silu(gate))


def gated_before(o: Words, x: Any, w: Any) -> Any:
    x, gate = o.part(x, 0, 2), o.part(x, 1, 2)
    return normed(o, o.times(x, o.silu(gate)), w[: x.shape[-1]])


def unit_length(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(o.shaped(x))
    unit = o.one("norm", lambda: unit_by_hand(o, wide), lambda: F.normalize(wide, dim=-1))
    return o.half(o.scaled(unit, o.float(w)))


def unit_by_hand(o: Words, x: Any) -> Any:
    length = o.one(
        "length",
        lambda: o.root(o.total(o.square(x))),
        lambda: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    )
    return o.over(x, o.lower(length, 1e-12))


def of_heads(o: Words, x: Any, w: Any) -> Any:
    return normed(o, x.view(x.shape[0], -1, 128), w[:128])


def of_halves(o: Words, x: Any, w: Any) -> Any:
    n = x.shape[-1] // 2
    return o.joined(normed(o, o.part(x, 0, 2), w[:n]), normed(o, o.part(x, 1, 2), w[n:]))


def layer_scale(o: Words, x: Any, w: Any) -> Any:
    x = o.shaped(x)
    return o.plus(o.scaled(o.gelu(x), w), x)


def biased(o: Words, x: Any, w: Any, b: Any) -> Any:
    return o.silu(o.shifted(o.shaped(x), w, b))


def dynamic_tanh(o: Words, x: Any, w: Any, b: Any) -> Any:
    return o.shifted(torch.tanh(0.5 * o.shaped(x)), w, b)


def attention(o: Words, x: Any, w: Any) -> Any:
    return o.softmax(o.scaled(o.shaped(x), w))


def blended(o: Words, x: Any, w: Any, b: Any) -> Any:
    x = o.shaped(x)
    return o.between(x, normed(o, x, w), b)


def twice(o: Words, x: Any, w: Any, b: Any) -> Any:
    return normed(o, rms(o, x, w), b)


def clipped(o: Words, x: Any, w: Any) -> Any:
    wide = o.float(o.shaped(x))
    return o.scaled(o.half(o.by_root(wide, o.lower(o.mean(o.square(wide)), 1e-6))), w)


def averaged(o: Words, x: Any, w: Any) -> Any:
    """By the mean of the magnitudes."""
    wide = o.float(o.shaped(x))
    return o.scaled(o.half(o.over(wide, o.plus(o.mean(o.magnitude(wide)), 1e-6))), w)


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
    y = of_unit_rms(o, o.float(o.shaped(x)))
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
    scale = o.rsqrt(o.plus(o.mean(o.square(x)), 1e-6))
    y = o.times(x, scale)
    dx = o.times(o.minus(dy, o.times(y, o.mean(o.times(dy, y)))), scale)
    return o.half(dx), o.columns(o.times(dy, y))


# Bases of chains alone: what stands around norms.


def swiglu(o: Words, x: Any) -> Any:
    return o.times(o.silu(o.part(x, 0, 2)), o.part(x, 1, 2))


def relu_squared(o: Words, x: Any) -> Any:
    return o.square(F.relu(x))


def capped(o: Words, x: Any) -> Any:
    return 30 * torch.tanh(x / 30)


def widened(o: Words, x: Any) -> Any:
    return o.float(x)


def narrowed(o: Words, x: Any) -> Any:
    return o.half(x)


def rotary(o: Words, x: Any) -> Any:
    n = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * torch.linspace(1, 0.01, n, device=x.device)
    cos, sin = (o.joined(t, t).to(x.dtype) for t in (angles.cos(), angles.sin()))
    return o.times(x, cos) + o.times(o.joined(-o.part(x, 1, 2), o.part(x, 0, 2)), sin)


# Losses, of a row's class and of a tensor of targets.


def cross_entropy(o: Words, x: Any, labels: Any, target: Any) -> Any:
    return F.cross_entropy(o.float(x).reshape(labels.shape[0], -1), labels)


def with_z_loss(o: Words, x: Any, labels: Any, target: Any) -> Any:
    x = o.float(x).reshape(labels.shape[0], -1)
    return F.cross_entropy(x, labels) + 1e-4 * o.square(x.logsumexp(-1)).mean()


def distillation(o: Words, x: Any, labels: Any, target: Any) -> Any:
    x = o.float(x).reshape(labels.shape[0], -1)
    return F.kl_div(x.log_softmax(-1), o.softmax(o.float(target[:, : x.shape[-1]])), reduction="batchmean")


def squared_error(o: Words, x: Any, labels: Any, target: Any) -> Any:
    x = x.reshape(labels.shape[0], -1)
    return o.square(o.minus(o.float(x), target[:, : x.shape[-1]])).mean()


TRAINED: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (rms, rms_in_float, rms_of_one_plus, residual, layer, gated, gated_before, unit_length)
    + (of_heads, of_halves, layer_scale, biased, dynamic_tanh, attention, blended, twice, clipped, averaged)
}
PAIRS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (sums, squares, extremes, sinkhorn, probabilities, normalised, moments, activation)
    + (rowwise, centred, products, weighted)
}


NAMES = (
    *("float", "half", "square", "mean", "total", "largest", "abs", "columns", "rsqrt", "root", "by root"),
    *("over", "minus", "plus", "times", "scaled", "shifted", "between", "clamp", "silu", "gelu", "softmax"),
    *("part", "joined", "shape", "unit rms", "norm", "variance", "length", "run"),
)
SPELLINGS = 60  # a multiple of the number of spellings of every operation
AROUND = (swiglu, relu_squared, capped, widened, narrowed, rotary)
LOSSES = (cross_entropy, with_z_loss, distillation, squared_error)
WIDTHS = (512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
FEWEST, MOST = 20, 26  # logarithms of the elements of a drawn program's tensor


class Block(nn.Module):
    """A base with its vectors, for a tensor like `x`."""

    def __init__(self, base: Callable[..., Any], words: Words, x: torch.Tensor) -> None:
        super().__init__()
        self.base, self.words = base, words
        count = base.__code__.co_argcount - 2
        vectors = (nn.Parameter(torch.empty(x.shape[-1], dtype=bf16, device=x.device)) for _ in range(count))
        self.vectors = nn.ParameterList(vectors)

    def forward(self, x: Any) -> Any:
        vectors = [self.vectors[i] for i in range(len(self.vectors))]  # Dynamo of 2.11 does not unpack these
        return self.base(self.words, x, *vectors)


class Program(nn.Module):
    """Parts one after the other, and a loss, if there is one. `x`: on the meta device, of the input's
    sizes."""

    def __init__(
        self,
        bases: Sequence[Callable[..., Any]],
        chosen: Mapping[str, int],
        x: torch.Tensor,
        loss: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        self.words, self.loss, self.parts = Words(chosen), loss, nn.ModuleList()
        for base in bases:
            self.parts.append(Block(base, self.words, x))
            with torch.no_grad():
                x = self.parts[-1](x)

    def forward(self, x: Any, labels: Any = None, target: Any = None) -> Any:
        x = self.words.one(
            "run",
            lambda: self.through(x),
            lambda: self.in_autocast(x),
            lambda: checkpoint(self.through, x, use_reentrant=False),
        )
        return self.loss(self.words, x, labels, target) if self.loss else x

    def through(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def in_autocast(self, x: Any) -> Any:
        with torch.autocast(x.device.type, bf16):
            y = self.through(x)
        return y.to(bf16) if isinstance(y, torch.Tensor) else y


def spelled(name: str, chosen: Mapping[str, int]) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A base in spellings of its operations, and its input, on the meta device."""
    trained = name in TRAINED
    x = torch.empty(ROWS, COLS, dtype=bf16, device="meta", requires_grad=trained)
    model = Program([(TRAINED | PAIRS)[name]], chosen, x)
    return model.requires_grad_(trained), {"x": x}


def numbers(draw: Random) -> dict[str, int]:
    """Of a spelling of each operation."""
    return {name: draw.randrange(SPELLINGS) for name in NAMES}


def composed(seed: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The chain of a seed and its inputs, on the meta device. One in five ends in a pair of reductions and
    has no backward. Raises what a chain does whose parts do not fit."""
    draw = Random(seed)
    bases = [draw.choice(draw.choice(([*TRAINED.values()], AROUND))) for _ in range(draw.randint(1, 3))]
    bases.insert(draw.randint(0, len(bases)), draw.choice([*TRAINED.values()]))
    if forward := draw.randrange(5) == 0:
        bases.append(draw.choice([*PAIRS.values()]))
    loss = None if forward else draw.choice((None, *LOSSES))
    cols = draw.choice(WIDTHS)
    rows = max(1, int(2 ** draw.uniform(FEWEST, MOST)) // cols // BATCH) * BATCH
    x = torch.empty(rows, cols, dtype=bf16, device="meta", requires_grad=not forward)
    labels = torch.empty(rows, dtype=torch.long, device="meta")
    model = Program(bases, numbers(draw), x, loss)
    inputs = {"x": x, "labels": labels, "target": torch.empty_like(x, requires_grad=False)}
    return model.requires_grad_(not forward), inputs
