"""Programs with a reduction of some dtype on each side of a plain pair, and what eager gives for them.

The operand of the reduction depends on the pair's row sum (`inside`) or on an input alone; the values are
chosen so that rounding decides nothing: what is reduced is exact in every dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

Tensors = tuple[torch.Tensor, ...]
f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
OPERANDS = (torch.bool, torch.uint8, torch.int16, torch.int64, bf16, f32, f64)


class Reduction(NamedTuple):
    """An operator on a tensor and a dim; `of`: the operand's dtype, `into`: the `dtype=` it is given."""

    name: str
    of: torch.dtype
    into: torch.dtype | None
    function: Callable[[torch.Tensor, int], torch.Tensor]

    def __str__(self) -> str:
        into = "" if self.into is None else f"-{str(self.into)[6:]}"
        return f"{self.name}-{str(self.of)[6:]}{into}"


def reductions(of: torch.dtype) -> Iterator[Reduction]:
    """All of an operand's dtype."""
    for name, operator in (("sum", torch.sum), ("mean", torch.mean)):
        for into in (None, f16, f32, f64):
            if (into or of).is_floating_point:
                yield Reduction(name, of, into, _with_dtype(operator, into))
    if of.is_floating_point:
        yield Reduction("amax", of, None, torch.amax)
        yield Reduction("amin", of, None, torch.amin)
    elif of != torch.bool:
        yield Reduction("xor", of, None, xor)


def xor(x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.ops.prims.xor_sum(x, [dim])


@torch.library.impl("prims::xor_sum", ("cpu", "cuda"))
def _xor_sum(x: torch.Tensor, dims: list[int], *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """PyTorch itself has this operator in Inductor only."""
    (dim,) = dims
    return functools.reduce(torch.bitwise_xor, x.unbind(dim), torch.zeros_like(x.select(dim, 0)))


def _with_dtype(operator: Any, into: torch.dtype | None) -> Callable[[torch.Tensor, int], torch.Tensor]:
    return lambda x, dim: operator(x, dim, dtype=into)


def operand(values: torch.Tensor, reduction: Reduction) -> torch.Tensor:
    """Numbers of which a sum is exact: multiples of 256 in wide integers, which a byte cannot hold, and truth
    values."""
    if reduction.of == torch.bool:
        return values > 0
    whole = (values * 4).round()
    if reduction.of.itemsize >= 4:
        return whole.to(reduction.of) * 256
    # Through an integer: what a float gives as a byte that has no negative numbers differs between machines.
    return whole.to(torch.int32).to(reduction.of)


def program(chosen: list[Reduction], inside: bool) -> Callable[[torch.Tensor, torch.Tensor], Tensors]:
    """A pair, then each reduction over the rows, then each over the columns."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        scale = (x * y).sum(-1, keepdim=True)
        z = x * scale
        # The scale's sign and size leave no trace in what is reduced, but the graph does not know that.
        values = y * (z / z) if inside else y
        sources = [(r, operand(values, r)) for r in chosen]
        return z, (z * y).sum(0), *(r.function(source, dim) for dim in (0, 1) for r, source in sources)

    return function


BATCH = 6  # reductions in one program: more would be cut to several regions
ALL = [list(reductions(of)) for of in OPERANDS]
CASES = [found[i : i + BATCH] for found in ALL for i in range(0, len(found), BATCH)]


def case_name(chosen: list[Reduction] | bool) -> str:
    if isinstance(chosen, bool):
        return "inside" if chosen else "beside"
    return f"{chosen[0]}-and-{len(chosen) - 1}-more"
