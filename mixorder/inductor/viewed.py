"""Keeps the strides of a buffer that views were made of, where a launch of ours reads it.

Inductor makes a view of a buffer whose strides are still open, with the strides that the buffer has so far.
Torch 2.11 puts gaps between rows into these. A launch then asks for the strides that the graph states, the
buffer gets them, and what reads the view is wrong. H100, torch 2.11, LayerNorm of 1030 columns in bf16 behind
padded products: all rows of a gradient but the first. With final strides, the launch gets a copy instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node

from .graphs import our_kernel


def settled(original: Callable[[Any, Node], Any]) -> Callable[[Any, Node], Any]:
    """Wraps Inductor's method that lowers a node: before a launch of ours, the strides of its viewed operands
    become final."""

    def run_node(self: Any, node: Node) -> Any:
        if our_kernel(node.kwargs.get("kernel_idx")) is not None:
            for operand in filter(_is_viewed, node.all_input_nodes):
                settle(self.env.get(operand))
        return original(self, node)

    return run_node


def settle(value: Any) -> None:
    """Give a buffer whose strides are open those that views of it have."""
    from torch._inductor import ir

    if isinstance(value, ir.TensorBox) and ir.is_storage_and_layout(value):
        _, layout = ir.as_storage_and_layout(value, freeze=False)
        if isinstance(layout, ir.FlexibleLayout):
            ir.as_storage_and_layout(value, exact_strides=layout.stride)


def _is_viewed(node: Node) -> bool:
    return any(isinstance(user.target, OpOverload) and user.target.is_view for user in node.users)
