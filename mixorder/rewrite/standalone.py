"""A region by itself: its nodes as a graph of their own, with numbers for symbolic sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from ..inductor.graphs import ROUNDED
from ..region.nodes import fake, is_added_up, operands, size_of
from ..region.region import Region
from ..region.sizes import Size


@dataclasses.dataclass(frozen=True)
class Like:
    """A tensor that the region reads: its name in the region's loops, and what it is like."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Standalone:
    """A region's nodes as a graph, whose placeholders are like `inputs`, in order."""

    graph: Graph
    inputs: tuple[Like, ...]

    def module(self) -> GraphModule:
        """A module with a copy of the graph."""
        copied = Graph()
        outputs = copied.graph_copy(self.graph, {})
        copied.output(outputs)
        return GraphModule({}, copied)

    def __str__(self) -> str:
        """Equal for regions that compute the same of tensors that are alike, whatever their nodes' names."""
        rounded = [node.name for node in self.graph.nodes if node.meta.get(ROUNDED)]
        nodes = (node.format_node() or "" for node in self.graph.nodes)
        return "\n".join([*map(str, self.inputs), *nodes, *rounded])


def standalone(region: Region, hint: Callable[[Any], int]) -> Standalone:
    """The region's own nodes with its inputs as placeholders and its outputs as results, in the strides that
    the graph states. `hint`: a likely value of a symbolic size."""

    def number(size: Size | torch.SymInt) -> int:
        return hint(size_of(size) if isinstance(size, torch.SymInt) else size)

    graph, copies, likes = Graph(), dict[Node, Node](), list[Like]()
    for name, node in region.input_buffers.items():
        val = fake(node)
        assert val is not None
        copies[node] = graph.placeholder(name)
        shape, stride = (tuple(map(number, sizes)) for sizes in (val.shape, val.stride()))
        likes.append(Like(name, val.dtype, shape, stride))

    def argument(arg: Any) -> Any:
        if isinstance(arg, Node) and arg not in copies:
            arg = arg.meta["val"]  # a size
        if isinstance(arg, Node):
            return copies[arg]
        return number(arg) if isinstance(arg, torch.SymInt) else arg

    for i, node in enumerate(region.nodes):
        args, kwargs = map_aggregate(node.args, argument), map_aggregate(node.kwargs, argument)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, f"n{i}")  # type: ignore[arg-type]
        copies[node].meta = {ROUNDED: True} if node.meta.get(ROUNDED) else {}

    def result(node: Node) -> Node:
        """A node's copy, or the sum of all elements that Inductor has in place of one that is added up."""
        if not is_added_up(node):
            return copies[node]
        user = next(iter(node.users))
        args, kwargs = map_aggregate((user.args[1:], user.kwargs), argument)
        return graph.call_function(user.target, (copies[operands(node)[0]], *args), kwargs)

    graph.output(tuple(map(result, region.outputs)))
    return Standalone(graph, tuple(likes))
