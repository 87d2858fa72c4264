"""Ratios of rows to columns, inputs and gradients that are views, and sums of all elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from graphs import HFRMSNorm, bf16
from support.around import StarReLU, Temperature
from table import Entry, of, random_weights
from torch import nn

NORMS: tuple[Callable[[int], nn.Module], ...] = (nn.LayerNorm, nn.RMSNorm, HFRMSNorm)

RATIOS = [(17, 17), (3, 4097), (5, 6), (700, 3), (1030, 2), (1, 1), (13, 768)]
# Those at which symbolic sizes may be taken for others, or for 1, and a plain one.
DYNAMIC = [(16, 16), (1, 20), (67, 33)]


def of_ratio(rows: int, cols: int, norm: Callable[[int], nn.Module], dynamic: bool) -> Entry:
    """Along few columns a norm's dx is a small difference of terms as large as rstd times dy. Dynamo never
    makes a 1 symbolic, and takes equal sizes for one, here the weight's."""
    return Entry(
        random_weights(lambda: norm(cols)),
        ((rows, cols),),
        dynamic=dynamic,
        cancelled=1e2 * rows**0.5 if cols <= 3 else 0.0,
        shows=lambda r: (
            r.space.cols == cols and isinstance(r.space.rows, str) == (dynamic and rows not in (1, cols))
        ),
    )


class Applied(nn.Module):
    """A norm of 20 columns, and what is done with it: a function of the norm and of x."""

    def __init__(self, norm: nn.Module, forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm, self.function = norm, forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.norm, x)


def applied(
    forward: Callable[[Any, torch.Tensor], torch.Tensor],
    norm: Callable[[int], nn.Module] = nn.LayerNorm,
    shape: tuple[int, ...] = (37, 20),
    **how: Any,
) -> Entry:
    return Entry(random_weights(lambda: Applied(norm(20), forward)), (shape,), **how)


def viewed(
    shape: tuple[int, ...], view: Callable[[torch.Tensor], torch.Tensor], i: int, dynamic: bool
) -> Entry:
    return applied(lambda norm, x: norm(x), NORMS[i % 3], shape, given=lambda t: (view(t),), dynamic=dynamic)


VIEWS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "row stride above cols": ((37, 24), lambda t: t[:, :20]),
    "slice with offset": ((41, 64), lambda t: t[2:39, 7:27]),
    "every other row": ((37, 20), lambda t: t[::2]),
    "leading dims swapped": ((5, 7, 20), lambda t: t.transpose(0, 1)),
    "leading dims rolled": ((3, 5, 7, 20), lambda t: t.permute(2, 0, 1, 3)),
    "rows expanded": ((1, 20), lambda t: t.expand(37, 20)),
    "middle dim expanded": ((5, 1, 20), lambda t: t.expand(5, 7, 20)),
    "columns expanded": ((37, 1), lambda t: t.expand(37, 20) + torch.zeros(20)),
    "rows overlap": ((200,), lambda t: t.as_strided((37, 20), (3, 1))),
    "rows padded in batches": ((5, 9, 24), lambda t: t[:, 1:8, :20]),
}


def chunks(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    q, k, v = x.chunk(3, -1)
    return torch.cat([norm(q), norm(k), v], -1)


# What the rest of the model makes of y decides on dy's layout. The mean over rows is a pair with the moments.
READERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "expanded scalar": (lambda y: y.sum(), 1),
    "expanded columns": (lambda y: y.mean(-1).sin().sum(), 1),
    "expanded rows": (lambda y: y.mean(0).sin().sum(), 2),
    "padded": (lambda y: nn.functional.pad(y, (2, 3)).sin().sum(), 1),
    "slice of wider": (lambda y: torch.cat([y, y * 2], -1).sin().sum(), 1),
    "half of it unused": (lambda y: y[..., 3:11].sin().sum(), 1),
    "swapped leading dims": (lambda y: y.reshape(-1, 1, 20).transpose(0, 1).sin().sum(), 1),
}


class ScaledByColumn(nn.Module):
    """A learned scale of each column, behind no bias."""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(cols))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() * self.weight


# Added up in two steps, alone or beside a sum along each row, or left to Inductor. By name: the modules of a
# number of columns, and whether one of a single column is fused.
WHOLE: dict[str, tuple[Callable[[int], nn.Module], bool]] = {
    "two sums": (lambda _: StarReLU(), False),
    "one sum": (lambda _: nn.PReLU(), False),
    "of columns": (ScaledByColumn, False),
    "beside rows": (lambda _: Temperature(1), True),
    "a scalar": (lambda _: Temperature(), True),
}
SPACES = [(37, 60), (1, 60), (61, 1), (2, 9001), (3, 5, 60), (2, 3, 5, 7), (1, 5, 1), (300, 3), (0, 60)]
ORDERS: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], torch.Tensor]]] = {
    "channels first": ((3, 6, 7, 5), lambda t: t.permute(0, 3, 1, 2)),
    "transposed": ((40, 30), lambda t: t.t()),
    "every other column": ((30, 80), lambda t: t[:, ::2]),
}


