"""One matrix: programs, the ways to run them, their spaces and dtypes. What each result must be.

`cases` has every program in every way that can run it. Spaces, dtypes and symbolic numbers of rows alternate,
so that each of them meets each way.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from graphs import bf16, f16, f32, f64
from reduced_dtypes import xor
from support.over_reduction_groups import OVER_REDUCTION_GROUPS
from torch import Tensor

from mixorder.report import RegionRecord
from mixorder.schedule import persistent
from mixorder.schedule.device import MEASURED as H200
from mixorder.schedule.device import DeviceInfo
from mixorder.schedule.facts import RowFacts
from mixorder.schedule.plan import Exchanged, Launch, Plan, SecondStage, Walk
from mixorder.strategies import Strategy
from mixorder.strategies.column_blocks import COLUMN_BLOCKS
from mixorder.strategies.cooperative import COOPERATIVE
from mixorder.strategies.persistent import PERSISTENT

prims = torch.ops.prims
Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]


@dataclasses.dataclass(frozen=True)
class Space:
    """A shape, and the dims that inner and outer reductions reduce."""

    name: str
    shape: tuple[int, ...]
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        """Whether each side reduces one dim, and none is left over."""
        return len(self.shape) == len(self.inner) + len(self.outer) == 2

    @property
    def row_dim(self) -> int:
        """The first dim that only outer reductions reduce."""
        return next(d for d in self.outer if d not in self.inner)

    @property
    def cols(self) -> int:
        return math.prod(self.shape[d] for d in self.inner)

    def with_rows(self, rows: int) -> Space:
        shape = tuple(rows if d == self.row_dim else n for d, n in enumerate(self.shape))
        return dataclasses.replace(self, shape=shape)

    def rows(self, value: Tensor, kind: str = "sum") -> Tensor:
        """An inner reduction, which keeps its dims."""
        return reduced(value, kind, self.inner, True)

    def columns(self, value: Tensor, kind: str = "sum") -> Tensor:
        """An outer reduction."""
        return reduced(value, kind, self.outer, False)

    def of(self, ones: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(1 if d in ones else n for d, n in enumerate(self.shape))


def reduced(value: Tensor, kind: str, dims: tuple[int, ...], keep: bool) -> Tensor:
    if kind == "xor":
        result = xor((value * 64).to(torch.int32), dims[0])
        return result.unsqueeze(dims[0]) if keep else result
    if kind == "max":
        return value.max(dims[0], keepdim=keep).values
    return getattr(value, kind)(dims, keepdim=keep)


def spaces(cols: int) -> list[Space]:
    """Spaces of each class, with rows of so many columns."""
    return [
        Space("rows", (9, cols), (1,), (0,)),
        Space("sixteen rows", (16, cols), (1,), (0,)),
        Space("many rows", (104, cols), (1,), (0,)),
        Space("one row", (1, cols), (1,), (0,)),
        Space("two rows", (2, cols - 1), (1,), (0,)),
        Space("odd", (37, cols - 1), (1,), (0,)),
        Space("two dims of rows", (2, 7, cols), (2,), (0, 1)),
        Space("batch inside", (5, 3, cols), (2,), (0,)),
        Space("batch outside", (3, 5, cols), (2,), (1,)),
        Space("batch between", (5, 2, 3, cols), (3,), (0, 2)),
        Space("common", (5, 3, cols), (2,), (0, 2)),
        Space("images", (5, 3, 4, cols // 4), (2, 3), (0, 2, 3)),
        Space("one column", (30, 1), (1,), (0,)),
    ]


# Programs: functions of a space and of tensors, whose names say what they are (`argument`).


def pair(s: Space, x: Tensor, y: Tensor) -> Tensors:
    product = x * y
    return y - x * s.rows(product), s.columns(product)


def norm(s: Space, x: Tensor, y: Tensor, w: Tensor, r: Tensor) -> Tensors:
    """The backward of an RMSNorm, with a bias; the gradient of the weight goes on."""
    normed, scaled = x.float().to(wide(x)) * r, y * w
    dx = r * (scaled - normed * s.rows(scaled * normed, "mean"))
    return dx.to(x.dtype), s.columns(y * normed), s.columns(y) * 0.5 + 1


def moments(s: Space, x: Tensor, y: Tensor) -> Tensors:
    """Two stages of one operator: the mean of a row, then the squares about it."""
    value = x + 3
    var, mean = torch.var_mean(value.to(wide(x)), s.inner, correction=1, keepdim=True)
    normed = (value - mean) * torch.rsqrt(var + 1)
    return normed.to(x.dtype), mean, var, s.columns(y * normed)


def two_stages(s: Space, x: Tensor, y: Tensor, w: Tensor) -> Tensors:
    """A row's scale from its largest value, then a sum that needs the scale, as in BitLinear."""
    scale = 4 / s.rows(x.abs(), "amax").clamp(min=1e-5)
    q, scaled = x * scale, y * w
    return scaled - q * s.rows(q * scaled) * 1e-2, s.columns(y * q)


