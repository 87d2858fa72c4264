"""Has launches of ours read a buffer as Inductor's other nodes have it: once, and as its views are strided.

Inductor writes what it has only inside of loops anew for each launch that reads it: three launches read one
rounded sum of 5552x4096, and one kernel wrote it three times. They get one copy. Inductor's loops compute it
as before, without rounding it.

Inductor makes a view of a buffer whose strides are still open, with the strides that the buffer has so far.
Torch 2.11 puts gaps between rows into these. A launch then asks for the strides that the graph states, the
buffer gets them, and what reads the view is wrong, such as all rows of a gradient but the first, for rows of
1030 columns behind padded products. With final strides, the launch gets a copy instead.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import ir
from torch.fx import Node

from .graphs import is_view, launches_ours
from .wrapping import Function


def settled(original: Function, self: Any, node: Node) -> Any:
    """Wraps Inductor's method that lowers a node: before a launch of ours, the strides of its viewed operands
    become final, and what several launches read is written once."""
    if not launches_ours(node):
        return original(self, node)
    written: dict[Node, Any] = vars(self).setdefault("mixorder_written", {})
    inside: dict[Node, Any] = {}
    for operand in node.all_input_nodes:
        value = self.env.get(operand)
        if len(list(filter(launches_ours, operand.users))) > 1 and _is_inside_of_loops(value):
            inside[operand] = value
            if operand not in written:
                written[operand] = copied(value)
        elif any(map(is_view, operand.users)):
            settle(value)
    try:
        self.env.update((operand, written[operand]) for operand in inside)
        return original(self, node)
    finally:
        # What a launch has written over is what all read from there on.
        kept = (n for n in inside if written[n].get_name() not in self.mutated_buffers)
        self.env.update((operand, inside[operand]) for operand in kept)


def copied(value: Any) -> Any:
    """A buffer with a tensor's elements."""
    return ir.ExternKernel.copy_input(value)


def settle(value: Any) -> None:
    """Give a buffer whose strides are open those that views of it have."""
    if isinstance(value, ir.TensorBox) and ir.is_storage_and_layout(value):
        _, layout = ir.as_storage_and_layout(value, freeze=False)
        if isinstance(layout, ir.FlexibleLayout):
            ir.as_storage_and_layout(value, exact_strides=layout.stride)


def _is_inside_of_loops(value: Any) -> bool:
    """Whether Inductor computes a tensor in each loop that reads it."""
    while isinstance(value, ir.MutableBox):
        value = value.data
    return isinstance(value, ir.Pointwise)
