"""The structural key of a region: regions with equal keys run the same kernels.

It holds all that lowering, scheduling and code generation look at: the nodes in order, with their operands
by number, and the metadata of every tensor. It holds no names, and nothing of the graph around the region
but whether a result leaves the graph or is added up, which values an operator outside has rounded, which
products and sums are of one operator, and for a tensor of other strides than row-major, who reads it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from ..inductor.graphs import ROUNDED
from .layouts import is_copied_as_stated, is_free, is_joined, is_read_as_stated, is_row_major
from .nodes import fake, is_added_up, leaves_the_graph, size_of
from .operators import contracted
from .region import Region
from .sizes import Size

_PLAIN = (str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)


class _Unknown(Exception):
    """An argument or a value that no key can be made of."""


def structural_key(region: Region) -> Hashable | None:
    """The key of a region. Regions of one graph with the same key lower to the same loops, names aside.

    None where the region has an argument or a value that is not known to compare by value.
    """
    inputs = region.inputs
    number = {node: i for i, node in enumerate((*inputs, *region.nodes))}
    sets = region.inner, region.outer, region.made_contiguous, region.kept_fp32, region.rounded
    like = fake(region.named_after[0])
    assert like is not None
    try:
        return (
            id(like.fake_mode),  # says what symbols mean; the graph holds a reference
            region.space,
            region.orders is None,
            tuple(_value(n.meta.get("val")) for n in inputs),
            tuple(
                (n.target, _argument(n.args, number), _argument(n.kwargs, number), _value(n.meta.get("val")))
                for n in region.nodes
            ),
            tuple(number[n] for n in region.nodes if n.meta.get(ROUNDED)),
            tuple((number[product], number[total]) for product, total in contracted(region)),
            tuple(
                (number[n], leaves_the_graph(n), is_joined(n, number), is_added_up(n)) for n in region.outputs
            ),
            tuple(
                (number[n], is_free(n), is_read_as_stated(n), is_copied_as_stated(n))
                for n in (*inputs, *region.outputs)
                if not is_row_major(n)
            ),
            *(frozenset(map(number.__getitem__, nodes)) for nodes in sets),
            frozenset((number[n], stride) for n, stride in region.output_strides.items()),
            frozenset((number[n], place.stride, place.offset) for n, place in region.cat_slices.items()),
        )
    except _Unknown:
        return None


def _argument(arg: Any, number: dict[Node, int]) -> Hashable:
    """An argument as its type and value. Python's == alone would take 1, 1.0 and True for the same, and 0.0
    and -0.0."""
    if isinstance(arg, Node):
        return ("node", number[arg]) if arg in number else ("size", _value(arg.meta.get("val")))
    if isinstance(arg, list | tuple):
        return (type(arg), *(_argument(a, number) for a in arg))
    if isinstance(arg, dict):
        return (dict, *((key, _argument(a, number)) for key, a in arg.items()))
    if isinstance(arg, bool | int | float | complex):
        return (type(arg), repr(arg))
    if isinstance(arg, _PLAIN):
        return arg
    raise _Unknown


def _value(val: Any) -> Hashable:
    """A node's value as known at compile time: sizes, strides, offset, dtype, device."""
    if isinstance(val, torch.Tensor):
        offset = size_of(val.storage_offset())
        return (_sizes(val.shape), _sizes(val.stride()), offset, val.dtype, val.device)
    if isinstance(val, torch.SymInt):
        return size_of(val)
    if isinstance(val, list | tuple):
        return tuple(map(_value, val))
    if isinstance(val, bool | int | float):
        return (type(val), repr(val))
    raise _Unknown


def _sizes(sizes: Any) -> tuple[Size, ...]:
    return tuple(map(size_of, sizes))
