"""Add the nodes of a region's kernels to the FX graph: buffers, launches, sizes, and views of results."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from sympy import sympify
from torch.fx import Graph, Node
from torch.fx.traceback import NodeSource, NodeSourceAction

from ..codegen.load import load_kernel
from ..codegen.source import KernelSource
from ..errors import Decline, DeclineReason
from ..inductor.graphs import (
    OpOverload,
    check_kernel,
    launch_arguments,
    overwritten,
    triton_kernel_wrapper_functional,
)
from ..inductor.symbols import SIZE_FUNCTIONS
from ..inductor.tensors import empty, tracing
from ..ir.program import NUM_SPLITS, Buffer, BufferRole
from ..region.nodes import fake, size_of
from ..region.placement import place_of
from ..region.region import Region
from ..region.sizes import Size
from .sizes import folded, value_of

aten = torch.ops.aten
_PROVENANCE = ("stack_trace", "nn_module_stack", "seq_nr", "original_aten", "from_node", "custom")


class GraphWriter:
    """Adds nodes at the first place of the graph where all of the region's inputs exist.

    Every method returns the node that has the result. `created`: all nodes that were added, in order.
    """

    def __init__(self, graph: Graph, region: Region) -> None:
        self.graph = graph
        self.created: list[Node] = []
        self._sizes: dict[sympy.Expr, Node] = {}
        self.like = region.named_after[0]  # a norm names the region, not a bias beside it
        self.inputs = region.inputs
        self.place = place_of(region)
        self.device = fake(self.like).device  # type: ignore[union-attr]
        self.fake_mode = fake(self.like).fake_mode  # type: ignore[union-attr]

    def add(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any) -> Node:
        after = self.created[-1] if self.created else self.place
        with self.graph.inserting_after(after):
            node = self.graph.call_function(target, args, kwargs)
        node.meta.update({k: self.like.meta[k] for k in _PROVENANCE if k in self.like.meta})
        node.meta["val"] = val
        self.created.append(node)
        return node

    def call(self, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """Call an operator. Its result is traced as Inductor does after the pass, which would add guards
        there: where that needs one, this raises `Decline`."""
        with tracing(self.fake_mode):
            val = target(*torch.fx.map_arg(args, value_of), **kwargs)
        return self.add(target, args, kwargs, val)

    def empty(self, buffer: Buffer, num_splits: int) -> Node:
        size, stride = (
            [self.size(e.xreplace({NUM_SPLITS: sympy.Integer(num_splits)})) for e in exprs]
            for exprs in (buffer.shape, buffer.stride)
        )
        kwargs = {"dtype": buffer.dtype, "device": self.device}
        if any(isinstance(n, Node) for n in (*size, *stride)):
            return self.call(aten.empty_strided.default, (size, stride), kwargs)
        val = empty(self.fake_mode, size, stride, buffer.dtype, self.device)  # type: ignore[arg-type]
        return self.add(aten.empty_strided.default, (size, stride), kwargs, val)

    def filled(self, buffer: Buffer, value: int) -> Node:
        size = [self.size(e) for e in buffer.shape]
        kwargs = {"dtype": buffer.dtype, "device": self.device, "pin_memory": False}
        return self.call(aten.full.default, (size, value), kwargs)

    def reshaped(self, node: Node, like: Node) -> Node:
        """An input that was reused for an output, as a view of that output's shape. Where the shapes
        differ, both are contiguous."""
        val, node_val = fake(like), fake(node)
        assert val is not None and node_val is not None
        shape = [size_of(n) for n in val.shape]
        if shape == [size_of(n) for n in node_val.shape]:
            return node
        return self.call(aten.reshape.default, (node, [self.size(n) for n in shape]), {})

    def contiguous(self, node: Node) -> Node:
        """A contiguous copy. Inductor may fuse it into the loop that computes the original."""
        return self.call(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})

    def overwritten(self, node: Node) -> Node:
        """An input of the graph that a launch writes to."""
        return self.add(overwritten, (node,), {}, self.like_of(node))

    def strided(self, node: Node, like: Node) -> Node:
        """A copy with the strides that the graph's caller expects."""
        val = fake(like)
        assert val is not None
        size, stride = ([self.size(size_of(n)) for n in ns] for ns in (val.shape, val.stride()))
        kwargs = {"dtype": val.dtype, "device": self.device}
        place = self.call(aten.empty_strided.default, (size, stride), kwargs)
        return self.call(aten.copy.default, (place, node), {})

    def rounded(self, node: Node, like: Node) -> Node:
        """A wider result, cast to the dtype that the graph states. Inductor computes the cast in the loops
        that use it, in float32, and so rounds nothing."""
        dtype = fake(like).dtype  # type: ignore[union-attr]
        return self.call(torch.ops.prims.convert_element_type.default, (node, dtype), {})

    def size(self, expr: Size) -> int | Node:
        """A size as a graph argument: a number, or a node that computes it from the inputs' sizes."""
        if isinstance(expr, int) or expr.is_number:
            return int(expr)
        if expr not in self._sizes:
            self._sizes[expr] = self._compute_size(expr)
        return self._sizes[expr]

    def _compute_size(self, expr: sympy.Expr) -> Node:
        for node in self.inputs:
            val = fake(node)
            assert val is not None
            for dim, n in enumerate(val.shape):
                if size_of(n) == expr:
                    return self.add(aten.sym_size.int, (node, dim), {}, n)
        for node in self.graph.nodes:
            if isinstance(n := node.meta.get("val"), torch.SymInt) and size_of(n) == expr:
                return node
            if node is self.place:
                break
        function = SIZE_FUNCTIONS.get(expr.func)
        if function is None:
            raise Decline(DeclineReason.DYNAMIC_SHAPE, f"no value before the region has the size {expr}")
        return folded(function, map(self.size, expr.args), lambda f, args, val: self.add(f, args, {}, val))

    def launch(
        self,
        source: KernelSource,
        arguments: dict[Buffer, Node],
        sizes: dict[str, int | Node],
        made_of: tuple[Node, ...],
    ) -> dict[str, Node]:
        """Launch a kernel that computes the reductions `made_of`.

        Returns the nodes of the buffers that it writes, by name.
        """
        for buffer, node in arguments.items():
            if buffer.role is BufferRole.INPUT:
                _check_operand(buffer, node)
        tensors = {buffer.pointer: node for buffer, node in arguments.items()}
        written = {buffer.pointer: buffer.name for buffer in arguments if buffer.name in source.written}
        kernel = load_kernel(source)
        if self.device.type == "cuda" and torch.cuda.is_available():  # else there is no target to compile for
            check_kernel(kernel, torch.fx.map_arg({**tensors, **sizes}, value_of))
        grid = self.size(source.grid), 1, 1
        kwargs = launch_arguments(kernel, grid, {**tensors, **sizes}, list(written))
        # The functional operator returns new tensors: a result must not share its argument's fake memory.
        result = {key: self.like_of(tensors[key]) for key in written}
        node = self.add(triton_kernel_wrapper_functional, (), kwargs, result)
        node.meta["from_node"] = [_source_of(made_of)]
        # The kernel computes addresses from these strides: Inductor must not pad or reorder its inputs.
        node.meta["eager_input_vals"] = torch.fx.map_arg((node.args, node.kwargs), value_of)
        return {
            name: self.add(operator.getitem, (node, key), {}, result[key]) for key, name in written.items()
        }

    def like_of(self, node: Node) -> torch.Tensor:
        """A fake tensor like a node's, with memory of its own."""
        val = fake(node)
        assert val is not None
        return empty(self.fake_mode, val.shape, val.stride(), val.dtype, val.device)

    def undo(self) -> None:
        for node in reversed(self.created):
            self.graph.erase_node(node)


def _check_operand(buffer: Buffer, node: Node) -> None:
    """Raise ValueError if a kernel was made for another tensor than it is launched with."""
    val = fake(node)
    assert val is not None
    sizes = zip((*val.shape, *val.stride()), (*buffer.shape, *buffer.stride), strict=True)
    if val.dtype != buffer.dtype or any(sympify(size_of(n)) != expr for n, expr in sizes):
        raise ValueError(f"{buffer} of strides {buffer.stride} is {node.name}, {val.dtype} {val.stride()}")


def is_launched(node: Node) -> bool:
    """Whether a node is a result of a Triton kernel."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and source.target is triton_kernel_wrapper_functional


def _source_of(nodes: tuple[Node, ...]) -> NodeSource:
    """The source nodes in Inductor's comment above a launch. The comment prints the name of one node, so that
    name lists them all; `from_node` has each of them for provenance tracking."""
    source = NodeSource(nodes[0], "mixorder", NodeSourceAction.REPLACE)
    assert source.node_info is not None
    source.node_info.name = ", ".join(node.name for node in nodes)
    source.from_node = [NodeSource(node, "mixorder", NodeSourceAction.REPLACE) for node in nodes]
    return source
