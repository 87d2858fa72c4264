"""One compile for every number of rows: symbolic sizes through all stages, down to launches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from graphs import Block, HFRMSNorm, pair
from support.around import StarReLU, Temperature
from table import Entry, of
from torch import nn

from mixorder.record import as_dict


def after_a_product(module: nn.Module) -> nn.Module:
    """The product makes the columns static."""
    return nn.Sequential(nn.Linear(16, 16, bias=False), module)


class Concatenated(nn.Module):
    """The rows of the norm are a sum of two symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.cat([x, y], 0))


class Pieces(Concatenated):
    """A norm over rows that the graph has in pieces behind it, as a window's attention has. Its rows are
    written in two ways, which are equal by torch's guards."""

    def forward(self, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        many = like.shape[0]
        y = self.norm(x * 2).view(x.shape[0], many, x.shape[1] // many, x.shape[2])
        return y.sin().view(-1, x.shape[2]).exp() + like.sum()


class Modulated(nn.Module):
    """A norm with scale and shift for each sample, as of a diffusion transformer, and a Linear before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), nn.LayerNorm(24, elementwise_affine=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * (1 + scale[:, None]) + shift[:, None]


class StoredAcross(nn.Module):
    """A result is stored across memory for the graph's caller. Where rows may be 0 or 1, torch's copy to
    there asks for two: stock would serve fewer by this graph, and mixorder would compile another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 3))

    def forward(self, x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * self.weight
        return y * (y * r).mean(1, keepdim=True), y.transpose(0, -1)


def any_rows(make: Callable[[], nn.Module], *counts: int, **how: Any) -> Entry:
    """Regions whose rows have so many symbols each. By default, of 5, 9, 65 and 2 rows."""
    return Entry(
        make,
        **{"shapes": ((5, 16),), "dims": ((0,),), "more": (0, 4, 60, -3), "dynamic": True} | how,
        regions=len(counts),
        shows=lambda *found: [str(r.space.rows).count("s") for r in found] == [*counts],
    )


def modulated(*dims: int) -> Entry:
    """Where a result is per sample, the batch is an axis of its own."""
    return Entry(
        Modulated,
        ((4, 10, 24), (4, 24), (4, 24)),
        dims=(dims, (0,), (0,)),
        more=(0, 5, -2),
        shows=lambda r: str(r.space).startswith("batch s") and len(r.outer) == 2 and json.dumps(as_dict(r)),
    )


def batches(shape: tuple[int, ...], dims: tuple[int, ...], rows: Any) -> Entry:
    def function(x: torch.Tensor, dy: torch.Tensor) -> Any:
        return dy - (x * dy).sum(-1, keepdim=True), (x * dy).sum(rows)

    return Entry(of(function), (shape, shape), dims=(dims, dims), more=(0, 6))


def without_guard(function: Callable[..., Any]) -> Entry:
    """Inductor compiles what is not fused as without mixorder, and nothing for another size anew."""
    return Entry(of(function), ((40, 16), (40, 16)), dims=((0,), (0,)), more=(0, 3))


ENTRIES: dict[str, Entry] = {
    "layer": any_rows(lambda: nn.LayerNorm(16), 1),
    "hugging face": any_rows(lambda: HFRMSNorm(16), 1),
    "two leading dims": any_rows(
        lambda: nn.LayerNorm(16), 2, shapes=((2, 5, 16),), dims=((0, 1),), more=(0, 1, 20)
    ),
    "heads": any_rows(lambda: nn.RMSNorm(16), 3, shapes=((2, 4, 5, 16),), dims=((0, 2),), more=(0, 2, 7)),
    "pieces": any_rows(
        Pieces,
        2,
        shapes=((2, 5, 16), (3,)),
        dims=((1,), (0,)),
        given=lambda x, like: (x.repeat(1, len(like), 1), like),
        more=(0, 1),
    ),
    "sum of two": any_rows(Concatenated, 2, shapes=((5, 16), (3, 16)), dims=((0,), (0,)), more=(0, 4)),
    "sums of all": any_rows(lambda: after_a_product(StarReLU()), 1),
    "temperature": any_rows(lambda: after_a_product(Temperature(1)), 1),
    "block of two dims": any_rows(
        lambda: Block(16, nn.RMSNorm), *[2] * 4, shapes=((2, 5, 16),), dims=((0, 1),), more=(0, 2)
    ),
    # `backed_size_oblivious` is one of the ways by which 0 and 1 reach a symbolic graph.
    **{
        f"compiled for {first}": Entry(
            lambda: nn.RMSNorm(64), ((first, 7, 64),), dims=((0,),), more=(0, *more), oblivious=True
        )
        for first, more in ((0, (1, 5)), (1, (-1, 4)), (6, (-6, -5)))
    },
    "stored across": Entry(
        StoredAcross,
        ((13, 3), (13, 1)),
        dims=((0,), (0,)),
        more=(0, -13, -8),
        oblivious=True,
        regions=0,
        declined=("dynamic-shape",),
    ),
    "any batch": modulated(0),
    "any batch and rows": modulated(0, 1),
    "rows beside a batch": batches((5, 4, 7, 20), (0, 2), (0, 2)),
    "rows inside a batch": batches((7, 4, 20), (1,), 0),
    "a batch of any size": batches((4, 7, 20), (0, 1), 1),
    "two batches and rows": batches((4, 7, 3, 20), (0, 1, 2), 1),
    "shifted": without_guard(lambda x, dy: pair(x, torch.cat([torch.zeros_like(x[:1]), (dy * 2)[1:]]) + x)),
    "overwritten": without_guard(lambda x, dy: pair(x, torch.slice_scatter(dy * 2, x[1:], 0, 1) + x)),
}
