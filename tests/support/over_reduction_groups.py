"""Cases of norms whose sums span reduction groups: a channel's elements, a group's or a sample's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import Case, Fused, Shapes


class Residual(nn.Module):
    """The end of a residual block: its gradient goes on to two tensors."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor, shortcut: Tensor) -> Tensor:
        return torch.relu(self.norm(x) + shortcut)


class Shifted(nn.Module):
    """A group norm behind a bias of each channel, or of each channel of a sample."""

    def __init__(self, channels: int, groups: int, samples: int) -> None:
        super().__init__()
        shape = (samples, channels) if samples else (channels,)
        self.bias, self.norm = nn.Parameter(torch.zeros(shape)), nn.GroupNorm(groups, channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(x + self.bias[..., None, None]))


class Gated(nn.Module):
    """A batch norm with a factor for each channel of a sample, or for each sample, in front of it, or with
    one behind its activation."""

    def __init__(self, channels: int, *gates: int, before: bool) -> None:
        super().__init__()
        self.gate, self.norm, self.before = nn.Parameter(torch.zeros(gates)), nn.BatchNorm2d(channels), before

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate[..., None, None]
        return F.silu(self.norm(x * gate)) if self.before else F.hardswish(self.norm(x)) * gate


class Scaled(nn.Module):
    """A batch norm's result times a factor for each element, whose gradient reads what the norm's reads."""

    def __init__(self, channels: int, *sizes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(*sizes))
        self.norm = nn.BatchNorm2d(channels, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * (1 + self.scale)


class Dice(nn.Module):
    """An activation by a batch norm, of which dx has parts that need none of its sums."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.norm = nn.BatchNorm1d(channels, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        share = torch.sigmoid(self.norm(x))
        return share * x + (1 - share) * self.alpha * x


class Stored(nn.Module):
    """A group norm whose result is stored in some format, and with it its gradient."""

    def __init__(self, channels: int, groups: int, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.norm, self.format = nn.GroupNorm(groups, channels), memory_format

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).contiguous(memory_format=self.format)


class Responses(nn.Module):
    """ConvNeXt-V2's GRN: elements are scaled by their channel's norm in each sample, over the mean of all
    channels'. The gradients of scale and shift are sums over more axes than the statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        norms = x.norm(p=2, dim=(1, 2), keepdim=True)
        relative = norms / (norms.mean(-1, keepdim=True) + 1e-6)
        return x + torch.addcmul(self.bias, self.weight, x * relative)


class ByHand(nn.Module):
    """A norm of groups of channels, or with none one of each channel's, as people write it."""

    def __init__(self, channels: int, groups: int, *, last: bool = False, squares: bool = False) -> None:
        super().__init__()
        shape = (channels,) if last else (channels, 1, 1)
        self.weight, self.bias = (nn.Parameter(torch.zeros(shape)) for _ in range(2))
        self.groups, self.last, self.squares = groups, last, squares

    def forward(self, x: Tensor) -> Tensor:
        seen, over = x, (0, 2, 3)
        if self.groups:
            *_, c = x.shape
            to = (-1, self.groups, c // self.groups) if self.last else (self.groups, -1)
            seen, over = x.reshape(x.shape[0], *to), (1, 3) if self.last else (2,)
        centred = seen - seen.mean(over, keepdim=True)
        variance = centred.pow(2).mean(over, keepdim=True)
        if not self.squares:
            variance = seen.var(over, keepdim=True, unbiased=False)
        return (centred * (variance + 1e-5).rsqrt()).reshape(x.shape) * self.weight + self.bias


def drawn(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """With parameters of random numbers: ones and zeros would hide an error."""

    def module(*shape: int) -> nn.Module:
        made = make(*shape)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.normal_()
        return made

    return module


def silu(group: int) -> Callable[..., nn.Module]:
    """A norm of groups of so many channels, or of one group if there are 0, and its activation."""
    return drawn(lambda n, c, *_: nn.Sequential(nn.GroupNorm(c // group if group else 1, c), nn.SiLU()))


def space(*axes: tuple[str, int]) -> str:
    return " x ".join(f"{kind} {size}" for kind, size in axes if size > 1)


def places(sizes: Sequence[int], last: bool) -> list[tuple[str, int]]:
    """Height and width are one axis, unless a tensor of another order tells them apart."""
    return [("row", size) for size in (sizes if last else (math.prod(sizes),))]


def of_channels(last: bool = False, sums: int = 2) -> Callable[..., list[Fused]]:
    return lambda n, c, *sizes: [(space(("row", n), ("column", c), *places(sizes, last)), 0, sums)]


def of_groups(
    group: int, sums: int = 6, last: bool = False, kind: str = "column"
) -> Callable[..., list[Fused]]:
    """`kind` is "row" where a channel's elements are summed with those of the others of its group."""

    def fused(n: int, c: int, *sizes: int) -> list[Fused]:
        axes = ("column", n), ("column", c // group if group else 1), (kind, group or c)
        return [(space(*axes, *places(sizes, last)), 0, sums)]

    return fused


def of_groups_at_last(n: int, h: int, w: int, c: int) -> list[Fused]:
    """Regions: of the forward's moments and of the backward."""
    first = ("column", n), ("row", h * w), ("column", c // 10)
    return [(space(*first, ("row", 10)), 0, 2), (space(*first, ("column", 10)), 0, 8)]


def gated(last: bool, *, before: bool, samples: bool = False) -> Case:
    def made(n: int, c: int, *_: int) -> nn.Module:
        return Gated(c, n, 1 if samples else c, before=before)

    def fused(n: int, c: int, *sizes: int) -> list[Fused]:
        return [(space(("column", n), ("column", c), *places(sizes, last)), 0, 5)]

    return Case(drawn(made), CHANNELS, fused, memory_format=LAST if last else torch.contiguous_format)


def grouped(make: Callable[..., nn.Module], group: int, sums: int = 6) -> Case:
    """In channels-last. On a GPU, the forward's moments are over reduction groups as well."""
    forward = of_groups(group, 2, True, "row")
    return Case(make, IMAGES, of_groups(group, sums, True), memory_format=LAST, forward=forward)


def responses(n: int, h: int, w: int, c: int) -> list[Fused]:
    """Regions: of the forward and of the backward."""
    of_samples = space(("column", n), ("row", h * w), ("column", c))
    return [(of_samples, 0, 2), (of_samples, 0, 4)]


LAST = torch.channels_last
CHANNELS = Shapes((64, 256, 28, 28), (7, 37, 27, 29), (6, 21, 15, 13))
WIDE = dataclasses.replace(CHANNELS, training=(128, 256, 56, 56))
VECTORS = Shapes((32768, 2048), (4099, 760), (1203, 24))
SEQUENCES = Shapes((64, 256, 3136), (7, 37, 783), (5, 8, 500))
VOLUMES = Shapes((4, 32, 48, 64, 64), (3, 37, 11, 13, 9), (3, 13, 7, 9, 7))
IMAGES = Shapes((8, 320, 64, 64), (3, 40, 37, 41), (3, 40, 11, 13))
LONG = Shapes((2, 32, 96, 128, 128), (3, 5, 45, 47, 43), (2, 3, 37, 42, 43))
ROWS = Shapes((8, 64, 64, 320), (3, 37, 41, 120), (3, 11, 13, 40))
BLOCKS = Shapes((64, 56, 56, 512), (5, 27, 29, 120), (3, 12, 9, 40))

RELU = drawn(lambda n, c, *_: nn.Sequential(nn.BatchNorm2d(c), nn.ReLU()))

OVER_REDUCTION_GROUPS = {
    "BatchNorm2d, ReLU": Case(RELU, CHANNELS, of_channels()),
    "BatchNorm2d, ReLU, channels-last": Case(RELU, WIDE, of_channels(last=True), memory_format=LAST),
    "end of a residual block, channels-last": Case(
        drawn(lambda n, c, *_: Residual(c)),
        WIDE,
        of_channels(last=True),
        inputs=(None, None),
        memory_format=LAST,
    ),
    "gate, BatchNorm2d, SiLU": gated(False, before=True),
    "BatchNorm2d, hardswish, gate, channels-last": gated(True, before=False),
    "gate, BatchNorm2d, SiLU, channels-last": gated(True, before=True),
    "factor of samples, BatchNorm2d, SiLU, channels-last": gated(True, before=True, samples=True),
    "BatchNorm2d, scale of all elements": Case(
        drawn(lambda n, c, *sizes: Scaled(c, n, c, *sizes)), CHANNELS, of_channels()
    ),
    "Dice": Case(drawn(lambda n, c: Dice(c)), VECTORS, lambda n, c: [(f"{n}x{c}", 0, 3)]),
    "BatchNorm1d, ReLU": Case(
        drawn(lambda n, c: nn.Sequential(nn.BatchNorm1d(c), nn.ReLU())),
        VECTORS,
        lambda n, c: [(f"{n}x{c}", 0, 2)],
    ),
    "BatchNorm1d of sequences": Case(drawn(lambda n, c, _: nn.BatchNorm1d(c)), SEQUENCES, of_channels()),
    "BatchNorm3d, channels-last": Case(
        drawn(lambda n, c, *_: nn.BatchNorm3d(c)),
        VOLUMES,
        lambda n, c, d, h, w: of_channels(last=True)(n, c, d, h * w),
        memory_format=torch.channels_last_3d,
    ),
    "GroupNorm, SiLU": Case(silu(10), IMAGES, of_groups(10)),
    "GroupNorm, SiLU, channels-last": grouped(silu(10), 10),
    "GroupNorm, SiLU, all channels-last": grouped(
        drawn(lambda n, c, *_: nn.Sequential(Stored(c, c // 10, LAST), nn.SiLU())), 10
    ),
    "one group, channels-last": grouped(silu(0), 0),
    "bias, GroupNorm, SiLU, channels-last": grouped(drawn(lambda n, c, *_: Shifted(c, c // 20, 0)), 20, 7),
    "bias of samples, GroupNorm, SiLU": Case(
        drawn(lambda n, c, *_: Shifted(c, c // 20, n)), IMAGES, of_groups(20, 7)
    ),
    "InstanceNorm3d, LeakyReLU": Case(
        drawn(lambda n, c, *_: nn.Sequential(nn.InstanceNorm3d(c, affine=True), nn.LeakyReLU())),
        LONG,
        of_groups(1, 4),
    ),
    "GroupNorm by hand": Case(drawn(lambda n, c, *_: ByHand(c, c // 10)), IMAGES, of_groups(10, 8)),
    "GroupNorm by hand, of squares": Case(
        drawn(lambda n, c, *_: ByHand(c, c // 10, squares=True)), IMAGES, of_groups(10, 8)
    ),
    "GroupNorm by hand, channels at last": Case(
        drawn(lambda n, h, w, c: ByHand(c, c // 10, last=True)), ROWS, of_groups_at_last
    ),
    "BatchNorm by hand, of squares": Case(
        drawn(lambda n, c, *_: ByHand(c, 0, squares=True)),
        CHANNELS,
        of_channels(sums=4),
        declined=("axis-class", "cycle"),  # the forward's chain of moments, and a sum that waits for others
    ),
    "GRN of ConvNeXt-V2": Case(drawn(lambda *s: Responses(s[-1])), BLOCKS, responses),
}