def three_stages(s: Space, x: Tensor, y: Tensor) -> Tensors:
    centred = x - s.rows(x, "mean")
    hat = centred / (s.rows(centred.abs(), "amax") + 1)
    return y - hat * s.rows(hat * y), s.columns(hat * y)


def extremes(s: Space, x: Tensor, y: Tensor) -> Tensors:
    low, high = s.rows(x, "amin"), s.rows(x, "amax")
    least = torch.minimum(y, high)
    return least - low, s.columns(torch.maximum(x, y), "amax"), s.columns(least, "amin"), high


def values_of_maxima(s: Space, x: Tensor, y: Tensor) -> Tensors:
    """`max(dim)`, whose indices nothing uses."""
    return y - s.rows(x, "max"), s.columns(x.abs(), "max"), s.columns(x * y)


def softmaxes(s: Space, x: Tensor, y: Tensor) -> Tensors:
    """The largest elements and sums of exponentials along both dims, of which the latter are relative."""
    value = x.to(torch.promote_types(x.dtype, f32)) * 30
    (row,), (column,) = s.inner, s.outer
    _, sums = prims.prepare_softmax_online(value, row)
    return y * sums, *prims.prepare_softmax_online(value, column), s.columns(x * y)


def dropped(s: Space, x: Tensor, y: Tensor, keep: Tensor) -> Tensors:
    """A mask is carried with the rest."""
    value = torch.where(keep, x * 2, 0.0)
    return torch.where(keep, y * s.rows(value * y), 0.0), s.columns(value * y)


def numbers_of_rows(s: Space, x: Tensor, y: Tensor) -> Tensors:
    """The number of rows is a factor in the loop, and of the totals."""
    rows = x.shape[s.row_dim]
    return y - s.rows(x) * (rows % 3 + 1), s.columns(x, "mean"), s.columns(x * y) / (rows + 2)


def many(s: Space, x: Tensor, y: Tensor) -> Tensors:
    """More reductions of a kind than one read brings in."""
    rows = [s.rows(x * x.abs() + i * y) for i in range(9)]
    return sum(y * r * 0.1 for r in rows), s.columns(x * y), s.rows(x, "amax")


def of_rows_alone(s: Space, x: Tensor, y: Tensor, w: Tensor) -> Tensors:
    """A value of each row is used later than it is computed, and is given back."""
    size = s.rows(x.square()).sqrt() + 1
    return x / size * w + y, s.columns(x / size), size


def labelled(s: Space, x: Tensor, label: Tensor, r: Tensor) -> Tensors:
    """The backward of a cross-entropy: the place of its label alone decides a row's sum."""
    hits = label == torch.arange(x.shape[-1], device=x.device)
    scaled = torch.where(hits & (label != 3), -1.0, 0.0)
    dx = scaled - torch.exp(x - 3 * r) * s.rows(scaled)
    return dx, s.columns(dx)


def behind_a_gather(s: Space, x: Tensor, y: Tensor, w: Tensor) -> Tensors:
    """Halves of each row change places, and indices of columns are values."""
    half = y.shape[-1] // 2
    rotated = torch.cat([y[..., half:], -y[..., :half]], -1)
    numbered = x * (torch.arange(x.shape[-1], device=x.device) / x.shape[-1])
    return (
        rotated - x * s.rows(x * rotated),
        s.columns(rotated * torch.tanh(numbered + w)),
        s.columns(numbered),
    )


def columns(s: Space, x: Tensor, y: Tensor, w: Tensor) -> Tensors:
    """Without a reduction along a row; what is computed of columns is used in the loop and after it, and
    their indices are values."""
    scale = torch.exp(w)
    index = torch.arange(x.shape[-1], device=x.device).to(x.dtype) / 1024
    dx = torch.tanh(x + index) * (y * scale)
    return dx, s.columns(dx) * scale.reshape(s.columns(dx).shape) + 1, s.columns(y, "mean")


def wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, f32)


