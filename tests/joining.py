"""Programs whose results are parts of one tensor: what is joined, how, and by what else, by axes.

They are run by the FX interpreter (tests/interpreter), and by Inductor's wrapper code (tests/inductor).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from graphs import pair

ROWS, COLS = 12, 32
SHAPES = ((ROWS, 4 * COLS), (ROWS, 4 * COLS), (COLS, COLS))

Part = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

PARTS: dict[str, Part] = {
    "loop": lambda x, dy, w: x * 0.5,
    "given": lambda x, dy, w: dy,
    "product": lambda x, dy, w: x @ w,
    "reduced": lambda x, dy, w: x - x.sum(1, keepdim=True),
}


def _sum(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(torch.add, tensors)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return like.new_zeros(ROWS, 4 * COLS)


def _written(whole: torch.Tensor, part: tuple[int, torch.Tensor]) -> torch.Tensor:
    i, one = part
    return torch.slice_scatter(whole, one, 1, i * COLS, (i + 1) * COLS)


JOINS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "cat of columns": lambda parts: torch.cat(parts, 1),
    "cat of rows": lambda parts: torch.cat(parts, 0),
    "stack": lambda parts: torch.stack(parts, 1),
    "cat of heads": lambda parts: torch.cat([p.view(ROWS // 4, 4, 2, -1) for p in parts], 2),
    "written": lambda parts: functools.reduce(_written, enumerate(parts), parts[0].new_ones(ROWS, 4 * COLS)),
    "sum of slices": lambda parts: _sum(_written(_zeros(p), (i, p)) for i, p in enumerate(parts)),
    "sum of selected": lambda parts: _sum(
        torch.select_scatter(_zeros(p).view(ROWS, 4, COLS), p, 1, i) for i, p in enumerate(parts)
    ),
    "sum of padded": lambda parts: _sum(F.pad(p, (i * COLS, (3 - i) * COLS)) for i, p in enumerate(parts)),
    "cat of permuted": lambda parts: torch.cat([p.view(4, ROWS // 4, -1).transpose(0, 1) for p in parts], 2),
}
ORDERS = {"first": [0, 1, 2, 3], "last": [2, 3, 1, 0]}


def program(part: str, join: str, order: str) -> Callable[..., Any]:
    """Two norms' gradients and two other parts; a product reads what they are joined to."""

    def function(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> Any:
        pieces = list(zip(x.split(COLS, 1), dy.split(COLS, 1), strict=True))
        (first, dw), (second, other) = pair(*pieces[0]), pair(*pieces[1])
        parts = [first, second, *(PARTS[part](*piece, w) for piece in pieces[2:])]
        whole = JOINS[join]([parts[i] for i in ORDERS[order]])
        return whole.cumsum(-1), dw, other

    return function


JOINED = {
    f"{join}, {part}, {order}": program(part, join, order)
    for join, part, order in itertools.product(JOINS, PARTS, ORDERS)
}
