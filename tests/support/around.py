"""Cases of operators around norms in models, and of pairs that are no norms. One table each."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import MATRIX, TOKENS, Case, Dropout, Fused, Shapes, columns, pairs, wide
from .norms import LlamaNorm, Weighted


class NormAndMix(nn.Module):
    """A norm, and a Linear next to it, before it or after it."""

    kind: type[nn.Module] = nn.LayerNorm
    bias = True

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.mix = self.kind(dim), nn.Linear(dim, dim, bias=self.bias)


class PreNorm(NormAndMix):
    """Two sublayers of a residual stream; the norms share one weight."""

    kind = nn.RMSNorm

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm(x))
        return x + self.norm(x)


class PostNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.second, self.norm2 = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.first(x))
        return self.norm2(x + self.second(x))


class SumAndNorm(NormAndMix):
    """Fused add and norm (prenorm): the sum goes on as the residual stream, in its own dtype."""

    kind = LlamaNorm

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + self.mix(x)
        return self.norm(residual).to(x.dtype), residual


class DropoutBefore(NormAndMix):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.drop = Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.drop(self.mix(x)))


class Attention(nn.Module):
    """Three Linears read one norm: their gradients are summed into its dy."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(x)
        return self.q(y), self.k(y), self.v(y)


class SharedGradient(NormAndMix):
    """The norm and a Linear get the same gradient."""

    bias = False

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(x) + self.mix(x))


class NormThen(nn.Module):
    """A LayerNorm, and a function of its result."""

    def __init__(self, dim: int, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.then = nn.LayerNorm(dim), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.norm(x))


class NormAndConv(nn.Module):
    """Conformer, Mamba: the convolution's gradient arrives transposed."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(self.up(x)).transpose(1, 2))


class ClassToken(nn.Module):
    """ViT: a learnable token before the others, then the norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.token = nn.LayerNorm(dim), nn.Parameter(torch.randn(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1))


class SharedNorm(NormAndMix):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.mix(self.norm(self.mix(self.norm(x)))))


class LayerScale(NormAndMix):
    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.gamma = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gamma * self.mix(self.norm(x))


class ConvNeXt(nn.Module):
    """Depthwise convolution, LayerNorm over channels, MLP, LayerScale; channels_last throughout."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Positions(nn.Module):
    """BERT, ViT: a table of positions in front of the first norm, and a vector of all tokens."""

    def __init__(self, tokens: int, dim: int, stream: bool) -> None:
        super().__init__()
        self.table, self.norm = nn.Parameter(torch.randn(tokens, dim)), nn.LayerNorm(dim)
        self.kind = None if stream else nn.Parameter(torch.randn(dim))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = x + self.table
        return (x, self.norm(x)) if self.kind is None else self.norm(x + self.kind)


def of_positions(sums: int) -> Callable[..., list[Fused]]:
    return lambda b, s, d: [(f"row {b} x batch {s} x column {d}", 2, sums)]


class SwinWindows(NormAndMix):
    """Norm, partition into windows, a Linear in place of attention, and back; (batch, h, w, dim)."""

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, dim = x.shape
        size = 7
        y = self.norm(x).view(b, h // size, size, w // size, size, dim)
        y = self.mix(y.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, dim))
        y = y.view(b, h // size, w // size, size, size, dim).permute(0, 1, 3, 2, 4, 5)
        return x + y.reshape(b, h, w, dim)


def rows_and_columns(*kinds: str) -> Callable[..., Callable[[Tensor], tuple[Tensor, ...]]]:
    """Reductions of one tensor over its columns and over its rows: names of methods, two by two."""

    def make(*shape: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
        def function(x: Tensor) -> tuple[Tensor, ...]:
            return tuple(REDUCTIONS[name](x, dim) for name in kinds for dim in (-1, 0))

        return function

    return make


REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d),
    "max": lambda x, d: x.amax(d),
    "min": lambda x, d: x.amin(d),
    "scale": lambda x, d: x.abs().amax(d) / 448.0,
}


def fp8_rowwise(*shape: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Scales for both directions, and the row-scaled tensor."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        magnitude = wide(x).abs()
        rows, columns = (magnitude.amax(d, keepdim=True) / 448.0 for d in (-1, 0))
        return (wide(x) / rows).to(torch.float8_e4m3fn), rows, columns

    return function


class SoftmaxWithBias(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x + self.weight, -1)


class ConvBiasAndGate(nn.Module):
    """Common axes: a bias per channel, and a gate per sample and channel."""

    def __init__(self, samples: int, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels))
        self.gate = nn.Parameter(torch.randn(samples, channels))

    def forward(self, x: Tensor) -> Tensor:
        return (x.sin() + self.bias[:, None, None]) * self.gate[:, :, None, None]


class GeluMLP(nn.Module):
    """No norm: the first Linear's bias gradient is computed with GELU's backward."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


