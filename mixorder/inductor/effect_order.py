"""Has Inductor run the effects of a graph with our launches in the graph's order.

Inductor orders kernels by what they read and write. Torch 2.11 adds no order to operators that draw random
numbers. The registered effects of custom operators get one (torch 2.11 to 2.14), but under a name that the
scheduler does not look up. So the order depends on which loops become one kernel, and on the order that takes
least memory. A region changes both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch._inductor.ir import ExternKernel, MultiOutput
from torch.fx import Node

from .graphs import launches_ours
from .wrapping import Function

# Of each graph with a launch of ours that is being lowered: the buffers of its effects so far.
_earlier: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()


def ordered(loses_order: Callable[[Node], bool], original: Function, self: Any, node: Node) -> Any:
    """Wraps Inductor's method that lowers a node: a node for which `loses_order` holds waits for all such
    before it."""
    before = len(self.operations)
    result = original(self, node)
    if loses_order(node) and any(map(launches_ours, node.graph.nodes)):
        _wait(self, self.operations[before:])
    return result


def _wait(lowering: Any, made: list[Any]) -> None:
    """Add what runs the node, among the operations that its lowering made, to the order. Loops compute its
    operands. An operation may be removed where nothing reads it, so that a chain would not do."""
    earlier = _earlier.setdefault(lowering, [])
    for operation in made:
        if isinstance(operation, ExternKernel) and not isinstance(operation, MultiOutput):
            lowering.additional_buffer_deps[operation.get_operation_name()].update(earlier)
            earlier.append(operation.get_outputs()[0].get_name())
