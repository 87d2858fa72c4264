"""Functions whose regions' results are viewed, written, returned twice, or gathered in a larger buffer.

What is at stake is where the results lie, so these are run by the FX interpreter (tests/interpreter), by
Inductor's wrapper code without a GPU (test_inductor_layouts.py) and on a GPU (tests/gpu).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from graphs import pair

X, DY = ((37, 20), (37, 20))


def gathered(dim: int) -> Callable[..., Any]:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        dx, dw = pair(x, dy)
        return torch.cat([x.sin(), dx, dy * 2], dim), torch.stack([dw, dw * 2])

    return function


def qkv_gradient(x: torch.Tensor, dy: torch.Tensor) -> Any:
    """Two results of one region and something else fill one buffer."""
    q, k = pair(x, dy), pair(x.cos(), dy)
    return torch.cat([q[0], k[0], x], 1), torch.cat([q[1], k[1]])


def read_elsewhere(x: torch.Tensor, dy: torch.Tensor) -> Any:
    """The pieces of the whole are a result that is wanted by itself as well, and what the region reads."""
    dx, dw = pair(x, dy)
    return torch.cat([dx, dy], 1), dx, dw


def viewed(x: torch.Tensor, dy: torch.Tensor) -> Any:
    dx, dw = pair(x, dy)
    return dx, dx.view(-1), dx.t(), dx[3:9], dx.as_strided((30, 5), (20, 2), 3), dw, dw.view(4, 5)


def written(x: torch.Tensor, dy: torch.Tensor) -> Any:
    dx, dw = pair(x, dy)
    dx.view(-1)[5:9].add_(3)
    dx[:, 2].mul_(2)
    dw.add_(1)
    return dx, dw, dx.view(2, -1)


def written_after_use(x: torch.Tensor, dy: torch.Tensor) -> Any:
    dx, dw = pair(x, dy)
    before = dx @ dx.new_ones(20, 8)
    dx.mul_(2)
    return before, dx, dw.exp_()


def accumulated(x: torch.Tensor, dy: torch.Tensor, buffer: torch.Tensor, dw_sum: torch.Tensor) -> Any:
    dx, dw = pair(x, dy)
    buffer[3 : 3 + len(dx)].add_(dx)
    dw_sum.add_(dw)
    return (dw,)


def copied_out(x: torch.Tensor, dy: torch.Tensor, buffer: torch.Tensor, dw_sum: torch.Tensor) -> Any:
    dx, dw = pair(x, dy)
    buffer[3 : 3 + len(dx)].copy_(dx)
    dw_sum.copy_(dw)
    return ()


def into_the_input(x: torch.Tensor, dy: torch.Tensor) -> Any:
    dx, dw = pair(x, dy)
    dy.copy_(dx)
    return (dw,)


def input_between(x: torch.Tensor, dy: torch.Tensor) -> Any:
    """Written between the reduction and the use of its result, and again at the end."""
    product = x * dy
    row, col = product.sum(1, keepdim=True), product.sum(0)
    x.mul_(2)
    dx = dy - x * row
    x.add_(dx)
    return dx, col


# name: the function, the shapes of its arguments, and how many regions it has
RESULTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "cat_of_columns": (gathered(1), (X, DY), 1),
    "cat_of_rows": (gathered(0), (X, DY), 1),
    "qkv_gradient": (qkv_gradient, (X, DY), 1),
    "read_elsewhere": (read_elsewhere, ((37, 32), (37, 32)), 1),
    "viewed": (viewed, (X, DY), 1),
    "written": (written, (X, DY), 1),
    "written_after_use": (written_after_use, (X, DY), 1),
    "accumulated": (accumulated, (X, DY, (50, 20), (20,)), 1),
    "copied_out": (copied_out, (X, DY, (50, 20), (20,)), 1),
    "into_the_input": (into_the_input, (X, DY), 1),
    "input_between": (input_between, (X, DY), 1),
    "returned_twice": (lambda x, dy: [*pair(x, dy)] * 2, (X, DY), 1),
    "same_result_twice": (lambda x, dy: (lambda p: (*p, *p, p[0].view(-1)))(pair(x, dy)), (X, DY), 1),
    "inputs_returned": (lambda x, dy: (*pair(x, dy), x, dy.view(-1), x.t()), (X, DY), 1),
    "transposed_copy": (lambda x, dy: [p.t().contiguous() for p in pair(x, dy)], (X, DY), 1),
    "scattered": (
        lambda x, dy, z: (torch.slice_scatter(z, pair(x, dy)[0], 0, 2, 2 + len(x)), pair(x, dy)[1]),
        (X, DY, (50, 20)),
        1,
    ),
}


def aliases(tensors: Sequence[torch.Tensor]) -> set[tuple[int, int]]:
    """Which tensors share memory."""
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return {(i, j) for i in range(len(places)) for j in range(i) if places[i] == places[j]}
