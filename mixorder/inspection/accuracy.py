"""How far results are from those of float64."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def relative_error(actual: Tensor, expected: Tensor, chunk_elements: int = 2**24) -> float:
    """||actual - expected|| / ||expected|| in float64, the plain norm where `expected` is all zero.

    `expected` is float64. Temporaries hold at most `chunk_elements` elements, or one row. Raises ValueError
    where the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    actual, expected = torch.atleast_1d(actual), torch.atleast_1d(expected)
    off = torch.zeros((), dtype=torch.float64, device=expected.device)
    size = torch.zeros_like(off)
    step = max(1, chunk_elements // max(expected[:1].numel(), 1))
    for got, want in zip(actual.split(step), expected.split(step), strict=True):
        off += (got.double() - want).square().sum()
        size += want.square().sum()
    return (off / size if size > 0 else off).sqrt().item()


def largest_error(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Of pairs of a result and the exact one: the largest relative error, infinite where it is no number; 0
    of none."""
    errors = [relative_error(result.detach().to(exact.device), exact) for result, exact in pairs]
    return max((e if e == e else float("inf") for e in errors), default=0.0)
