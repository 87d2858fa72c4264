"""Sizes that views need, computed from the graph's inputs instead of asked of tensors on the way.

To Inductor a size is an expression, and nothing waits for the tensor that was asked. To the order of the
nodes it does wait: where a region computes the tensor, and later reads what was viewed with that size, its
launch would have to come before itself. Some matrix products are recomputed for their size alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from ..inductor.symbols import SIZE_FUNCTIONS, canonical
from ..region.sizes import Size

aten = torch.ops.aten


def sizes_from_inputs(graph: Graph) -> None:
    """Replace the sizes of tensors that are no inputs, where the inputs have all that they are made of."""
    asked = [n for n in graph.find_nodes(op="call_function", target=aten.sym_size.int) if _is_inside(n)]
    if not asked:
        return
    sizes = Sizes(graph)
    for node in asked:
        size = sizes.of(node.meta["val"].node.expr)
        if isinstance(size, Node):
            node.replace_all_uses_with(size)
            graph.erase_node(node)
    sizes.erase_unused()


def _is_inside(node: Node) -> bool:
    """Whether a node is a symbolic size of a tensor that the graph computes."""
    source = node.args[0]
    assert isinstance(source, Node)
    return source.op != "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)


def folded(function: Any, operands: Iterable[Node | int | None], add: Callable[..., Node]) -> Node:
    """A node with a function's value of all operands, from the first one on."""
    first, *rest = operands
    for second in rest:
        first = add(function, (first, second), function(value_of(first), value_of(second)))
    assert isinstance(first, Node)
    return first


def value_of(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, Node) else arg


class Sizes:
    """Nodes behind a graph's inputs that give sizes, by the sizes. `made`: those that were added."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: list[Node] = []

    @functools.cached_property
    def place(self) -> Node:
        """What the nodes stand in front of. Torch puts the token of ordered effects before the inputs."""
        inputs = self.graph.find_nodes(op="placeholder")
        return inputs[-1].next if inputs else next(iter(self.graph.nodes))

    @functools.cached_property
    def known(self) -> dict[Size, Node | int | None]:
        sizes, inputs = dict[Size, Node | int | None](), self.graph.find_nodes(op="placeholder")
        for node in inputs:
            if isinstance(val := node.meta.get("val"), torch.SymInt):
                sizes.setdefault(val.node.expr, node)
        for node in inputs:
            val = node.meta.get("val")
            for dim, n in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
                if isinstance(n, torch.SymInt) and n.node.expr not in sizes:
                    sizes[n.node.expr] = self.add(aten.sym_size.int, (node, dim), n)
        return sizes

    def erase_unused(self) -> None:
        """Erase what was added and nothing reads. No size is asked afterwards."""
        alive = set(self.graph.nodes) if self.made else set()
        for node in reversed(self.made):
            if node in alive and not node.users:
                self.graph.erase_node(node)

    def of(self, size: Size) -> Node | int | None:
        """A node with this size, or the number; None if the inputs do not tell it."""
        if isinstance(size, int) or size.is_Integer:
            return int(size)
        if size not in self.known:
            self.known[size] = self.computed(size)
        return self.known[size]

    def computed(self, size: Size) -> Node | None:
        function = next((f for kind, f in SIZE_FUNCTIONS.items() if isinstance(size, kind)), None)
        made_of = [self.of(arg) for arg in size.args] if function is not None else []  # type: ignore[union-attr]
        if function is None or any(operand is None for operand in made_of):
            return None
        first = folded(function, made_of, self.add)
        made = first.meta["val"]
        # Torch may write a size in another form than the one that was asked for.
        same = isinstance(made, torch.SymInt) and canonical(made.node.expr) == canonical(size)  # type: ignore[arg-type]
        return first if same else None

    def add(self, function: object, args: tuple[object, ...], val: object) -> Node:
        with self.graph.inserting_before(self.place):
            self.made.append(self.graph.call_function(function, args))  # type: ignore[arg-type]
        self.made[-1].meta["val"] = val
        return self.made[-1]
