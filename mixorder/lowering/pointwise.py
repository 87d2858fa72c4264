"""What Inductor's own lowerings make of a region's nodes: a `TensorBox` each, whose loader can be traced.

Dtype promotion, the decomposition of an ATen op into scalar ops and the index arithmetic of views are theirs.
A box's operands are leaves: loads from them call back for the value of the node that they stand for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir as inductor_ir
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import OpsValue, V, ops
from torch.fx import Node

from ..errors import Decline, DeclineReason
from ..region.gathers import is_piece
from ..region.nodes import fake, size_of
from ..region.region import Region
from . import gathers
from .index_map import Index


@contextlib.contextmanager
def lowering_context(region: Region) -> Iterator[None]:
    """Inductor's lowerings ask `V.graph` for size variables and the device."""
    fake_mode = fake(region.outer[0]).fake_mode  # type: ignore[union-attr]
    nothing = torch.fx.Graph()
    nothing.output(())
    empty = torch.fx.GraphModule({}, nothing)
    with V.set_fake_mode(fake_mode):
        graph = GraphLowering(empty, shape_env=fake_mode.shape_env)
    with (
        V.set_graph_handler(graph),
        V.set_fake_mode(fake_mode),
        graph.set_current_device(_gpu(fake(region.outer[0]).device)),  # type: ignore[union-attr]
    ):
        yield


def _gpu(device: torch.device) -> torch.device:
    """Lowerings branch on the device type; what is generated is Triton, so they must see a GPU."""
    return device if device.type != "cpu" else torch.device("cuda", 0)


class Boxes:
    """The boxes of a region's nodes, each lowered once. `value` gives a node's value at an index while
    `recorder` is the handler of `ops`; Inductor, too, loads while it lowers, to count."""

    def __init__(self, value: Callable[[Node, Index], Any], recorder: Any) -> None:
        self._value = value
        self._recorder = recorder
        self._boxes: dict[Node, inductor_ir.TensorBox] = {}
        self._pieces: dict[Node, list[inductor_ir.TensorBox]] = {}

    def of(self, node: Node) -> inductor_ir.TensorBox:
        """Raises `Decline` for an op whose lowering is not a loop."""
        if node not in self._boxes:

            def operand(arg: Node) -> inductor_ir.TensorBox | sympy.Expr:
                val = arg.meta["val"]
                return sympy.sympify(size_of(val)) if isinstance(val, torch.SymInt) else self._leaf(arg)

            if is_piece(node):
                whole, i = node.args
                result = self._split(whole, operand)[i]  # type: ignore[arg-type,index]
            else:
                result = _lowered(node, operand)
            if not isinstance(result, inductor_ir.TensorBox) or not _is_loop(result):
                raise Decline(
                    DeclineReason.UNSUPPORTED_OP,
                    f"{node.target} is not a pointwise loop",
                    node.name,
                )
            self._boxes[node] = result
        return self._boxes[node]

    def _split(self, split: Node, operand: Callable[[Node], Any]) -> list[inductor_ir.TensorBox]:
        if split not in self._pieces:
            self._pieces[split] = _lowered(split, operand)
        return self._pieces[split]

    def _leaf(self, node: Node) -> inductor_ir.TensorBox:
        val = fake(node)
        assert val is not None

        def inner_fn(index: Sequence[sympy.Expr]) -> Any:
            if V.get_ops_handler() is not self._recorder:
                return ops.load(node.name, sympy.S.Zero)  # Inductor counts ops and reads while lowering
            return OpsValue(self._value(node, tuple(index)))

        return inductor_ir.Pointwise.create(
            device=_gpu(val.device),
            dtype=val.dtype,
            inner_fn=inner_fn,
            ranges=list(symbolic(val.shape)),
        )


def _lowered(node: Node, operand: Callable[[Node], Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), operand)
    lowering = gathers.LOWERINGS.get(node.target) or lowerings[node.target]  # type: ignore[index]
    V.graph.current_node = node  # whose metadata says where `emulate_precision_casts` rounds
    try:
        return lowering(*args, **kwargs)
    except Decline:
        raise
    except Exception as error:  # it calls a kernel of ATen for these dtypes, say, which needs a whole graph
        detail = f"{node.target}: its lowering ends in {type(error).__name__}: {error}"
        raise Decline(DeclineReason.UNSUPPORTED_OP, detail, node.name) from error


def _is_loop(box: inductor_ir.TensorBox) -> bool:
    data: Any = box
    while isinstance(data, inductor_ir.TensorBox | inductor_ir.StorageBox | inductor_ir.BaseView):
        data = data.data
    return isinstance(data, inductor_ir.Pointwise)


def symbolic(sizes: Iterable[int | torch.SymInt]) -> tuple[sympy.Expr, ...]:
    """Sizes or strides as expressions."""
    return tuple(sympy.sympify(size_of(n)) for n in sizes)
