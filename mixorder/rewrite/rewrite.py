"""Write the kernels of a region into the FX graph. The only stage that changes it.

All or nothing: nodes are added first, and taken out again if anything fails; only then are the region's
outputs replaced and its dead nodes erased.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.traceback import NodeSource, NodeSourceAction

from ..codegen.load import load_kernel
from ..codegen.source import KernelSource
from ..errors import Decline, DeclineReason
from ..inductor.graphs import check_kernel, launch_arguments, triton_kernel_wrapper_functional
from ..ir.program import NUM_SPLITS, Buffer, BufferRole, LoopProgram
from ..region.axes import Size
from ..region.effects import between, has_effect
from ..region.nodes import fake, leaves_the_graph, size_of
from ..region.placement import moved, place_of
from ..region.region import Region

aten = torch.ops.aten
_PROVENANCE = ("stack_trace", "nn_module_stack", "seq_nr", "original_aten", "from_node", "custom")


def replace(
    graph: Graph,
    region: Region,
    program: LoopProgram,
    kernels: tuple[KernelSource, ...],
    num_splits: int,
) -> None:
    """Replace the region by its kernels, launched in order. The graph's order is legal afterwards."""
    writer = _Writer(graph, region)
    try:
        read = [writer.contiguous(n) if n in region.relaid else n for n in region.inputs]
        nodes = dict(zip((b.name for b in program.role(BufferRole.INPUT)), read, strict=True))
        for buffer in program.buffers:
            if buffer.fill is not None:
                nodes[buffer.name] = writer.filled(buffer, buffer.fill, region.inputs)
            elif buffer.role is not BufferRole.INPUT and buffer.over is None:
                nodes[buffer.name] = writer.empty(buffer, num_splits, region.inputs)
        for source in kernels:
            sizes = {str(s): writer.size(s, region.inputs) for s in program.sizes if str(s) in source.sizes}
            made_of = region.outer if source is kernels[-1] else (*region.inner, *region.outer)
            buffers = {program.buffer(name): nodes[name] for name in source.buffers}
            nodes.update(writer.launch(source, buffers, sizes, made_of))
        results = []
        for buffer, old in zip(program.role(BufferRole.OUTPUT), region.outputs, strict=True):
            new = nodes[buffer.over or buffer.name]
            results.append(writer.reshaped(new, old, region.inputs) if buffer.over else new)
        for i, old in enumerate(region.outputs):
            if old in region.relaid and leaves_the_graph(old):
                results[i] = writer.strided(results[i], old, region.inputs)
            elif old in region.widened:
                results[i] = writer.rounded(results[i], old)
        sink(moved(region), writer.created[-1])
    except BaseException:
        writer.undo()
        raise
    for new, old in zip(results, region.outputs, strict=True):
        new.meta.update({k: v for k, v in old.meta.items() if k not in new.meta})
        old.replace_all_uses_with(new)
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)