CONV1D = Shapes((8, 2048, 1024), (3, 1371, 760), (3, 5, 60))
CONV = Shapes((64, 256, 56, 56), (7, 24, 27, 29), (3, 6, 5, 7))
CONVNEXT = Shapes((64, 128, 56, 56), (5, 40, 27, 29), (2, 12, 5, 7))
MANY = Shapes((64, 512, 768), (41, 57, 760), (35, 5, 60))
SWIN = Shapes((64, 56, 56, 128), (5, 28, 35, 120), (2, 7, 14, 12))
SOFTMAX = Shapes((8, 2048, 1024), (3, 1371, 760), (3, 5, 60))
MLP = Shapes((32, 1024, 768), (3, 1371, 200), (3, 5, 60))


def mlp_bias(b: int, s: int, d: int) -> list[Fused]:
    space = f"row {b * s} x batch 3 x column 1024" if d == 768 else f"{b * s}x{4 * d}"
    return [(space, 0, 1)]


def common_axis(n: int, c: int, h: int, w: int) -> list[Fused]:
    return [(f"row {n} x batch {c} x common {h * w}", 1, 1)]


def convnext(n: int, c: int, h: int, w: int) -> list[Fused]:
    """Regions: the norm, LayerScale with the second Linear's bias, and the first Linear's bias."""
    return [(f"{n * h * w}x{c}", 2, 2), (f"{n * h * w}x{c}", 0, 2), (f"{n * h * w}x{4 * c}", 0, 1)]


def pooled(b: int, s: int, d: int) -> list[Fused]:
    """Regions, also of the forward: a row's moments, and the sum over a sample's tokens."""
    return [(f"batch {b} x row {s} x column {d}", 2, 1), (f"{b * s}x{d}", 2, 2)]


def with_token(b: int, s: int, d: int) -> list[Fused]:
    return [(f"{b * (s + 1)}x{d}", 2, 2)]


def after_norm(then: Callable[[Tensor], Tensor]) -> Callable[..., nn.Module]:
    return lambda *s: NormThen(s[-1], then)


