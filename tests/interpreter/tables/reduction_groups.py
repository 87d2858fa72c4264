"""Norms whose sums span reduction groups: a channel's elements, a group's or a sample's.

`support/over_reduction_groups.py` has the norms in their usual forms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from graphs import bf16, f32
from support.over_reduction_groups import OVER_REDUCTION_GROUPS, Responses, Shifted, Stored
from table import Entry, of, random_weights
from torch import Tensor, nn

from mixorder.ir.program import BufferRole, Load, Store
from mixorder.report import RegionRecord
from mixorder.schedule import reduction_groups, whole_groups
from mixorder.strategies import STRATEGIES, Strategy
from mixorder.strategies.reduction_groups import TWO_PASS
from mixorder.strategies.whole_groups import WHOLE_GROUPS

Make = Callable[[], nn.Module]
Shape = tuple[int, ...]
BOTH_LAYOUTS = (False, True)
OTHERS = tuple(s for s in STRATEGIES if not s.over_reduction_groups)
OVER = {TWO_PASS.name, WHOLE_GROUPS.name}


def lying(last: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Images whose mean is not zero, contiguous or in channels-last."""
    memory_format = torch.channels_last if last else torch.contiguous_format

    def given(*drawn: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            (t * 2 + 1).to(memory_format=memory_format) if t.dim() == 4 else t * 2 + 1 for t in drawn
        )

    return given


def like_images(last: bool) -> Callable[[Tensor], Tensor]:
    """Makes the gradient that comes from outside lie so."""

    def after(y: Tensor) -> Tensor:
        return y.contiguous(memory_format=torch.channels_last) if last and y.dim() == 4 else y

    return after


def over(found: tuple[RegionRecord, ...]) -> list[RegionRecord]:
    return [r for r in found if r.strategy in OVER]


def entry(
    make: Make,
    *shapes: Shape,
    way: Strategy = TWO_PASS,
    last: bool = False,
    shows: Callable[[list[RegionRecord]], object],
    patches: tuple[Any, ...] = (),
    **how: Any,
) -> Entry:
    """Compiled with one strategy for reduction groups. All of these fit a program, and suffice. `shows`: what
    is true of the regions over reduction groups."""
    return Entry(
        make,
        shapes,
        given=how.pop("given", lying(last)),
        after=like_images(last),
        setting={"strategies": (*OTHERS, way)},
        multiprocessors=1 if way is WHOLE_GROUPS else 20,
        patches=((whole_groups, "resident", lambda *_: 48 << 10), *patches),
        regions=None,
        shows=lambda *found: shows(over(found)),
        **how,
    )


def one(record_shows: Callable[[RegionRecord], object] = lambda r: True) -> Callable[..., object]:
    """The only region over reduction groups."""
    return lambda found: len(found) == 1 and record_shows(found[0])


NORMS: dict[str, tuple[Make, Shape]] = {
    "batch of one": (lambda: nn.BatchNorm2d(16), (1, 16, 40, 30)),
    "group, no parameters": (lambda: nn.GroupNorm(4, 32, affine=False), (3, 32, 12, 8)),
    "instance": (
        lambda: nn.Sequential(nn.InstanceNorm2d(17, affine=True), nn.LeakyReLU()),
        (2, 17, 40, 30),
    ),
}


def norm(name: str, last: bool, way: Strategy) -> Entry:
    make, shape = NORMS[name]
    inductors = (name == "batch of one" or "instance" in name) and not last  # it reads a row again from L2

    def shows(found: list[RegionRecord]) -> bool:
        counts = [len(r.kernels) == 3 if way is TWO_PASS else len(r.kernels) <= 2 for r in found]
        return {r.strategy for r in found} == (set() if inductors else {way.name}) and all(counts)

    return entry(random_weights(make), shape, way=way, last=last, shows=shows)