class _Writer:
    """Appends nodes at the first place where all of the region's inputs exist."""

    def __init__(self, graph: Graph, region: Region) -> None:
        self.graph = graph
        self.created: list[Node] = []
        self._sizes: dict[sympy.Expr, Node] = {}
        self.like = region.outer[0]
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

    def empty(self, buffer: Buffer, num_splits: int, inputs: tuple[Node, ...]) -> Node:
        size, stride = (
            [self.size(e.xreplace({NUM_SPLITS: sympy.Integer(num_splits)}), inputs) for e in exprs]
            for exprs in (buffer.shape, buffer.stride)
        )
        kwargs = {"dtype": buffer.dtype, "device": self.device}
        with self.fake_mode:
            val = torch.empty_strided(*torch.fx.map_arg((size, stride), _value), **kwargs)
        return self.add(aten.empty_strided.default, (size, stride), kwargs, val)

    def filled(self, buffer: Buffer, value: int, inputs: tuple[Node, ...]) -> Node:
        size = [self.size(e, inputs) for e in buffer.shape]
        kwargs = {"dtype": buffer.dtype, "device": self.device, "pin_memory": False}
        with self.fake_mode:
            val = torch.full(*torch.fx.map_arg((size, value), _value), **kwargs)
        return self.add(aten.full.default, (size, value), kwargs, val)

    def reshaped(self, node: Node, like: Node, inputs: tuple[Node, ...]) -> Node:
        """An input that an output was written over, in that output's shape; if that is another, both are
        contiguous."""
        val, own = fake(like), fake(node)
        assert val is not None and own is not None
        shape = [size_of(n) for n in val.shape]
        if shape == [size_of(n) for n in own.shape]:
            return node
        size = [self.size(n, inputs) for n in shape]
        with self.fake_mode:
            view = own.reshape(val.shape)
        return self.add(aten.reshape.default, (node, size), {}, view)

    def contiguous(self, node: Node) -> Node:
        """A copy that Inductor may fuse into the loop that makes the original."""
        kwargs = {"memory_format": torch.contiguous_format}
        with self.fake_mode:
            val = fake(node).contiguous()  # type: ignore[union-attr]
        return self.add(aten.clone.default, (node,), kwargs, val)

    def strided(self, node: Node, like: Node, inputs: tuple[Node, ...]) -> Node:
        """A copy with the strides that the graph's caller expects."""
        val = fake(like)
        assert val is not None
        size, stride = ([self.size(size_of(n), inputs) for n in ns] for ns in (val.shape, val.stride()))
        kwargs = {"dtype": val.dtype, "device": self.device}
        place = self.add(aten.empty_strided.default, (size, stride), kwargs, val)
        return self.add(aten.copy.default, (place, node), {}, val)

    def rounded(self, node: Node, like: Node) -> Node:
        """A wider result in the dtype that the graph states. A loop that it is part of rounds nothing."""
        dtype = fake(like).dtype  # type: ignore[union-attr]
        with self.fake_mode:
            val = fake(node).to(dtype)  # type: ignore[union-attr]
        return self.add(torch.ops.prims.convert_element_type.default, (node, dtype), {}, val)

    def size(self, expr: Size, inputs: tuple[Node, ...]) -> int | Node:
        """A size as a graph argument: a number, or a node that computes it from the inputs' sizes."""
        if isinstance(expr, int) or expr.is_number:
            return int(expr)
        if expr not in self._sizes:
            self._sizes[expr] = self._compute_size(expr, inputs)
        return self._sizes[expr]

    def _compute_size(self, expr: sympy.Expr, inputs: tuple[Node, ...]) -> Node:
        for node in inputs:
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
        function = {sympy.Add: operator.add, sympy.Mul: operator.mul}.get(expr.func)
        if function is None:
            raise Decline(DeclineReason.DYNAMIC_SHAPE, f"nothing before the region has the size {expr}")
        first, *rest = (self.size(arg, inputs) for arg in expr.args)
        for other in rest:
            args = (first, other)
            first = self.add(function, args, {}, function(*map(_value, args)))
        assert isinstance(first, Node)
        return first

    def launch(
        self,
        source: KernelSource,
        arguments: dict[Buffer, Node],
        sizes: dict[str, int | Node],
        made_of: tuple[Node, ...],
    ) -> dict[str, Node]:
        """Launch a kernel that computes the reductions `made_of`; returns the nodes that hold the buffers it
        has written."""
        tensors = {buffer.pointer: node for buffer, node in arguments.items()}
        written = {buffer.pointer: buffer.name for buffer in arguments if buffer.name in source.written}
        kernel = load_kernel(source)
        if self.device.type == "cuda" and torch.cuda.is_available():  # or there is no target to compile for
            check_kernel(kernel, torch.fx.map_arg({**tensors, **sizes}, _value))
        kwargs = launch_arguments(kernel, (source.grid, 1, 1), {**tensors, **sizes}, list(written))
        # In memory of its own, as the functional operator has it: Inductor must see no alias in its argument.
        with self.fake_mode:
            result = {key: _like(tensors[key].meta["val"]) for key in written}
        node = self.add(triton_kernel_wrapper_functional, (), kwargs, result)
        # The kernel computes addresses from these strides: Inductor must not pad or reorder its inputs.
        node.meta["from_node"] = [_source_of(made_of)]
        node.meta["eager_input_vals"] = torch.fx.map_arg((node.args, node.kwargs), _value)
        return {
            name: self.add(operator.getitem, (node, key), {}, result[key]) for key, name in written.items()
        }

    def undo(self) -> None:
        for node in reversed(self.created):
            self.graph.erase_node(node)


def _source_of(nodes: tuple[Node, ...]) -> NodeSource:
    """What Inductor's comment above a launch calls its source nodes. It prints one name, which has them all;
    each node by itself is for provenance tracking."""
    source = NodeSource(nodes[0], "mixorder", NodeSourceAction.REPLACE)
    assert source.node_info is not None
    source.node_info.name = ", ".join(node.name for node in nodes)
    source.from_node = [NodeSource(node, "mixorder", NodeSourceAction.REPLACE) for node in nodes]
    return source


def _value(arg: int | Node) -> Any:
    return arg.meta["val"] if isinstance(arg, Node) else arg


def _like(val: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(val.shape, val.stride(), dtype=val.dtype, device=val.device)


def sink(nodes: Sequence[Node], last: Node) -> None:
    """Move nodes that stand before `last` behind it, in their order.

    Raises ValueError, with all in its place, if that would change the order of effects.
    """
    if not nodes:
        return
    before, behind = nodes[0].prev, last.next
    places = [node.prev for node in nodes]
    order = list(filter(has_effect, between(before, behind)))
    for node in nodes:
        last.append(node)
        last = node
    if order != list(filter(has_effect, between(before, behind))):
        for node, place in zip(nodes, places, strict=True):
            place.append(node)
        raise ValueError("the region's launch would change the order of effects")