AROUND = {
    "pre-norm residual": Case(columns(PreNorm), TOKENS, pairs((1, 2), (1, 1))),
    "post-norm residual": Case(columns(PostNorm), TOKENS, pairs((2, 2), (2, 4))),
    "prenorm, sum returned": Case(columns(SumAndNorm), TOKENS, pairs((1, 2)), inputs=(None, None)),
    "fp32 residual stream": Case(columns(SumAndNorm), TOKENS, pairs((1, 2)), inputs=(None, torch.float32)),
    "dropout before": Case(columns(DropoutBefore), TOKENS, pairs((2, 3)), random=True),
    "dropout after": Case(
        lambda *s: nn.Sequential(nn.LayerNorm(s[-1]), Dropout()), TOKENS, pairs((2, 2)), random=True
    ),
    "q, k, v of one norm": Case(columns(Attention), TOKENS, pairs((1, 1))),
    "gradient with two readers": Case(columns(SharedGradient), TOKENS, pairs((2, 2))),
    "reshape after": Case(after_norm(lambda y: y.reshape(-1, y.shape[-1]).sin()), TOKENS, pairs((2, 2))),
    "transpose after": Case(after_norm(lambda y: y.transpose(1, 2)), TOKENS, pairs((2, 2))),
    "depthwise Conv1d after": Case(columns(NormAndConv), CONV1D, pairs((2, 3))),
    "mean over tokens after": Case(after_norm(lambda y: y.mean(1)), TOKENS, pooled),
    "slice after": Case(after_norm(lambda y: y[:, 1:]), TOKENS, pairs((2, 2))),
    "class token before": Case(columns(ClassToken), TOKENS, with_token),
    "cat after": Case(after_norm(lambda y: torch.cat((y, y.sin()), -1)), TOKENS, pairs((2, 2))),
    "Linear before": Case(
        lambda *s: nn.Sequential(nn.Linear(s[-1], s[-1]), nn.LayerNorm(s[-1])), TOKENS, pairs((2, 3))
    ),
    "Linear after": Case(
        lambda *s: nn.Sequential(nn.LayerNorm(s[-1]), nn.Linear(s[-1], s[-1]), nn.SiLU()),
        TOKENS,
        pairs((2, 2), (0, 1)),
    ),
    "norms that share a weight": Case(columns(SharedNorm), TOKENS, pairs((2, 3), (2, 3), (2, 2))),
    "norms in a chain": Case(
        lambda *s: nn.Sequential(nn.LayerNorm(s[-1]), nn.LayerNorm(s[-1])), TOKENS, pairs((4, 4))
    ),
    "LayerScale": Case(columns(LayerScale), TOKENS, pairs((2, 2), (0, 2))),
    "ConvNeXt block": Case(
        lambda n, c, h, w: ConvNeXt(c), CONVNEXT, convnext, memory_format=torch.channels_last
    ),
    "positions, kind, LayerNorm": Case(lambda b, s, d: Positions(s, d, False), MANY, of_positions(4)),
    "positions, residual stream": Case(lambda b, s, d: Positions(s, d, True), MANY, of_positions(3)),
    "Swin windows": Case(columns(SwinWindows), SWIN, pairs((2, 2), (0, 1))),
}


class StarReLU(nn.Module):
    """MetaFormer's activation (Yu et al., 2022): the gradients of scale and bias are sums of all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.relu(x) ** 2 + self.bias


class Temperature(nn.Module):
    """A softmax with a learned temperature, of all rows or of each head."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x * self.temperature, -1)


# Tokens whose number is not a multiple of a power of two: Inductor reads those twice.
STAR = Shapes((128, 14, 14, 1280), (5, 271, 760), (3, 5, 260))
LOGITS = Shapes((8, 16, 1024, 1024), (3, 4, 457, 760), (3, 4, 5, 60))


def per_head(b: int, h: int, rows: int, cols: int) -> list[Fused]:
    return [(f"row {b} x batch {h} x row {rows} x common {cols}", 1, 1)]


OTHERS = {
    "row and column sums": Case(rows_and_columns("sum"), MATRIX, pairs((1, 1)), training=False),
    "row and column mean, max, min": Case(
        rows_and_columns("mean", "max", "min"), MATRIX, pairs((3, 3)), training=False
    ),
    "row and column scales": Case(rows_and_columns("scale"), MATRIX, pairs((1, 1)), training=False),
    "row and column scales, fp8 cast": Case(fp8_rowwise, MATRIX, pairs((1, 1)), training=False),
    "softmax with bias": Case(columns(SoftmaxWithBias), SOFTMAX, pairs((1, 1))),
    "conv bias and gate": Case(lambda n, c, h, w: ConvBiasAndGate(n, c), CONV, common_axis),
    "Linear, GELU, Linear": Case(columns(GeluMLP), MLP, mlp_bias),
    "PReLU, a weight per channel": Case(lambda *s: nn.PReLU(s[-1]), MATRIX, pairs((0, 1))),
    "PReLU, one weight": Case(lambda *s: nn.PReLU(), STAR, pairs((0, 1))),
    "StarReLU": Case(lambda *s: StarReLU(), STAR, pairs((0, 2))),
    "softmax with a temperature per head": Case(
        lambda b, h, rows, cols: Temperature(h, 1, 1), LOGITS, per_head
    ),
}
