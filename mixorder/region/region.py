"""A region: the nodes of the FX graph that become one kernel pair. Data only."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Set

from torch.fx import Node

from .axes import Space
from .cat_slices import CatSlice
from .comparisons import compared
from .factors import Order, Run
from .gathers import is_gather
from .nodes import float_bytes, is_view, operands, reduction_kind, unviewed
from .row_permutations import permuted_places
from .sizes import Size
from .space_analysis import SpaceAnalysis, takes_operands
from .walk import by_position, dependents


@dataclasses.dataclass(frozen=True)
class Seed:
    """What a region is grown from: reductions of one space. `without`: nodes that must not join.
    `must_recompute`: those that loops outside recompute, instead of reading them, if all that this takes is
    in memory.
    `made_for`: nodes that are there for one reduction alone, by that reduction: none joins without it.

    Inner reductions above `inner` join as well, if they are of this space.
    """

    analysis: SpaceAnalysis
    space: Space
    inner: tuple[Node, ...]
    outer: tuple[Node, ...]
    without: frozenset[Node] = frozenset()
    must_recompute: frozenset[Node] = frozenset()
    made_for: Mapping[Node, frozenset[Node]] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def less(self, nodes: Set[Node]) -> Seed:
        """The seed without some nodes."""
        inner, outer = (tuple(n for n in side if n not in nodes) for side in (self.inner, self.outer))
        return dataclasses.replace(self, inner=inner, outer=outer, without=self.without | nodes)


@dataclasses.dataclass(frozen=True)
class Region:
    """Nodes that become one kernel and its finalisation.

    `nodes`: in graph order; all that `outputs` need and that is no input. `outputs`: those that nodes
    outside use. Another member may have users outside as well: it is cheap, stays in the graph for them,
    and is recomputed in the kernel.

    `made_contiguous`: inputs that are copied into contiguous memory before the launch, and outputs that the
    kernel writes contiguously, whatever strides the graph states. `kept_fp32`: outputs in half precision that
    the kernel writes in float32; the loops outside that read them cast. `output_strides`: strides that
    outputs get, whatever the graph states, such as those with gaps between rows. `cat_slices`: the places of
    outputs that are slices of a larger tensor. `late`: the launch stands in front of the first use of a
    result, not behind the last input.

    `orders`: where in the space the elements of each member and input lie, in a region whose reductions all
    end within a tile; None in any other.
    """

    name: str
    space: Space
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    inner: tuple[Node, ...]
    outer: tuple[Node, ...]
    seed: Seed = dataclasses.field(repr=False, compare=False)
    made_contiguous: frozenset[Node] = frozenset()
    kept_fp32: frozenset[Node] = frozenset()
    output_strides: Mapping[Node, tuple[Size, ...]] = dataclasses.field(default_factory=dict, hash=False)
    cat_slices: Mapping[Node, CatSlice] = dataclasses.field(default_factory=dict, hash=False)
    late: bool = False
    orders: Mapping[Node, Order] | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def named_after(self) -> tuple[Node, ...]:
        """The nodes that say what a region is: its reductions or, where it has none, its outputs."""
        return (*self.inner, *self.outer) or self.outputs

    @functools.cached_property
    def inputs(self) -> tuple[Node, ...]:
        """Tensors that the region reads, in order of first use."""
        members = set(self.nodes)
        args = (arg for node in self.nodes for arg in operands(node))
        return tuple(dict.fromkeys(arg for arg in args if arg not in members))

    @functools.cached_property
    def input_buffers(self) -> dict[str, Node]:
        """The inputs by their names in the region's loops."""
        return {f"in{i}": n for i, n in enumerate(self.inputs)}

    @functools.cached_property
    def buffers(self) -> dict[str, Node]:
        """The inputs and outputs by their names in the region's loops."""
        return self.input_buffers | {f"out{i}": n for i, n in enumerate(self.outputs)}

    def column_side(self) -> frozenset[Node]:
        """The outer reductions and every node of the region that depends on one (the epilogues)."""
        return frozenset(dependents(self.outer, self.nodes))

    @functools.cached_property
    def permuted(self) -> Mapping[Node, Run]:
        """The place of the element of each node behind a row permutation."""
        return permuted_places(self.nodes, (*self.inner, *self.outer))

    @functools.cached_property
    def rounded(self) -> frozenset[Node]:
        """Members in half precision whose rounded values the region computes with: outputs from which a wider
        output is computed by a reduction, such as a softmax's sum, those that the region reads a function of,
        and those that it compares.

        So what is computed agrees with the stored values.
        """
        return self._outputs_below_wider_ones() | self._operands_of_inputs() | self.compared

    @functools.cached_property
    def compared(self) -> frozenset[Node]:
        """Members in half precision that the region compares with another value, such as a stored maximum."""
        return compared(self.nodes).intersection(self.nodes)

    def _operands_of_inputs(self) -> frozenset[Node]:
        """Members that an operator outside, such as a custom one, reads in memory, where the region reads the
        operator's result: in `v - op(v)` both are of the rounded `v`."""
        members = set(self.nodes)
        sources = (source for source in map(_operator, self.inputs) if source.op == "call_function")
        read = (a for s in sources if not (takes_operands(s) or is_gather(s)) for a in operands(s))
        return frozenset(a for a in map(_operator, read) if a in members and float_bytes(a) == 2)

    def _outputs_below_wider_ones(self) -> frozenset[Node]:
        columns = self.column_side()
        rows = [n for n in self.outputs if n not in columns]
        wide = {n for n in rows if float_bytes(n) > 2}
        reductions = {n for n in self.nodes if reduction_kind(n) is not None}
        return frozenset(
            n
            for n in rows
            if float_bytes(n) == 2
            and not wide.isdisjoint(dependents(reductions & dependents([n], self.nodes) - {n}, self.nodes))
        )

    def __str__(self) -> str:
        def names(nodes: tuple[Node, ...]) -> str:
            return ", ".join(n.name for n in nodes)

        contiguous = tuple(by_position(self.made_contiguous))
        lines = [
            f"{self.name} {self.space}",
            f"  inner:   {names(self.inner)}",
            f"  outer:   {names(self.outer)}",
            f"  inputs:  {names(self.inputs)}",
            *([f"  contiguous: {names(contiguous)}"] if contiguous else []),
            f"  outputs: {names(self.outputs)}",
            *(f"    {n.format_node()}" for n in self.nodes),
        ]
        return "\n".join(lines)


def _operator(node: Node) -> Node:
    """The tensor that a node shows; of an item of several results, the operator that gives them."""
    return unviewed(node, lambda n: is_view(n) or n.target is operator.getitem)