def whole(name: str, shape: tuple[int, ...]) -> Entry:
    (make, is_pair), numel = WHOLE[name], torch.Size(shape).numel()
    fused = numel > shape[-1] and (is_pair or shape[-1] > 1)
    sums = 2 if name == "two sums" else 1
    return Entry(
        lambda: make(shape[-1]),
        (shape,),
        regions=None,
        cancelled=2 * numel**0.5,
        shows=lambda *found: bool(found) == fused and all(len(r.outer) == sums for r in found),
    )


def wide(make: Callable[[], Callable[..., Any]], *shapes: tuple[int, ...], **how: Any) -> Entry:
    """Rows that several programs share, with the schedule that the pipeline chooses."""
    return Entry(make, shapes, shows=lambda r: r.schedule.group > 1, **how)


def carried(x: Any, dy: Any, w: Any, kept: Any) -> tuple[Any, Any]:
    """A narrow value of each row. A tile has fewer rows than a register has room for."""
    g = dy * w * kept
    return g - x * (g * x).mean(-1, keepdim=True) * kept, (dy * x).sum(0)


ENTRIES: dict[str, Entry] = {
    "wide rows": wide(lambda: nn.LayerNorm(16400).to(bf16), (3, 16400), dtype=bf16),
    "wide rows of an odd number": wide(lambda: nn.RMSNorm(16385).to(bf16), (9, 16385), dtype=bf16),
    **{
        f"wide rows, carried {dtype}": wide(
            of(carried),
            (3, 16400),
            (3, 16400),
            (16400,),
            given=lambda *drawn, dtype=dtype: (*drawn, torch.tensor([[1], [0], [3]]).to(dtype)),
        )
        for dtype in (torch.bool, torch.int8, torch.int16)
    },
    **{
        f"{rows}x{cols}{' dynamic' * dynamic}": of_ratio(rows, cols, NORMS[(i + dynamic) % 2], dynamic)
        for dynamic, ratios in ((False, RATIOS), (True, DYNAMIC))
        for i, (rows, cols) in enumerate(ratios)
    },
    # There is nothing to fuse; the weights' gradients are zero, not what was in memory.
    "no rows": applied(lambda norm, x: norm(x), shape=(0, 20), regions=0),
    "no rows, dynamic": applied(lambda norm, x: norm(x), HFRMSNorm, (3, 0, 20), regions=0, dynamic=True),
    **{name: viewed(*VIEWS[name], i, i % 4 == 1) for i, name in enumerate(VIEWS)},
    "sliced inside": applied(lambda norm, x: norm(x[:, 8:28]), shape=(37, 64)),
    "swapped inside": applied(lambda norm, x: norm(x.transpose(0, 1)), HFRMSNorm, (5, 7, 20)),
    "expanded inside": applied(lambda norm, x: norm(x[:, None].expand(5, 7, 20)), shape=(5, 20)),
    "chunks": applied(chunks, HFRMSNorm, (37, 60), regions=2),
    # Dynamo guards on (width + 2) // 3 == 20 and leaves the width symbolic in what it copies.
    "chunks, dynamic": applied(
        chunks, shape=(37, 60), dynamic=True, regions=0, declined=("dynamic-shape",) * 2
    ),
    **{
        f"a gradient: {name}": applied(lambda norm, x: norm(x), NORMS[i % 3], after=loss)
        for i, (name, (loss, _)) in enumerate([*READERS.items()][::2])
    },
    **{
        f"a gradient inside: {name}": applied(lambda norm, x, loss=loss: loss(norm(x)), regions=regions)
        for name, (loss, regions) in [*READERS.items()][1::2]
    },
    # Read across memory: copied if it is the smaller part.
    "every other column": applied(
        lambda norm, x: norm(x),
        shape=(37, 40),
        given=lambda t: (t[:, ::2],),
        shows=lambda r: r.traffic.copied == 37 * 20 * 4,
    ),
    **{
        f"{name}: {'x'.join(map(str, shape))}": whole(name, shape)
        for i, shape in enumerate(SPACES)
        for name in ([*WHOLE][i % 5],)
    },
    **{
        f"two sums: {name}": Entry(
            StarReLU, (shape,), given=lambda t, view=view: (view(t),), cancelled=60, regions=None
        )
        for name, (shape, view) in ORDERS.items()
    },
}
