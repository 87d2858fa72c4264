"""Has Inductor give the results of our launches their places in what a `cat` makes.

Inductor's loops write to their places there, as the buffers that they write are views of the whole. What a
launch writes was allocated by itself, so that loops of Inductor's would copy it. A buffer whose strides are
those of its place becomes a view as well: nothing but the launch and the `cat` uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch._inductor import ir
from torch.fx import Node

from .graphs import is_view, launches_ours
from .wrapping import Function, during

aten = torch.ops.aten

# Of the `cat` that is lowered, the operands that launches of ours wrote: buffers, and nodes that show them.
_written: ContextVar[tuple[tuple[Any, Node], ...]] = ContextVar("mixorder_written", default=())


def joined(original: Function, self: Any, node: Node) -> Any:
    """Wraps Inductor's method that lowers a node."""
    if node.target is not aten.cat.default:
        return original(self, node)
    with during(_written, tuple(_launched(self, node))):
        return original(self, node)


def realized(original: Function, source: Any, place: Any, *alias: Any, **may_alias: Any) -> Any:
    """Wraps the function of Inductor's that has an operand of a `cat` written to its place; 2.15 says in
    `may_alias` whether it may be a view."""
    buffer, node = _operand(source)
    if node is None or not isinstance(place, ir.ReinterpretView) or not _is_there(node, place.layout):
        return original(source, place, *alias, **may_alias)
    buffer_layout = buffer.layout
    there = ir.FixedLayout(
        buffer_layout.device,
        buffer_layout.dtype,
        buffer_layout.size,
        buffer_layout.stride,
        place.layout.offset,
    )
    layout = ir.NonOwningLayout(ir.ReinterpretView(data=place.data, layout=there))
    if not layout.maybe_guard_aligned():  # the kernel is for results that start at a boundary
        return original(source, place, *alias, **may_alias)
    buffer.layout = layout
    return buffer


def needs_no_copy(original: Function, source: Any, *place: Any) -> Any:
    """Wraps the function of Inductor's that says whether an operand can be written to its place. It is asked
    without the place first, to choose between loops over the whole and loops for each operand."""
    return (not place and _operand(source)[1] is not None) or original(source, *place)


def _launched(lowering: Any, cat: Node) -> Iterator[tuple[Any, Node]]:
    operands: Any = cat.args[0]
    for operand in operands:
        user, node = cat, operand
        while is_view(node) and list(node.users) == [user]:
            user, node = node, node.args[0]
        readers = [u for u in node.users if not launches_ours(u)]
        is_written = node.target is aten.empty_strided.default and len(readers) < len(node.users)
        if is_written and readers == [user] and operands.count(operand) == 1:
            yield _buffer(lowering.env[operand]), operand


def _operand(source: Any) -> tuple[Any, Node | None]:
    """The buffer that a launch wrote, and the node that shows it; None for any other operand."""
    buffer = _buffer(source)
    return buffer, next((node for written, node in _written.get() if written is buffer), None)


def _buffer(value: Any) -> Any:
    """The buffer behind boxes and views."""
    while isinstance(value, (ir.MutableBox, ir.BaseView)):
        value = value.data if isinstance(value, ir.MutableBox) else value.unwrap_view()
    return value


def _is_there(node: Node, place: Any) -> bool:
    """Whether the elements of an operand lie as they are to lie in the whole, wherever the first one is."""
    val = node.meta["val"]
    strides = zip(val.shape, val.stride(), place.stride, strict=True)
    return all(n == 1 or stride == there for n, stride, there in strides)