def argument(name: str, space: Space, dtype: torch.dtype, device: str) -> Tensor:
    """x, y: of each element. w: of each column. r: positive, of each row. keep: truth values.
    label: a column of each row."""
    of_rows, of_columns = space.of(space.inner), space.of(space.outer)
    match name:
        case "label":
            return torch.randint(max(1, space.cols), of_rows, device=device)
        case "w":
            return torch.randn(of_columns, device=device).to(dtype)
        case "r":
            return (torch.rand(of_rows, device=device) + 0.5).to(dtype)
        case "keep":
            return torch.rand(space.shape, device=device) > 0.3
    return torch.randn(space.shape, device=device).to(dtype)


def names(function: Function) -> list[str]:
    return list(inspect.signature(function).parameters)[1:]


def arguments(function: Function, space: Space, dtype: torch.dtype, device: str = "cpu") -> Tensors:
    return tuple(argument(name, space, dtype, device) for name in names(function))


NARROW = (f32, bf16, f16)
ALL = (*NARROW, f64)
PROGRAMS: dict[Function, tuple[torch.dtype, ...]] = {
    pair: ALL,
    norm: ALL,
    moments: ALL,
    two_stages: ALL,
    three_stages: (f32, f64, bf16),
    extremes: ALL,
    values_of_maxima: (f32, f16),
    dropped: (bf16, f32),
    numbers_of_rows: (f32, bf16),
    many: (f32,),
    of_rows_alone: (f32, f16, f64),
    labelled: (f32,),
    behind_a_gather: (f32, bf16),
    columns: ALL,
    softmaxes: ALL,
}
# With a batch or a common axis, or over reduction groups; of a DiT block some norms have one.
STAGED = (two_stages, three_stages, softmaxes)  # a reduction of a row needs another one
NOT_SHARED = ["Cohere QK-norm", "adaLN", "DiT block", "mean over tokens after"]
NOT_SHARED += ["conv bias and gate", *OVER_REDUCTION_GROUPS]
PLAIN = (labelled, values_of_maxima, softmaxes)  # of one dim a side
NOT_EMPTY = (extremes, values_of_maxima, softmaxes)  # nothing has no largest element
ROUGH = (many,)  # with sums of sums, whose terms cancel


# Pairs nobody has named: a kind of reduction of each row, and others of each column, of one value.

KINDS = ("sum", "mean", "amax", "amin", "xor")
PROLOGUES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": lambda x, w: x,
    "exp": lambda x, w: torch.exp(x),
    "plus": lambda x, w: x + w,
    "cos": lambda x, w: torch.cos(x) - 1.5,
}


@dataclasses.dataclass(frozen=True)
class Kinds:
    """Reductions of one value, which is chosen so that a zero in a masked lane, or what the prologue makes of
    one, is an extreme."""

    row: str
    columns: tuple[str, ...]
    prologue: str
    space: Space
    way: str

    def __str__(self) -> str:
        return f"{self.row} and {'+'.join(self.columns)} of {self.prologue}, {self.space.name}, {self.way}"

    def __call__(self, s: Space, x: Tensor, w: Tensor) -> Tensors:
        value = PROLOGUES[self.prologue](x, w)
        row = s.rows(value, self.row)
        columns = tuple(s.columns(value, kind) for kind in self.columns)
        return x * row, row, *columns

    def arguments(self) -> Tensors:
        """Numbers of around -1, and positive ones for each column."""
        columns = torch.rand(self.space.of(self.space.outer)) / 2 + 0.25
        return torch.randn(self.space.shape) / 8 - 1, columns


def pairs_of_kinds() -> Iterator[Kinds]:
    """Each two kinds, with one prologue or another, in a space that allows them."""
    for i, row in enumerate(KINDS):
        for j, prologue in enumerate(PROLOGUES):
            first = (i + 2 * j) % len(KINDS)
            columns = tuple(sorted({KINDS[(first + k) % len(KINDS)] for k in (0, 1, 3)}, key=KINDS.index))
            of_several = "xor" not in (row, *columns)
            way = ("tiles of rows", "chunks")[j % 2]
            width = 88 if way == "chunks" else 12
            fitting = [s for s in spaces(width) if s.cols > 1 and s.shape[s.row_dim] in (5, 9, 37)]
            if not of_several:  # it reduces one dim
                fitting = [s for s in fitting if len(s.inner) == len(s.outer) == 1]
            yield Kinds(row, columns, prologue, fitting[(i + j) % len(fitting)], way)


# Ways to run them.


