"""Outputs with gaps between their rows, so that each row starts at a boundary of memory.

A matrix product that reads rows of any length takes up to twice as long. So Inductor puts gaps into the
tensors that it makes, and fills them with zeros where the graph pads a product's operand. What a kernel of
ours writes has to have the gaps as well: nothing behind it can make them without a copy.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from ..inductor.tensors import padded_strides
from .layouts import is_strided, readers_with
from .nodes import fake, leaves_the_graph, operands
from .space_analysis import takes_operands

aten = torch.ops.aten
PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})


def has_gaps(node: Node) -> bool:
    """Whether an output is written with gaps: a matrix product reads it, Inductor would pad it, and all that
    reads it can do so through strides."""
    val = fake(node)
    # Last, as it may ask for a guard where sizes are symbolic: these are not padded.
    if val is None or leaves_the_graph(node) or not _are_between_rows(val) or not val.is_contiguous():
        return False
    try:
        readers = list(readers_with(node, with_gaps(val)))
    except (RuntimeError, ValueError):  # a view that would need a copy
        return False
    return any(r.target in PRODUCTS for r in readers) and all(
        r.target in PRODUCTS or takes_operands(r) for r in readers
    )


def is_filled(node: Node) -> bool:
    """Whether the graph pads an output that has gaps. Inductor then fills the gaps in place, but only of
    memory that it allocates itself; of an operator's or the caller's it makes a copy."""
    for user in node.users:
        if user.target is aten.constant_pad_nd.default or (is_strided(user) and is_filled(user)):
            return True
    return False


def fills_gaps(node: Node) -> bool:
    """Whether a node pads the rows of an output that has gaps, and Inductor fills these with zeros where they
    are: for one product, and in memory that it allocates for what a loop or a launch computes."""
    if node.target is not aten.constant_pad_nd.default or [u.target in PRODUCTS for u in node.users] != [
        True
    ]:
        return False
    (source,), (before, behind, *outer_pads) = operands(node), tuple(node.args[1])  # type: ignore[arg-type]
    val = fake(source)
    stride = None if val is None or val.ndim != 2 else padded_strides(val)
    if val is None or stride is None or before or any(outer_pads) or not isinstance(behind, int):
        return False
    made = takes_operands(source) or source.target is operator.getitem
    return made and val.shape[1] + behind <= stride[0] and has_gaps(source)


def _are_between_rows(val: torch.Tensor) -> bool:
    """Whether Inductor would pad a tensor, with the same gap behind every row of its last dim: the other dims
    can then be merged and divided as ever."""
    stride = padded_strides(val)
    return stride is not None and all(
        outer == inner * n for outer, inner, n in zip(stride, stride[1:], val.shape[1:-1], strict=False)
    )


def with_gaps(val: torch.Tensor) -> torch.Tensor:
    """A fake tensor of the same elements, padded."""
    stride = padded_strides(val)
    assert stride is not None
    with val.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(val.shape, stride, dtype=val.dtype, device=val.device)


def saved_strides(graph: Graph) -> list[tuple[int, ...] | None]:
    """The strides of a forward graph's outputs as Inductor stores them: with gaps where a loop or a product
    makes an activation that only the backward reads. None for what is no tensor, or of symbolic strides."""
    (output,) = graph.find_nodes(op="output")
    seen = output.meta.get("user_visible_output_idxs", ())
    strides: list[tuple[int, ...] | None] = []
    for i, node in enumerate(output.args[0]):
        val = fake(node) if isinstance(node, Node) else None
        if val is None or not all(isinstance(n, int) for n in val.stride()):
            strides.append(None)
            continue
        made = node.target in PRODUCTS or takes_operands(node)
        stride = padded_strides(val) if made and i not in seen else None
        strides.append(stride if stride and val.is_contiguous() else tuple(val.stride()))
    return strides