class Blocks(nn.Module):
    """Two residual blocks. The gradient of the sum in each goes on to the block before it. Each has a region,
    whose first pass stores that gradient and whose second one reads it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        make = functools.partial(nn.Conv2d, channels, channels, 3, padding=1, bias=False)
        self.convolutions = nn.ModuleList(make() for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = torch.relu(norm(convolution(x)) + x)
        return x


def writes_over(record: RegionRecord) -> tuple[int, int]:
    """How many tensors that nothing reads any longer it writes over, and how many of its results it reads."""
    names = {b.over for b in record.loops.buffers if b.over}
    assert {n for k in record.kernels for n in k.written}.issuperset(names)
    outputs = {b.name for b in record.loops.role(BufferRole.OUTPUT)}
    return len(names), len({s.buffer for s in record.loops.nests[2].body if isinstance(s, Load)} & outputs)


def blocks(last: bool, dtype: torch.dtype) -> Entry:
    def make() -> nn.Module:
        module = Blocks(24).to(dtype)
        return module.to(memory_format=torch.channels_last) if last else module

    return entry(
        make,
        (4, 24, 18, 16),
        dtype=dtype,
        by_graph=True,
        last=last,
        shows=lambda found: [*map(writes_over, found)] == [(1, 1), (2, 1)],
    )


# Samples of the smallest batch, where it is not 1.
LEAST = {"BatchNorm1d, ReLU": 2, "Dice": 2, "GroupNorm, SiLU": 0, "GRN of ConvNeXt-V2": 2}
LEAST |= {name: 2 for name, case in OVER_REDUCTION_GROUPS.items() if case.forward(*case.shapes.small)}
# Some have a parameter for each sample; the last one takes the interpreter long.
NOT_ANY_BATCH = [
    name for name in OVER_REDUCTION_GROUPS if any(t in name for t in ("gate", "of samples", "of all"))
]
NOT_ANY_BATCH += ["InstanceNorm3d, LeakyReLU"]


def any_batch(name: str, way: Strategy) -> Entry:
    """Also where a program has no element, or the second kernel has several tiles of samples."""
    case = OVER_REDUCTION_GROUPS[name]
    first, *sizes = case.shapes.small
    spaces = [space for space, *_ in case.fused(first, *sizes)]
    if way is WHOLE_GROUPS:  # a channel's elements of all samples are as many as there are samples
        spaces = [space for space in spaces if space.startswith("column")]

    def given(*drawn: Tensor) -> tuple[Tensor, ...]:
        return tuple((t * 2 + 1).contiguous(memory_format=case.memory_format) for t in drawn)

    return entry(
        lambda: case.make(first, *sizes),
        *[(first, *sizes) for _ in case.inputs],
        way=way,
        given=given,
        dims=((0,),) * len(case.inputs),
        more=(0, first + 3, LEAST.get(name, 1) - first),
        oblivious=True,
        shows=lambda found: len(found) == len(spaces),
    )


LEFT: dict[str, tuple[Make, Shape]] = {
    "a momentum that Dynamo does not trace": (lambda: nn.BatchNorm2d(16, momentum=None), (4, 16, 20, 16)),
    "no elements": (lambda: nn.GroupNorm(4, 16), (0, 16, 20, 16)),
    "a short column": (lambda: nn.Softmax(1), (4, 64, 8, 8)),
}


class Between(nn.Module):
    """A group norm between convolutions, as a GPU has it: contiguous, whatever the convolutions' order. The
    gradient of the bias is a sum, as it is there. A convolution takes the norm's, in the others' order."""

    def __init__(self, channels: int, groups: int, active: bool, affine: bool) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(channels, channels, 1, bias=False) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.norm = nn.GroupNorm(groups, channels, affine=affine)
        self.then = nn.SiLU() if active else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.then(self.norm((self.first(x) + self.bias[:, None, None]).contiguous())))


class Skip(nn.Module):
    """A skip behind a convolution, in front of a group norm and another one, as in a U-Net."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(channels, 2 * channels, 1), nn.Conv2d(3 * channels, channels, 1)
        self.norm = nn.GroupNorm(8, 3 * channels)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.first(x), x], 1)
        return self.last(nn.functional.silu(self.norm(y.contiguous())))


def lies_alike(record: RegionRecord, numel: int, count: int) -> bool:
    """Whether all full tensors lie as what they are computed from, though some are stated contiguous."""
    full = [b for b in record.loops.buffers if b.numel == numel]
    return len(full) == count and all(1 in b.stride[1:3] for b in full)