@dataclasses.dataclass(frozen=True)
class Way:
    """A plan that a test asks for. `widths`: columns of which it can be. `took`: whether a record shows it.

    `multiprocessors`: those of the device that is planned for; with few of them, tiles have several rows, and
    the last one is partial. `kinds`: the classes of spaces that it can run; all if there are none.
    `without`: programs that it cannot run."""

    name: str
    strategy: Strategy
    took: Callable[[RegionRecord], bool]
    widths: tuple[int, ...] = (20, 24)
    multiprocessors: int = 2
    split_size: int = 0
    symbolic: bool = True
    kinds: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ALL
    without: tuple[Function, ...] = ()

    @property
    def setting(self) -> dict[str, Any]:
        """What `plan_with` takes."""
        device = dataclasses.replace(H200, num_sm=self.multiprocessors)
        return {"strategies": (self.strategy,), "device": device}

    def runs(self, function: Function, space: Space) -> bool:
        if function in PLAIN and not space.is_plain or function is behind_a_gather and len(space.inner) > 1:
            return False
        if (function is columns) != (self.strategy is COLUMN_BLOCKS) and self.strategy is not PERSISTENT:
            return False
        if function is columns and (space.name == "one column" or len(space.shape) != 2):
            return False
        if space.cols == 1 and self.widths[0] > 24:
            return False
        if function in self.without:
            return False
        return space.name in self.kinds if self.kinds else space.name != "many rows"


def in_chunks(facts: RowFacts, device: DeviceInfo, split_size: int) -> Plan:
    """Chunks wherever they save a lane."""
    with mock.patch.multiple(persistent, LEAST_CHUNK=32):
        return persistent.choose(facts, device, split_size)


