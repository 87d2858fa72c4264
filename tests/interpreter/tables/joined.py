"""Results that are parts of one tensor: a kernel writes rows that lie apart. Pieces of one that are computed
by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from graphs import bf16, f32
from grids import crossed
from joining import JOINS, ORDERS, PARTS, SHAPES, program
from table import Entry, of
from torch import nn


def joined(part: str, join: str, order: str) -> Entry:
    def shows(*found: Any) -> bool:
        return all((r.traffic.joined > 0) == (join == "cat of permuted") for r in found)

    return Entry(of(program(part, join, order)), SHAPES, regions=2, cancelled=1, shows=shows)


def read_where_it_was_put(x: torch.Tensor, y: torch.Tensor) -> Any:
    """The second slice is computed by the region, and the first one, of rows with gaps, is read by it."""
    part = F.pad(x.sin(), (1, 1), value=0.5)[..., 1:][..., : x.shape[-1]] * y
    scaled = part * (x * y).sum(-1, keepdim=True)
    return part, (scaled * part).sum(0), (scaled * scaled).sum(-1)


class Piecewise(nn.Module):
    """A function of itself and a tensor; it has vectors of so many elements."""

    def __init__(self, function: Callable[..., Any], sizes: Sequence[int]) -> None:
        super().__init__()
        self.function = function
        self.vectors = nn.ParameterList(torch.randn(n) for n in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *[self.vectors[i] for i in range(len(self.vectors))])  # for torch 2.11


def swiglu(h: Any, bias: Any) -> Any:
    gate, up = (h + bias).chunk(2, -1)
    return F.silu(gate) * up


def behind_a_product(x: Any, bias: Any) -> Any:
    gate, up = F.linear(x, x[0, :1].expand(20, -1), bias).chunk(2, -1)
    return F.gelu(gate) * up


def joint(h: Any, bias: Any, weight: Any) -> Any:
    q, k, v = (h + bias).chunk(3, -1)
    q, k = (F.rms_norm(t, t.shape[-1:], weight, 1e-6) for t in (q, k))
    return torch.cat([q, k, v], -1)


def beside_sinks(x: Any, sinks: Any) -> Any:
    return torch.cat([x, sinks.view(1, -1, 1, 1).expand(x.shape[0], -1, x.shape[2], -1)], -1)


def with_sinks(x: Any, sinks: Any) -> Any:
    return beside_sinks(x, sinks).softmax(-1)[..., :-1]


def with_masked_sinks(x: Any, sinks: Any) -> Any:
    later = torch.ones(x.shape[2:], dtype=torch.bool).triu(1)
    together = beside_sinks(x.masked_fill(later, torch.finfo(x.dtype).min), sinks)
    return (together - together.max(-1, keepdim=True).values).softmax(-1)[..., :-1] * 2


def with_shifted_sinks(x: Any, sinks: Any) -> Any:
    together = beside_sinks(x * 2, sinks)
    return (together - together.amax(-1, keepdim=True)).softmax(-1)[..., :-1]


PIECEWISE: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], str]] = {
    "swiglu": (swiglu, (37, 48), (48,), "37x24"),
    "swiglu of an odd size": (swiglu, (3, 13, 66), (66,), "39x33"),
    "glu behind a product": (behind_a_product, (5, 7, 20), (20,), "35x10"),
    "norms of a projection": (joint, (2, 11, 96), (96, 32), "22x32"),
    "sinks": (with_sinks, (2, 3, 5, 16), (3,), "row 2 x batch 3 x row 5 x column 16"),
    "sinks of an odd size": (with_sinks, (3, 2, 7, 33), (2,), "row 3 x batch 2 x row 7 x column 33"),
    "sinks behind a mask": (with_masked_sinks, (2, 3, 9, 9), (3,), "row 2 x batch 3 x row 9 x column 9"),
    "sinks below the largest": (with_shifted_sinks, (2, 3, 4, 8), (3,), "row 2 x batch 3 x row 4 x column 8"),
}


def piecewise(name: str, dtype: torch.dtype) -> Entry:
    function, shape, sizes, space = PIECEWISE[name]
    return Entry(
        lambda: Piecewise(function, sizes).to(dtype),
        (shape,),
        dtype,
        regions=None,
        shows=lambda *found: {str(r.space) for r in found} == {space},
    )


ENTRIES: dict[str, Entry] = {
    **{", ".join(how): joined(*how) for how in crossed(PARTS, JOINS, ORDERS)[::4]},
    "read where it was put": Entry(of(read_where_it_was_put), ((21, 768), (21, 768))),
    **{name: piecewise(name, (f32, bf16)[i % 2]) for i, name in enumerate(PIECEWISE)},
    "swiglu of bfloat16": piecewise("swiglu", bf16),
    "sinks of bfloat16": piecewise("sinks", bf16),
}