def between(shape: Shape, *how: Any) -> Entry:
    def make() -> nn.Module:
        return Between(shape[1], *how).to(memory_format=torch.channels_last)

    def shows(found: list[RegionRecord]) -> bool:
        record = found[-1]  # the forward of small groups is one, too
        return len(record.kernels) == 4 and lies_alike(record, torch.Size(shape).numel(), 3)

    return entry(random_weights(make), shape, last=True, shows=shows)


def responses(shape: Shape, active: bool, dtype: torch.dtype) -> Entry:
    """The third kernel adds up sums over more axes beside the gradient of a bias, and a fourth one has their
    totals. Of one sample, all sums but that are over the same axes."""
    channels = shape[-1]

    def make() -> nn.Module:
        before = [nn.Linear(channels, channels), nn.GELU()] if active else []
        return nn.Sequential(*before, Responses(channels))

    def shows(found: list[RegionRecord]) -> bool:
        record = found[-1]
        return (len(record.outer), len(record.kernels)) == (4 + active, 4 if shape[0] > 1 else 3)

    return entry(random_weights(make, dtype), shape, dtype=dtype, by_graph=True, shows=shows)


class BehindResponses(nn.Module):
    """A norm behind a global response norm, whose result is stored for a product. A variance's mean has a
    total only behind the third kernel, so that it is left to Inductor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.other = Responses(channels), nn.Linear(channels, channels)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x))
        return self.norm(y.movedim(-1, 1)).movedim(1, -1) + self.other(y)


def forwards_mean(found: list[RegionRecord]) -> bool:
    return [node.op for node in found[0].outer] == ["sum", "mean"] and len(found[0].kernels) == 3


# A tensor with the same axis twice has elements at places that the region does not have.
PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "an outer product": torch.outer,
    "one sum by itself": lambda a, _: a[:, None] * a[None],
    "a choice": lambda a, b: torch.where(a[:, None] > 0, b[None], a[:, None]),
    "a matrix and its transpose": lambda a, b: (a[:, None] + b) + (a[:, None] + b).T,
    "summed again": lambda a, b: torch.outer(a, b).abs().sum(0),
}


def pairs(name: str, last: bool) -> Entry:
    def function(dy: Tensor, h: Tensor) -> Any:
        dims = (0, 2, 3)
        normed = (h - h.mean(dims, keepdim=True)) * torch.rsqrt(h.var(dims, keepdim=True) + 1e-5)
        both = dy.sum(dims), (dy * normed).sum(dims)
        shift, slope = (s[None, :, None, None] / (dy.numel() // dy.shape[1]) for s in both)
        return dy - shift - normed * slope, PAIRS[name](*both)

    return entry(of(function), (4, 16, 20, 16), (4, 16, 20, 16), last=last, shows=len)


class Conditioned(nn.Module):
    """A group norm behind what is computed for each channel of a sample, such as of a time step. Of a larger
    batch, the fourth kernel adds up more parts than the second."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor, of_samples: Tensor) -> Tensor:
        return self.norm(x + of_samples[..., None, None])


def shifted(of_samples: bool, shape: Shape, groups: int, last: bool) -> Entry:
    """A fourth kernel adds up what the third has computed, several parts at a time."""
    return entry(
        random_weights(lambda: Shifted(shape[1], groups, shape[0] if of_samples else 0), bf16),
        shape,
        dtype=bf16,
        last=last,
        patches=((reduction_groups, "MOST_PARTIALS", 128),),
        shows=one(lambda r: len(r.kernels) == 4),
    )