@dataclasses.dataclass(frozen=True)
class Shared:
    """A schedule's numbers for rows that several programs share, of any width."""

    parts: int
    depth: int = 1
    xblock: int = 1
    splits: int = 2
    shifted: bool = False

    def __call__(self, work: RowFacts, device: DeviceInfo, split_size: int = 0) -> Plan:
        part_cols = -(-work.cols // self.parts)
        lanes, parts, period = 1 << (part_cols - 1).bit_length(), self.parts, 1
        splits = min(self.splits, -(-work.rows // self.xblock))
        if self.shifted and work.alignment.period > 1 and work.cols > 16:
            part_cols = -(-part_cols // 16) * 16
            lanes, parts = 1 << (part_cols + 15).bit_length(), -(-work.cols // part_cols)
            splits, period = self.splits * work.alignment.period, work.alignment.period
        rows = Walk(split=splits, tile=self.xblock, period=period)
        columns = Walk(group=parts, part=part_cols, tile=lanes)
        return Plan((rows, columns), Launch(4, 2), SecondStage(4, 4), Exchanged(self.depth))

    def __str__(self) -> str:
        return f"shared {self.parts}x{self.depth}x{self.xblock}x{self.splits}"


SHARED = [
    Shared(parts=2),
    Shared(parts=3, depth=2, xblock=2),
    Shared(parts=4, depth=1, xblock=2, splits=1),
    Shared(parts=5, depth=3, xblock=1, splits=3),
    Shared(parts=7, depth=2, xblock=4, splits=2),
    Shared(parts=2, depth=2, xblock=2, splits=1, shifted=True),
]


def is_named(strategy: Strategy) -> Callable[[RegionRecord], bool]:
    return lambda record: record.strategy.partition(", ")[0] == strategy.name


def finishes(record: RegionRecord) -> bool:
    return record.schedule.finishes and len(record.kernels) == 1


WHOLE = ("rows", "sixteen rows")
WAYS = [
    Way("rows", PERSISTENT, is_named(PERSISTENT), multiprocessors=5, without=tuple(PROGRAMS)[::2]),
    Way("tiles of rows", PERSISTENT, is_named(PERSISTENT)),
    Way("a row each", PERSISTENT, is_named(PERSISTENT), split_size=1, without=tuple(PROGRAMS)[::2]),
    Way("three rows each", PERSISTENT, is_named(PERSISTENT), split_size=3, without=tuple(PROGRAMS)[1::2]),
    Way(
        "all rows",
        PERSISTENT,
        finishes,
        (20, 24, 96, 320),
        split_size=1000,
        symbolic=False,
        without=tuple(PROGRAMS)[1::2],
    ),
    Way(
        "chunks",
        dataclasses.replace(PERSISTENT, choose=in_chunks),
        lambda r: r.schedule.chunks > 1,
        widths=(88, 304),
        without=(dropped,),
    ),
    Way(
        "rows off a boundary",
        PERSISTENT,
        lambda r: r.schedule.period > 1,
        widths=(33, 242, 1001, 1030),
        multiprocessors=16,
        symbolic=False,
        kinds=("sixteen rows", "many rows"),
        dtypes=NARROW,
        without=(behind_a_gather,),
    ),
    Way(
        "blocks of columns",
        COLUMN_BLOCKS,
        is_named(COLUMN_BLOCKS),
        (96, 160, 320, 384, 576, 608, 720, 1152),
        kinds=WHOLE,
    ),
    Way(
        "all rows of a block",
        COLUMN_BLOCKS,
        finishes,
        (384, 576),
        split_size=1000,
        symbolic=False,
        kinds=WHOLE,
    ),
    *(
        Way(
            str(schedule),
            dataclasses.replace(COOPERATIVE, choose=schedule),
            lambda r: r.schedule.group > 1,
            widths=(24,),
            kinds=("rows", "two rows"),
            dtypes=NARROW,
            without=tuple(f for j, f in enumerate(PROGRAMS) if (i + j) % 3 or f in STAGED),
        )
        for i, schedule in enumerate(SHARED)
    ),
]


@dataclasses.dataclass(frozen=True)
class Case:
    function: Function
    way: Way
    space: Space
    dtype: torch.dtype
    symbolic: bool

    def on(self, space: Space) -> Callable[..., Tensors]:
        return functools.partial(self.function, space)

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.space.shape))
        more = " symbolic" if self.symbolic else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.function.__name__} {self.way.name}, {self.space.name} {sizes} {dtype}{more}"


def cases() -> Iterator[Case]:
    for i, way in enumerate(WAYS):
        able = [f for f in PROGRAMS if any(way.runs(f, s) for s in spaces(way.widths[0]))]
        for j in range(max(len(able), len(way.widths))):
            function, width = able[j % len(able)], way.widths[j % len(way.widths)]
            dtypes = [d for d in PROGRAMS[function] if d in way.dtypes]
            fitting = [s for s in spaces(width) if way.runs(function, s)]
            space, dtype = fitting[(i + j) % len(fitting)], dtypes[(i + j) % len(dtypes)]
            symbolic = way.symbolic and space.name != "one row" and (i + j // 2) % 2 == 1
            yield Case(function, way, space, dtype, symbolic)
    ways = {way.name: way for way in WAYS}
    for name, width, dtype in (("chunks", 896, f32), ("rows off a boundary", 4101, bf16)):  # the most of them
        yield Case(norm, ways[name], Space("sixteen rows", (16, width), (1,), (0,)), dtype, False)


def check(ours: Tensors, function: Function, args: Tensors, terms: int, rough: bool = False) -> None:
    """Errors are at most eager's, and what another order of a sum costs. Other dtypes are exact."""
    eager, exact = function(*args), function(*(a.double() if a.is_floating_point() else a for a in args))
    for mine, theirs, truth in zip(ours, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        keep = truth.isfinite()
        truth, size = truth[keep], float(truth[keep].norm())
        error, allowed = (float((t[keep].double() - truth).norm()) for t in (mine, theirs))
        compute = torch.finfo(f64 if mine.dtype == f64 else f32).eps
        allowed = 1.1 * allowed + (8 if rough else 2) * compute * max(1, terms) ** 0.5 * (size + 1e-3)
        if mine.numel() < 1000:  # a few last bits of a few numbers do not average out
            allowed += torch.finfo(mine.dtype).eps / 4 * size
        assert error <= allowed, (tuple(mine.shape), error, allowed, size)


def plant(x: Tensor, space: Space) -> Tensor:
    """Makes an element of one row NaN or infinite; gives where its row is."""
    row = [0 if d in space.inner else n // 2 for d, n in enumerate(space.shape)]
    place = tuple(n - 1 if d in space.inner else row[d] for d, n in enumerate(space.shape))
    x[place] = (math.nan, math.inf, -math.inf)[sum(space.shape) % 3]
    found = torch.zeros(space.of(space.inner), dtype=torch.bool, device=x.device)
    found[tuple(row)] = True
    return found.expand(space.shape)


def stays_in_its_row(ours: Tensors, clean: Tensors, eager: Tensors, planted: Tensor) -> None:
    """A value that is not finite spoils what it does in eager; other rows keep their bits."""
    for mine, before, theirs in zip(ours, clean, eager, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        if mine.shape == planted.shape:
            assert torch.equal(*(bits(t[~planted]) for t in (mine, before)))


def bits(t: Tensor) -> Tensor:
    return t.contiguous().view(torch.uint8)
