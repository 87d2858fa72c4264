"""A region: the nodes of the FX graph that become one kernel pair. Data only."""

from __future__ import annotations

import dataclasses

from torch.fx import Node

from .axes import Space
from .nodes import operands


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes that become one kernel and its finalisation.

    `nodes` are in graph order and closed under what `outputs` need; `outputs` are those whose value somebody
    outside uses. A node of `nodes` that is not an output may have users outside as well: it is cheap, stays
    in the graph for them, and is computed again in the kernel. `smaller`, if there is one, reads what this
    region computes with gathers: to fall back on where one kernel cannot hold all of that.
    """

    name: str
    space: Space
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    inner: tuple[Node, ...]
    outer: tuple[Node, ...]
    smaller: Region | None = None

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Tensors that the region reads, in order of first use."""
        members = set(self.nodes)
        args = (arg for node in self.nodes for arg in operands(node))
        return tuple(dict.fromkeys(arg for arg in args if arg not in members))

    def column_side(self) -> frozenset[Node]:
        """The outer reductions and every node of the region that depends on one (the epilogues)."""
        found = set(self.outer)
        for node in self.nodes:
            if any(a in found for a in operands(node)):
                found.add(node)
        return frozenset(found)

    def __str__(self) -> str:
        def names(nodes: tuple[Node, ...]) -> str:
            return ", ".join(n.name for n in nodes)

        lines = [
            f"{self.name} {self.space}",
            f"  inner:   {names(self.inner)}",
            f"  outer:   {names(self.outer)}",
            f"  inputs:  {names(self.inputs)}",
            f"  outputs: {names(self.outputs)}",
            *(f"    {n.format_node()}" for n in self.nodes),
        ]
        return "\n".join(lines)