class AsOnGPU(nn.Module):
    """A group norm in the operators that it consists of on a GPU, with its statistics."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        wide = x.to(torch.promote_types(x.dtype, f32)).contiguous()
        wide = wide.view(x.shape[0], self.groups, x.shape[1] // self.groups, x.shape[2] * x.shape[3])
        var, mean = torch.var_mean(wide, (2, 3), correction=0, keepdim=True)
        rstd = torch.rsqrt(var + 1e-5)
        y = ((wide - mean) * rstd).view(x.shape) * self.weight[:, None, None] + self.bias[:, None, None]
        return nn.functional.silu(y).to(x.dtype), mean, rstd


def untrained(make: Make, dtype: torch.dtype = f32) -> Callable[[], Callable[..., Any]]:
    def function() -> Callable[..., Any]:
        module = random_weights(make, dtype)()
        return lambda x: module(x)

    return function


STATISTICS: dict[str, tuple[Shape, int]] = {
    "groups of 8": ((2, 64, 24, 16), 8),
    "groups of 10": ((3, 40, 17, 19), 4),
    "groups of 3, many parts": ((1, 6, 61, 53), 2),
    "groups of 96": ((2, 192, 9, 11), 2),
    "one group": ((2, 24, 30, 20), 1),
}


def statistics(name: str, offset: float, dtype: torch.dtype, way: Strategy) -> Entry:
    """In channels-last, where a group's elements are of several rows of memory."""
    shape, groups = STATISTICS[name]
    return entry(
        untrained(lambda: AsOnGPU(shape[1], groups), dtype),
        shape,
        dtype=dtype,
        given=lambda t: (t.to(memory_format=torch.channels_last) * 2 + offset,),
        way=way,
        lies=True,
        cancelled=offset * torch.Size(shape).numel() ** 0.5,
        shows=one(lambda r: r.strategy == way.name),
    )


