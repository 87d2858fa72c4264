"""Programs whose results are parts of one tensor: what is joined, how, and by what else, by axes.

They are run by the FX interpreter (tests/interpreter), and by Inductor's wrapper code (tests/inductor).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
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
JOINS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "cat of columns": lambda parts: torch.cat(parts, 1),
    "cat of rows": lambda parts: torch.cat(parts, 0),
    "stack": lambda parts: torch.stack(parts, 1),
    "cat of heads": lambda parts: torch.cat([p.view(ROWS // 4, 4, 2, -1) for p in parts], 2),
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