class Layers(nn.Module):
    """Convolutions of a sum, and of its norm. A convolution and its backward take the activation in the order
    of the others. The first pass stores the sum, and the second one reads that."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        make = functools.partial(nn.Conv2d, channels, channels, 1, bias=False)
        self.first, self.other, self.last = (make() for _ in range(3))
        self.norm = AsOnGPU(channels, groups)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + x
        return self.last(self.norm(h)[0]) + self.other(h)


def layers(shape: Shape, groups: int) -> Entry:
    def make() -> nn.Module:
        return Layers(shape[1], groups).to(memory_format=torch.channels_last)

    def shows(found: list[RegionRecord]) -> bool:
        forward = found[0]  # from torch 2.15 on, the backward has one as well
        (stored,) = [s for s in forward.loops.nests[0].body if isinstance(s, Store)]
        read = {s.buffer for s in forward.loops.nests[2].body if isinstance(s, Load)}
        return lies_alike(forward, torch.Size(shape).numel(), 4) and stored.buffer in read

    return entry(random_weights(make), shape, last=True, shows=shows)


STATISTICS_LEFT: dict[str, tuple[Make, Shape, bool]] = {
    "instance": (lambda: nn.InstanceNorm2d(16), (2, 16, 40, 30), True),
    "no elements": (lambda: AsOnGPU(16, 4), (0, 16, 20, 16), True),
    "few elements": (lambda: AsOnGPU(16, 4), (4, 16, 5, 3), True),
    "in the order of the dims": (lambda: AsOnGPU(64, 8), (2, 64, 24, 16), False),
}


def size_along(x: Tensor, of_samples: Tensor) -> Tensor:
    """No tile knows how far apart the elements of the small tensor are."""
    return x * (x.sum(1, keepdim=True) + of_samples.transpose(0, 2))


def shared_elements(x: Tensor) -> tuple[Tensor, ...]:
    """Samples that share their elements have each its own sums all the same, of which a response norm makes
    the factor of its elements."""
    size = (x.square().mean((1, 2), keepdim=True) + 0.1).sqrt()
    y = x * (size / (size.mean(-1, keepdim=True) + 0.1))
    return x.mean((1, 2)), y, (x * y).sum((1, 2))


WAYS = (TWO_PASS, WHOLE_GROUPS)
ANY_BATCH = [name for name in OVER_REDUCTION_GROUPS if name not in NOT_ANY_BATCH]
ENTRIES: dict[str, Entry] = {
    **{
        f"{name}{', channels last' * last}": norm(name, last, WAYS[(i + last) % 2])
        for i, name in enumerate(NORMS)
        for last in BOTH_LAYOUTS
    },
    "residual blocks": blocks(False, bf16),
    "residual blocks, channels last": blocks(True, f32),
    "a frozen weight": entry(
        lambda: nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()).requires_grad_(False),
        (4, 16, 20, 16),
        last=True,
        shows=one(),
    ),
    **{f"{name}, any batch": any_batch(name, WAYS[i % 2]) for i, name in enumerate(ANY_BATCH[::3])},
    **{
        f"left: {name}": entry(make, shape, last=True, shows=lambda found: not found)
        for name, (make, shape) in LEFT.items()
    },
    # Of a channels-last x and a contiguous dy, a tile is read along its rows and along its columns.
    **{
        f"{shape} from{' channels last' * of_x} to{' channels last' * of_dy}": entry(
            random_weights(functools.partial(Stored, shape[1], 8, memory_format), bf16),
            shape,
            dtype=bf16,
            last=of_x,
            shows=one(),
        )
        for shape, of_x, of_dy in (
            ((3, 64, 12, 8), False, False),
            ((3, 64, 12, 8), True, True),
            ((1, 40, 13, 7), False, True),
            ((1, 40, 13, 7), True, False),
        )
        for memory_format in (torch.channels_last if of_dy else torch.contiguous_format,)
    },
    "between": between((3, 40, 7, 9), 4, True, True),
    "between, of one sample": between((1, 26, 23, 11), 2, False, True),
    "between, of one row": between((4, 32, 1, 40), 8, True, True),
    "skip": entry(
        random_weights(lambda: Skip(16).to(memory_format=torch.channels_last)),
        (3, 16, 12, 9),
        last=True,
        shows=one(lambda r: lies_alike(r, 3 * 3 * 16 * 12 * 9, 3)),
    ),
    "responses": responses((2, 20, 7, 24), True, bf16),
    "responses of one sample": responses((1, 9, 31, 10), False, f32),
    # The sums of the first are parts in the third kernel of the second. Elements that need their totals are
    # none of that kernel's.
    **{
        f"a norm behind another{', channels last' * last}": entry(
            random_weights(lambda: nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16))),
            (4, 16, 20, 16),
            last=last,
            shows=one(lambda r: (len(r.outer), len(r.kernels)) == (4, 4)),
        )
        for last in BOTH_LAYOUTS
    },
    **{name: pairs(name, i % 2 == 0) for i, name in enumerate(PAIRS)},
    "behind responses": entry(
        random_weights(lambda: BehindResponses(24)), (3, 12, 20, 24), by_graph=True, shows=forwards_mean
    ),
    "conditioned": entry(
        random_weights(lambda: Conditioned(24)),
        (3, 24, 40, 30),
        (3, 24),
        last=True,
        dims=((0,), (0,)),
        more=(0, 5, -1),
        oblivious=True,
        shows=lambda found: len(found[-1].kernels) == 4,
    ),
    "a size along a small tensor": Entry(
        of(size_along),
        ((3, 1040, 5), (5, 1, 3)),
        dims=((0,), (2,)),
        regions=0,
        declined=("dynamic-shape",),
    ),
    "shifted": shifted(False, (2, 24, 30, 20), 8, True),
    "shifted of samples": shifted(True, (5, 40, 13, 9), 4, False),
    **{
        f"{name}, {WAYS[i % 2].name}": statistics(
            name, (1, 1000)[i // 2 % 2], (f32, bf16)[i // 3], WAYS[i % 2]
        )
        for i, name in enumerate(STATISTICS)
    },
    **{
        f"statistics of {groups}, any batch": entry(
            untrained(lambda groups=groups: AsOnGPU(40, groups)),
            (3, 40, 17, 19),
            last=True,
            dims=((0,),),
            more=(0, 2, -1),
            shows=one(),
        )
        for groups in (4, 1)
    },
    "layers": layers((2, 64, 24, 16), 8),
    **{
        f"statistics left: {name}": entry(untrained(make), shape, last=last, shows=lambda found: not found)
        for name, (make, shape, last) in STATISTICS_LEFT.items()
    },
    "shared elements": entry(
        of(shared_elements), (1, 64, 32), given=lambda t: (t.expand(4, 64, 32),), shows=one()
    ),
}
